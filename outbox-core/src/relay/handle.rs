use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use super::config::LONGEST;
use super::context::Context;
use super::health::RelayHealth;
use super::phase::Phase;

/// A running relay. Dropping the handle leaves it running until the runtime ends.
#[derive(Debug)]
#[must_use = "without its handle a relay cannot be shut down"]
pub struct RelayHandle {
    pub(super) context: ContextHandle,
    pub(super) phase: watch::Sender<Phase>,
    pub(super) waker: Waker,
    pub(super) tasks: Tasks,
}

/// The relay's tasks, in the order in which rows pass through them.
#[derive(Debug)]
pub(super) struct Tasks {
    pub(super) sweeping: JoinHandle<()>,
    pub(super) publishing: JoinHandle<()>,
    pub(super) settling: JoinHandle<()>,
}

pub(super) struct ContextHandle(pub(super) Arc<Context>);

impl std::fmt::Debug for ContextHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("config", &self.0.config).finish_non_exhaustive()
    }
}

impl RelayHandle {
    /// Tells the relay that there may be something to publish; call it after a commit.
    pub fn wake(&self) {
        self.waker.wake();
    }

    /// A [`Waker`] to hand out to those who commit.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// How it is doing.
    #[must_use]
    pub fn health(&self) -> RelayHealth {
        let context = &self.context.0;
        RelayHealth {
            sweeping: !self.tasks.sweeping.is_finished(),
            publishing: !self.tasks.publishing.is_finished(),
            settling: !self.tasks.settling.is_finished(),
            store_available: context.pulse.is_store_available(),
            breaker: context.breaker.state(),
            in_flight: context.pulse.in_flight(),
        }
    }

    /// Stops claiming, finishes what is being published, gives back what is not, and writes the outcomes.
    /// What the broker has not answered by four fifths of `within` is given back uncharged; it may be with
    /// the broker. What cannot be written within the bound waits for its lease to run out.
    ///
    /// Dropping the future leaves the relay winding up by itself.
    pub async fn shutdown(mut self, within: Duration) -> ShutdownReport {
        let (now, within) = (Instant::now(), within.min(LONGEST));
        let end = now + within;
        self.phase.send_replace(Phase::Draining { give_back_at: now + within * 4 / 5 });
        let mut ended = true;
        for task in [&mut self.tasks.sweeping, &mut self.tasks.publishing, &mut self.tasks.settling] {
            ended = ended && timeout_at(end, task).await.is_ok();
        }
        let Self { context, tasks, .. } = self;
        let report = ShutdownReport { left_claimed: context.0.pulse.in_flight(), ended };
        tasks.abort();
        report
    }

    /// Stops everything at once, as a crash would: claims stay until their leases run out. For tests and
    /// demonstrations.
    pub fn abort(self) {
        self.tasks.abort();
    }
}

impl Tasks {
    fn abort(self) {
        for task in [self.sweeping, self.publishing, self.settling] {
            task.abort();
        }
    }
}

/// Cuts the pause between two sweeps short. Cheap to clone and to call.
#[derive(Debug, Clone)]
pub struct Waker(pub(super) Arc<Notify>);

impl Waker {
    /// There may be something to publish.
    pub fn wake(&self) {
        self.0.notify_one();
    }
}

/// How a shutdown went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShutdownReport {
    /// Rows whose outcome could not be written within the bound: they go again when their lease has run out.
    pub left_claimed: usize,
    /// Whether every task came to its end. If not, a call to the store or the broker had not come back, and a
    /// claim that was under way may leave rows to wait for their lease as well.
    pub ended: bool,
}

impl ShutdownReport {
    /// Nothing was left behind.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.left_claimed == 0 && self.ended
    }
}
