use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use futures_util::FutureExt;
use tokio::runtime::{Builder, Runtime};

/// Longer than any case takes on a slow machine: what takes longer hangs.
const BOUND: Duration = Duration::from_secs(120);

pub(super) fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a Tokio runtime")
}

/// Runs `case`, then `cleanup` whatever came of it.
pub(super) async fn guarded(case: impl Future<Output = ()>, cleanup: impl Future<Output = ()>) {
    let bounded = tokio::time::timeout(BOUND, case);
    let end = AssertUnwindSafe(bounded).catch_unwind().await;
    cleanup.await;
    match end {
        Ok(in_time) => in_time.expect("the case hangs: it did not end within two minutes"),
        Err(panic) => resume_unwind(panic),
    }
}
