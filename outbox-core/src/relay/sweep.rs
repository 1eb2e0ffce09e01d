use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::backoff::Backoff;
use super::batch::Batch;
use super::breaker::BreakerState;
use super::context::Context;
use super::phase::PhaseWatch;
use super::ration::Ration;
use crate::claim::{ClaimMode, ClaimRequest, RowId};
use crate::store::StoreError;

/// A broker that says three times that it is ready, and each time not for the same message, has something
/// against the message: left uncharged, it would stop all others for ever.
const BLAME_AFTER: u32 = 2;

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
    ahead: Ahead,
    ration: Ration,
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
        let ration = Ration::new(config.batch, config.batch_bytes);
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
            ahead: Ahead::default(),
            ration,
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
        let limit = self.ration.rows();
        let Some(mut found) = self.claim_ordinary(limit).await else { return };
        if found == limit && Instant::now() < self.suspects_due {
            return;
        }
        found += self.claim_suspect().await.unwrap_or(0);
        if found > 0 {
            self.idle.reset();
        }
        if found < limit {
            let pause = self.idle.pause();
            self.rest(pause).await;
        }
    }

    async fn probe(&mut self) {
        let pause = self.probe.pause();
        self.pause(pause).await;
        let limit = self.context.config.publish_timeout;
        let ready = AssertUnwindSafe(async { self.context.publisher.ready().await }).catch_unwind();
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
        let Some(mut batch) = self.first_in_line().await else { return };
        let Some(id) = batch.rows.first().map(|row| row.claim.id) else {
            self.context.breaker.answered();
            return;
        };
        batch.blamed = self.ahead.sent(id) > BLAME_AFTER;
        let ended = batch.notify_end();
        self.hand_over(batch).await;
        drop(ended.await);
        if !self.context.breaker.is_failing() {
            self.probe.reset();
            self.ahead = Ahead::default();
        }
    }

    async fn first_in_line(&mut self) -> Option<Batch> {
        let suspect_after = self.context.config.suspect_after;
        let batch = self.claim(1, ClaimMode::Ordinary { suspect_after }).await?;
        if batch.len() > 0 {
            return Some(batch);
        }
        self.claim(1, ClaimMode::Suspects { suspect_after }).await
    }

    async fn claim_ordinary(&mut self, limit: usize) -> Option<usize> {
        let suspect_after = self.context.config.suspect_after;
        let batch = self.claim(limit, ClaimMode::Ordinary { suspect_after }).await?;
        self.ration.learn(&batch.rows);
        self.hand_over(batch).await
    }

    /// One suspect at a time, and the next only after this one has come to an end: if it kills this process,
    /// no other suspect is counted as claimed with it.
    async fn claim_suspect(&mut self) -> Option<usize> {
        let waiting = |end: &mut oneshot::Receiver<()>| end.try_recv() == Err(TryRecvError::Empty);
        if self.suspect.as_mut().is_some_and(waiting) {
            return Some(0);
        }
        let suspect_after = self.context.config.suspect_after;
        let mut batch = self.claim(1, ClaimMode::Suspects { suspect_after }).await?;
        let more = batch.len() > 0;
        self.suspect = more.then(|| batch.notify_end());
        self.suspects_due =
            Instant::now() + if more { Duration::ZERO } else { self.context.config.sweep_max };
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
        let Self { wake, phase, suspect, idle, .. } = self;
        tokio::select! {
            () = sleep(for_) => {}
            () = wake.notified() => idle.reset(),
            () = ended(suspect) => {}
            _ = phase.draining() => {}
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

/// Returns when the suspect that is under way has come to its end.
async fn ended(suspect: &mut Option<oneshot::Receiver<()>>) {
    match suspect {
        Some(end) => drop(end.await),
        None => std::future::pending().await,
    }
    *suspect = None;
}

/// The row that was last sent ahead while the breaker was half-open, and how often in a row.
#[derive(Debug, Default)]
struct Ahead {
    id: Option<RowId>,
    times: u32,
}

impl Ahead {
    fn sent(&mut self, id: RowId) -> u32 {
        self.times = if self.id == Some(id) { self.times + 1 } else { 1 };
        self.id = Some(id);
        self.times
    }
}
