use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};

use crate::relay::Backoff;

/// Tries something until it works, with growing pauses, for as long as `patience`. Says what went wrong last.
///
/// A consumer that waits here holds its delivery, so that consumption comes to rest while a service is away,
/// instead of sending every message round through the broker.
pub(super) async fn insist<T, Fut>(patience: Duration, mut action: impl FnMut() -> Fut) -> Result<T, String>
where
    Fut: Future<Output = Result<T, String>>,
{
    let deadline = Instant::now() + patience;
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let mut problem = "no answer in time".to_owned();
    loop {
        match timeout_at(deadline, action()).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => problem = error,
            Err(_) => return Err(problem),
        }
        let pause = backoff.pause();
        if Instant::now() + pause >= deadline {
            return Err(problem);
        }
        sleep(pause).await;
    }
}
