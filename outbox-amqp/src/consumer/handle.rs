use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A running consumer. Dropping the handle leaves it running until the runtime ends.
#[derive(Debug)]
#[must_use = "without its handle a consumer cannot be shut down"]
pub struct AmqpConsumerHandle {
    pub(super) stop: watch::Sender<bool>,
    pub(super) deadline: watch::Sender<Option<Instant>>,
    pub(super) subscribed: watch::Receiver<bool>,
    pub(super) task: JoinHandle<ConsumerShutdown>,
}

impl AmqpConsumerHandle {
    /// Whether the queue is being read from now. When it is not, the log says why.
    #[must_use]
    pub fn is_subscribed(&self) -> bool {
        *self.subscribed.borrow()
    }

    /// Waits until the queue is being read from.
    pub async fn subscribed(&self) {
        // An error means that the task is gone: then nothing is subscribed ever.
        if self.subscribed.clone().wait_for(|subscribed| *subscribed).await.is_err() {
            std::future::pending().await
        }
    }

    /// Whether the task is alive; it ends only by [`shutdown`](Self::shutdown) and [`abort`](Self::abort).
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// Stops taking messages. Those whose handlers have not begun, or wait for their next try, go back to the
    /// queue at once; handlers that run have until `within` to end; then they are dropped unacknowledged, and
    /// the broker delivers their messages again.
    ///
    /// Dropping the future leaves the consumer winding up by itself.
    pub async fn shutdown(self, within: Duration) -> ConsumerShutdown {
        let far = Duration::from_secs(86_400 * 365);
        self.deadline.send_replace(Some(Instant::now() + within.min(far)));
        self.stop.send_replace(true);
        self.task.await.unwrap_or_default()
    }

    /// Stops everything at once, as a crash would: what is not acknowledged is delivered again. For tests and
    /// demonstrations.
    pub fn abort(self) {
        self.task.abort();
    }
}

/// How a shutdown went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerShutdown {
    /// Deliveries whose handlers came to their end meanwhile: handled, put off or given up.
    pub answered: usize,
    /// Deliveries that went back to the queue unhandled.
    pub returned: usize,
    /// Deliveries whose handlers were dropped: the broker delivers them again.
    pub dropped: usize,
    /// Whether everything came to its end within the bound.
    pub ended: bool,
}

impl ConsumerShutdown {
    /// No handler was dropped.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.dropped == 0 && self.ended
    }
}
