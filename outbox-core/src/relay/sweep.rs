use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::batch::Batch;
use super::breaker::BreakerState;
use super::context::Context;
use super::phase::PhaseWatch;
use crate::claim::{ClaimMode, ClaimRequest};
use crate::store::StoreError;

/// Claims due rows and hands them to be published.
pub(crate) struct Sweep {
    context: Arc<Context>,
    phase: PhaseWatch,
    wake: Arc<Notify>,
    batches: mpsc::Sender<Batch>,
    idle: Backoff,
    trouble: Backoff,
    probe: Backoff,
    suspects_due: Instant,
    suspect: Option<oneshot::Receiver<()>>,
}

impl Sweep {
    pub(crate) fn new(
        context: Arc<Context>,
        phase: PhaseWatch,
        wake: Arc<Notify>,
        batches: mpsc::Sender<Batch>,
    ) -> Self {
        let config = &context.config;
        let idle = Backoff::new(config.sweep_min, config.sweep_max);
        let trouble = Backoff::new(config.backoff_min, config.backoff_max);
        let probe = trouble.clone();
        Self {
            context,
            phase,
            wake,
            batches,
            idle,
            trouble,
            probe,
            suspects_due: Instant::now(),
            suspect: None,
        }
    }

    /// Runs until the relay winds up or nobody publishes any more.
    pub(crate) async fn run(mut self) {
        while !self.phase.is_draining() && !self.batches.is_closed() {
            match self.context.breaker.state() {
                BreakerState::Closed => self.sweep().await,
                BreakerState::Open => self.probe().await,
                BreakerState::HalfOpen => self.send_one_ahead().await,
            }
        }
    }

    async fn sweep(&mut self) {
        let batch = self.context.config.batch;
        let Some(mut found) = self.claim_ordinary(batch).await else { return };
        if found == batch && Instant::now() < self.suspects_due {
            return;
        }
        found += self.claim_suspect().await.unwrap_or(0);
        if found > 0 {
            self.idle.reset();
        }
        if found < batch {
            let pause = self.idle.pause();
            self.rest(pause).await;
        }
    }

    async fn probe(&mut self) {
        let pause = self.probe.pause();
        self.pause(pause).await;
        let limit = self.context.config.publish_timeout;
        let ready = AssertUnwindSafe(self.context.publisher.ready()).catch_unwind();
        tokio::select! {
            answer = timeout(limit, ready) => {
                if let Ok(Ok(Ok(()))) = answer {
                    self.context.breaker.half_open();
                }
            }
            _ = self.phase.draining() => {}
        }
    }

    /// Every answer of the broker to this one closes the breaker, and another failure opens it again.
    async fn send_one_ahead(&mut self) {
        let suspect_after = self.context.config.suspect_after;
        let Some(mut batch) = self.claim(1, ClaimMode::Ordinary { suspect_after }).await else { return };
        let ended = batch.notify_end();
        match self.hand_over(batch).await {
            Some(0) => self.context.breaker.answered(),
            _ => drop(ended.await),
        }
        if !self.context.breaker.is_failing() {
            self.probe.reset();
        }
    }

    async fn claim_ordinary(&mut self, limit: usize) -> Option<usize> {
        let suspect_after = self.context.config.suspect_after;
        let batch = self.claim(limit, ClaimMode::Ordinary { suspect_after }).await?;
        self.hand_over(batch).await
    }

    /// One suspect at a time, and the next only after this one has come to an end: if it kills this process,
    /// no other suspect is counted as claimed with it.
    async fn claim_suspect(&mut self) -> Option<usize> {
        if self.suspect.as_mut().is_some_and(|end| end.try_recv() == Err(oneshot::error::TryRecvError::Empty))
        {
            return Some(0);
        }
        self.suspects_due = Instant::now() + self.context.config.sweep_max;
        let suspect_after = self.context.config.suspect_after;
        let mut batch = self.claim(1, ClaimMode::Suspects { suspect_after }).await?;
        self.suspect = Some(batch.notify_end());
        self.hand_over(batch).await
    }

    async fn hand_over(&mut self, batch: Batch) -> Option<usize> {
        let found = batch.len();
        if found > 0 {
            self.context.pulse.took(found);
            self.batches.send(batch).await.ok()?;
        }
        Some(found)
    }

    async fn claim(&mut self, limit: usize, mode: ClaimMode) -> Option<Batch> {
        let lease = self.context.config.lease;
        let request = ClaimRequest { limit, lease, mode };
        // Taken before the call: the lease on the row cannot end before this one does.
        let lease_ends = Instant::now() + lease;
        match self.context.ask("claim", self.context.store.claim(&request)).await {
            Ok(rows) => {
                self.trouble.reset();
                metrics::counter!("outbox_claimed_total").increment(rows.len() as u64);
                Some(Batch::new(rows, lease_ends))
            }
            Err(error) => {
                self.recover(&error).await;
                None
            }
        }
    }

    async fn recover(&mut self, error: &StoreError) {
        tracing::debug!(error = error as &dyn std::error::Error, "claim failed");
        let pause = self.trouble.pause();
        self.pause(pause).await;
    }

    /// Rests until there may be something to do.
    async fn rest(&mut self, for_: Duration) {
        tokio::select! {
            () = sleep(for_) => {}
            () = self.wake.notified() => self.idle.reset(),
            _ = self.phase.draining() => {}
        }
    }

    /// Waits for something that no wake-up makes better.
    async fn pause(&mut self, for_: Duration) {
        tokio::select! {
            () = sleep(for_) => {}
            _ = self.phase.draining() => {}
        }
    }
}
