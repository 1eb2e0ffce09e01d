use std::time::Duration;

use anyhow::{Context, Result};
use async_trait::async_trait;
use outbox_core::{
    Claim, ClaimRequest, Claimed, Clock, Filter, OutboxStore, Receipt, ReceiptReport, Requeued, Row, RowId,
    Settled, Settlement, Stats, StoreError,
};
use tokio::sync::watch;
use tokio::time::timeout;

/// A store that counts what is settled, so that nobody has to ask the database during a measurement.
pub(crate) struct Tally<S> {
    store: S,
    settled: watch::Sender<usize>,
}

/// How much was settled.
pub(crate) struct Count(watch::Receiver<usize>);

const STALLED: Duration = Duration::from_secs(60);

impl<S> Tally<S> {
    pub(crate) fn of(store: S) -> (Self, Count) {
        let (settled, count) = watch::channel(0);
        (Self { store, settled }, Count(count))
    }
}

impl Count {
    /// Returns when so much is settled; fails when nothing is for a minute.
    pub(crate) async fn reach(&mut self, goal: usize) -> Result<()> {
        loop {
            let settled = *self.0.borrow_and_update();
            if settled >= goal {
                return Ok(());
            }
            timeout(STALLED, self.0.changed())
                .await
                .with_context(|| format!("the relay stopped at {settled} of {goal} messages"))??;
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
        self.settled.send_modify(|sum| *sum += settled.applied);
        Ok(settled)
    }
    async fn record_receipts(&self, receipts: &[Receipt]) -> Result<ReceiptReport, StoreError> {
        self.store.record_receipts(receipts).await
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
