use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// As good as for ever. A clock cannot count further than some hundred years.
const FAR: Duration = Duration::from_secs(86_400 * 365);

/// When `delay` has passed; a very long one is cut.
pub(crate) fn after(delay: Duration) -> Instant {
    Instant::now() + delay.min(FAR)
}

/// Learns that a task is to end, and by when.
#[derive(Clone)]
pub(crate) struct Stop(watch::Receiver<Option<Instant>>);

impl Stop {
    pub(crate) fn channel() -> (watch::Sender<Option<Instant>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// Ends when the task is to end. Without anybody who could ask, never.
    pub(crate) async fn asked(&self) {
        if self.0.clone().wait_for(Option::is_some).await.is_err() {
            pending().await
        }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// When the task is to have ended.
    pub(crate) fn deadline(&self) -> Instant {
        self.0.borrow().unwrap_or_else(Instant::now)
    }

    /// Does `work`; none when the deadline comes before its end, which drops it.
    pub(crate) async fn bound<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let deadline = async {
            self.asked().await;
            sleep_until(self.deadline()).await;
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = deadline => None,
        }
    }

    /// Waits; `false`: the task is to end.
    pub(crate) async fn wait_until(&self, due: Instant) -> bool {
        tokio::select! {
            biased;
            () = self.asked() => false,
            () = sleep_until(due) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn times_that_no_clock_can_hold_are_far_away() {
        assert_eq!(after(Duration::MAX), Instant::now() + FAR);
        assert_eq!(after(Duration::from_secs(1)), Instant::now() + Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_ends_when_it_is_due_or_when_asked_but_not_when_nobody_is_left_to_ask() {
        let (asker, stop) = Stop::channel();
        let due = Instant::now() + Duration::from_secs(9);
        assert!(stop.wait_until(due).await);
        asker.send_replace(Some(due));
        assert!(!stop.wait_until(Instant::now()).await);
        assert_eq!((stop.is_asked(), stop.deadline()), (true, due));

        let (asker, stop) = Stop::channel();
        drop(asker);
        assert!(stop.wait_until(Instant::now() + Duration::from_secs(9)).await);
        assert!(!stop.is_asked());
    }
}
