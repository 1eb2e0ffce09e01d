use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::time::{Instant, sleep, timeout};

const POLL: Duration = Duration::from_millis(20);

/// Asks until there is an answer. After `limit` it fails and says `what` did not come.
pub async fn until<T>(
    what: &str,
    limit: Duration,
    mut ask: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = ask().await? {
            return Ok(answer);
        }
        if Instant::now() >= end {
            bail!("not within {limit:?}: {what}");
        }
        sleep(POLL).await;
    }
}

/// Fails when `call` takes longer than `limit`.
pub async fn within<T>(what: &str, limit: Duration, call: impl Future<Output = T>) -> Result<T> {
    timeout(limit, call).await.with_context(|| format!("not within {limit:?}: {what}"))
}
