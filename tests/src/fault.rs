use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Claim, ClaimRequest, Claimed, Clock, Filter, Message, OutboxStore, PublishError, Publisher, Receipt,
    ReceiptReport, Requeued, Row, RowId, Settled, Settlement, Stats, StoreError,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

/// A place between two steps of the relay or of a consumer, where a process can die or stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultPoint {
    /// The rows are claimed in the database, and the relay does not know it yet.
    AfterClaim,
    /// The relay has decided to publish, and nothing has gone out.
    BeforePublish,
    /// The broker has confirmed, and the relay does not know it yet.
    AfterPublish,
    /// The relay knows what the broker said, and the database does not.
    BeforeSettle,
    /// The outcomes are in the database, and the relay does not know it yet.
    AfterSettle,
    /// The consumer may handle the message, and the handler has done nothing.
    BeforeHandler,
    /// The effect has happened, and no marker says so. With an inbox neither is committed.
    AfterEffect,
    /// The marker says that the message was handled, and the producer has not been told.
    AfterMarker,
    /// The receipt is on its way, and the delivery is not acknowledged.
    AfterReceipt,
}

/// Stops the first call that comes to one point, says so, and lets it go on when told to. Clones are the
/// same fault.
#[derive(Clone)]
pub struct Fault {
    point: Option<FaultPoint>,
    passed: Arc<AtomicBool>,
    gate: Arc<Semaphore>,
    say: Arc<dyn Fn(String) + Send + Sync>,
}

impl Fault {
    /// A fault at this point, or none; `say` gets a line for everything a test may wait for.
    pub fn new(point: Option<FaultPoint>, say: impl Fn(String) + Send + Sync + 'static) -> Self {
        let (passed, gate) = (Arc::default(), Arc::new(Semaphore::new(0)));
        Self { point, passed, gate, say: Arc::new(say) }
    }

    /// Lets the call that stopped go on.
    pub fn go_on(&self) {
        self.gate.add_permits(1);
    }

    pub(crate) async fn at(&self, point: FaultPoint, rows: usize) {
        if self.point != Some(point) || rows == 0 || self.passed.swap(true, Ordering::SeqCst) {
            return;
        }
        (self.say)(format!("fault {point:?} {rows}"));
        let _ = self.gate.acquire().await;
    }
}

/// A store with the points of a claim and of a settlement.
pub struct FaultyStore<S> {
    store: S,
    fault: Fault,
}

impl<S> FaultyStore<S> {
    /// `store` with this fault.
    pub fn new(store: S, fault: Fault) -> Self {
        Self { store, fault }
    }
}

#[async_trait]
impl<S: OutboxStore> OutboxStore for FaultyStore<S> {
    fn clock(&self) -> &dyn Clock {
        self.store.clock()
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        let claimed = self.store.claim(request).await?;
        self.fault.at(FaultPoint::AfterClaim, claimed.len()).await;
        Ok(claimed)
    }

    async fn renew(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError> {
        self.store.renew(claims, lease).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        self.fault.at(FaultPoint::BeforeSettle, settlements.len()).await;
        let settled = self.store.settle(settlements).await?;
        (self.fault.say)(format!("settled {} lost {}", settled.applied, settled.lost));
        self.fault.at(FaultPoint::AfterSettle, settlements.len()).await;
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

/// A publisher with the points of a publication.
pub struct FaultyPublisher<P> {
    publisher: P,
    fault: Fault,
}

impl<P> FaultyPublisher<P> {
    /// `publisher` with this fault.
    pub fn new(publisher: P, fault: Fault) -> Self {
        Self { publisher, fault }
    }
}

#[async_trait]
impl<P: Publisher> Publisher for FaultyPublisher<P> {
    async fn publish(&self, message: &Message) -> Result<(), PublishError> {
        self.fault.at(FaultPoint::BeforePublish, 1).await;
        let result = self.publisher.publish(message).await;
        self.fault.at(FaultPoint::AfterPublish, 1).await;
        result
    }

    async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        self.fault.at(FaultPoint::BeforePublish, messages.len()).await;
        let results = self.publisher.publish_batch(messages).await;
        self.fault.at(FaultPoint::AfterPublish, messages.len()).await;
        results
    }

    async fn ready(&self) -> Result<(), PublishError> {
        self.publisher.ready().await
    }

    async fn close(&self) -> Result<(), PublishError> {
        self.publisher.close().await
    }
}
