//! The suite for [`DedupStore`].

#[allow(missing_docs, reason = "the names say it")]
pub mod cases;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::run::{guarded, runtime};
use crate::dedup::DedupStore;

/// A dedup store under test. Its constructor, the second argument of
/// [`dedup_suite!`](crate::dedup_suite), is an `async fn() -> Self` and makes a store whose keys no other
/// test sees.
pub trait DedupFixture: Send + Sync + 'static {
    /// The store. Where time is real, its retention should be some short leases.
    type Store: DedupStore;

    /// The store.
    fn store(&self) -> Arc<Self::Store>;
    /// Another handle on the same keys, with connections of its own.
    fn other(&self) -> Arc<Self::Store>;
    /// The shortest lease that the store measures well.
    fn short_lease(&self) -> Duration;
    /// Lets time pass for the store: moves its clock, or sleeps a little longer.
    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send;
    /// Removes what the fixture made; nothing by default.
    fn cleanup(self) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        async {}
    }
}

/// Runs one case on a fixture of its own.
pub fn run_case<F: DedupFixture>(make: impl AsyncFnOnce() -> F, case: impl AsyncFnOnce(&F)) {
    runtime().block_on(async {
        let fixture = Arc::new(make().await);
        let fixture_of_case = Arc::clone(&fixture);
        let cleanup = async { Arc::into_inner(fixture).expect("the case has ended").cleanup().await };
        guarded(async move { case(&fixture_of_case).await }, cleanup).await;
    });
}

/// One test per case for a [`DedupStore`](crate::DedupStore): the name of the module they go to, and the
/// constructor of a [`DedupFixture`](crate::conformance::DedupFixture).
#[macro_export]
macro_rules! dedup_suite {
    ($(#[$attribute:meta])* $name:ident, $make:expr $(,)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::__conformance_cases! {
                [$(#[$attribute])*], run_dedup_case, $make,
                dedup: [
                    free_key_is_acquired_once,
                    racing_handles_acquire_a_key_once,
                    finished_key_is_done,
                    finishing_twice_counts_once,
                    abandoned_key_is_free_at_once,
                    expired_lease_frees_its_key,
                    expired_lease_cannot_finish,
                    stale_token_changes_nothing,
                    unknown_token_changes_nothing,
                    renewed_lease_lives_longer,
                    done_marker_ends_with_its_retention,
                    keys_are_independent,
                ]
            }
        }
    };
}
