use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::stop::{Stop, after};

/// A running consumer or listener. Dropping the handle leaves it running until the runtime ends.
#[derive(Debug)]
#[must_use = "without its handle it cannot be shut down"]
pub struct SubscriberHandle {
    stop: watch::Sender<Option<Instant>>,
    subscribed: watch::Receiver<bool>,
    task: JoinHandle<SubscriberShutdown>,
}

impl SubscriberHandle {
    /// Runs `task`, which says by `subscribed` whether messages flow.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn spawn<Fut>(subscribed: watch::Receiver<bool>, task: impl FnOnce(Stop) -> Fut) -> Self
    where
        Fut: Future<Output = SubscriberShutdown> + Send + 'static,
    {
        let (asker, stop) = Stop::channel();
        Self { stop: asker, subscribed, task: tokio::spawn(task(stop)) }
    }

    /// Whether messages flow: its queue is being read from, or it is a member of its group. When they do not, the log
    /// says why.
    #[must_use]
    pub fn is_subscribed(&self) -> bool {
        *self.subscribed.borrow()
    }

    /// Waits until messages flow.
    pub async fn subscribed(&self) {
        // An error means that the task is gone: then nothing is ever read.
        if self.subscribed.clone().wait_for(|subscribed| *subscribed).await.is_err() {
            pending().await
        }
    }

    /// Whether the task is alive; it ends only by [`shutdown`](Self::shutdown) and [`abort`](Self::abort).
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// Stops taking messages. Those whose handlers have not begun, or that wait for their next try, are left to
    /// others at once; handlers that run have until `within` to end; then they are dropped unacknowledged, and
    /// the broker delivers their messages again. Closing the connections may take some seconds more where the
    /// broker does not answer.
    ///
    /// Dropping the future leaves it winding up by itself.
    pub async fn shutdown(self, within: Duration) -> SubscriberShutdown {
        self.stop.send_replace(Some(after(within)));
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
pub struct SubscriberShutdown {
    /// Deliveries that came to their end meanwhile: handled, put off or given up.
    pub answered: usize,
    /// Deliveries that were left to others unhandled.
    pub returned: usize,
    /// Deliveries that were dropped at the bound: the broker delivers them again.
    pub dropped: usize,
    /// Whether everything came to its end within the bound.
    pub ended: bool,
}

impl SubscriberShutdown {
    /// Nothing was dropped.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.dropped == 0 && self.ended
    }
}
