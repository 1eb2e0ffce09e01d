use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// Whether the relay works or winds up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// Claim nothing more; give back what is still being published at `give_back_at`.
    Draining {
        give_back_at: Instant,
    },
}

/// A task's view of the phase.
#[derive(Debug, Clone)]
pub(crate) struct PhaseWatch(watch::Receiver<Phase>);

impl PhaseWatch {
    pub(crate) fn new(receiver: watch::Receiver<Phase>) -> Self {
        Self(receiver)
    }

    pub(crate) fn is_draining(&self) -> bool {
        matches!(*self.0.borrow(), Phase::Draining { .. })
    }

    /// Returns once the relay winds up. Cancellation safe.
    pub(crate) async fn draining(&mut self) -> Instant {
        loop {
            if let Phase::Draining { give_back_at } = *self.0.borrow_and_update() {
                return give_back_at;
            }
            if self.0.changed().await.is_err() {
                // The handle was dropped: the relay runs on, with nobody left to stop it.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Returns when what is still being published must be given back. Cancellation safe.
    pub(crate) async fn give_back(&mut self) {
        let at = self.draining().await;
        sleep_until(at).await;
    }
}
