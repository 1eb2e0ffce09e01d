use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use outbox_core::{
    Claim, ClaimRequest, Claimed, Clock, Filter, OutboxStore, Receipt, ReceiptReport, Requeued, Row, RowId,
    Settled, Settlement, Stats, StoreError,
};
use tokio::sync::watch;
use tokio::time::timeout;

/// A store that counts what it settles or completes, so that nobody has to ask the database during a measurement.
pub(crate) struct Tally<S> {
    store: S,
    sums: watch::Sender<Sums>,
}

/// Rows that came to their end, and the calls in which they did.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    ended: usize,
    calls: usize,
}

/// What a [`Tally`] has counted.
pub(crate) struct Count(watch::Receiver<Sums>);

const STALLED: Duration = Duration::from_secs(60);

impl<S> Tally<S> {
    pub(crate) fn of(store: S) -> (Self, Count) {
        let (sums, count) = watch::channel(Sums::default());
        (Self { store, sums }, Count(count))
    }
}

impl Count {
    /// Rows per call.
    pub(crate) fn per_call(&self) -> f64 {
        let Sums { ended, calls } = *self.0.borrow();
        ended as f64 / calls.max(1) as f64
    }

    /// Returns when so many have come to their end; fails when none does for a minute.
    pub(crate) async fn reach(&mut self, goal: usize) -> Result<()> {
        loop {
            let ended = self.0.borrow_and_update().ended;
            if ended >= goal {
                return Ok(());
            }
            timeout(STALLED, self.0.changed())
                .await
                .with_context(|| format!("nothing moves any more at {ended} of {goal} messages"))??;
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl<S: OutboxStore> OutboxStore for Tally<S> {
    fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.store.claim(request).await
    }
    async fn renew(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError> {
        self.store.renew(claims, lease).await
    }
    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let settled = self.store.settle(settlements).await?;
        self.sums.send_modify(|sums| {
            sums.ended += settled.applied;
            sums.calls += 1;
        });
        Ok(settled)
    }
    async fn record_receipts(&self, receipts: &[Receipt]) -> Result<ReceiptReport, StoreError> {
        let report = self.store.record_receipts(receipts).await?;
        self.sums.send_modify(|sums| {
            sums.ended += report.completed;
            sums.calls += 1;
        });
        Ok(report)
    }
    async fn requeue(&self, id: RowId, claim_no: u64) -> Result<Requeued, StoreError> {
        self.store.requeue(id, claim_no).await
    }
    async fn find(&self, filter: &Filter) -> Result<Vec<Row>, StoreError> {
        self.store.find(filter).await
    }
    async fn stats(&self) -> Result<Stats, StoreError> {
        self.store.stats().await
    }
}
