use std::future::pending;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// As good as for ever. A clock cannot count further than some hundred years.
const FAR: Duration = Duration::from_secs(86_400 * 365);
/// How long the end of dropped tasks is waited for.
const DROPPING: Duration = Duration::from_millis(500);

/// When `delay` has passed; a very long one is cut.
#[must_use]
pub fn after(delay: Duration) -> Instant {
    Instant::now() + delay.min(FAR)
}

/// Drops all tasks; `false`: one does not end soon, because it blocks its thread.
pub async fn drop_tasks<T: 'static>(tasks: &mut JoinSet<T>) -> bool {
    timeout(DROPPING, tasks.shutdown()).await.is_ok()
}

/// Learns that a task is to end, and by when.
#[derive(Debug, Clone)]
pub struct Stop(watch::Receiver<Option<Instant>>);

impl Stop {
    /// A stop, and what asks for it: by sending the deadline.
    #[must_use]
    pub fn channel() -> (watch::Sender<Option<Instant>>, Self) {
        let (sender, receiver) = watch::channel(None);
        (sender, Self(receiver))
    }

    /// Ends when the task is to end. Without anybody who could ask, never.
    pub async fn asked(&self) {
        if self.0.clone().wait_for(Option::is_some).await.is_err() {
            pending().await
        }
    }

    /// Whether the task is to end.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.borrow().is_some()
    }

    /// When the task is to have ended; now, where nobody has asked.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.0.borrow().unwrap_or_else(Instant::now)
    }

    /// Does `work`; none when the deadline comes before its end, which drops it.
    pub async fn bound<T>(&self, work: impl Future<Output = T>) -> Option<T> {
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
    pub async fn wait_until(&self, due: Instant) -> bool {
        tokio::select! {
            biased;
            () = self.asked() => false,
            () = sleep_until(due) => true,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
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

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_task_that_blocks_its_thread_is_not_waited_for() {
        let (blocker, blocked) = std::sync::mpsc::channel::<()>();
        let mut tasks = JoinSet::new();
        tasks.spawn(pending::<()>());
        assert!(drop_tasks(&mut tasks).await);
        let (started, start) = tokio::sync::oneshot::channel();
        tasks.spawn(async move {
            let _ = started.send(());
            let _ = blocked.recv();
        });
        start.await.unwrap();
        assert!(!drop_tasks(&mut tasks).await);
        drop(blocker);
    }
}
