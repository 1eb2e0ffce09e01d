//! Fixtures of the in-memory backends.
#![allow(dead_code, reason = "each test program uses some of them")]

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::conformance::{DedupFixture, PublisherFixture, Received, Setup, StoreFixture};
use outbox_core::memory::{MemoryBroker, MemoryDedup, MemoryStore, MemoryTx, Subscription};
use outbox_core::{Enqueue, ManualClock, Message, OutboxStore, StoreError, Timestamp, wire};

/// A fixture around `S`, which stands between the suite and the memory store.
pub(crate) struct MemoryFixture<S = MemoryStore> {
    store: Arc<S>,
    other: Arc<S>,
    memory: MemoryStore,
    undecided: MemoryStore,
}

impl MemoryFixture {
    pub(crate) async fn new(setup: Setup) -> Self {
        Self::around(setup, |store| store)
    }
}

impl<S> MemoryFixture<S> {
    pub(crate) fn around(setup: Setup, wrap: impl Fn(MemoryStore) -> S) -> Self {
        let undecided = MemoryStore::new().with_clock(setup.clock).with_limits(setup.limits);
        let memory = undecided.clone().with_policies(setup.policies);
        let (store, other) = (Arc::new(wrap(memory.clone())), Arc::new(wrap(memory.clone())));
        Self { store, other, memory, undecided }
    }
}

impl<S: OutboxStore + Enqueue<Tx = MemoryTx>> StoreFixture for MemoryFixture<S> {
    type Store = S;
    type Tx = Box<MemoryTx>;
    const CONCURRENT_WRITERS: bool = true;

    fn store(&self) -> Arc<S> {
        Arc::clone(&self.store)
    }

    fn other(&self) -> Arc<S> {
        Arc::clone(&self.other)
    }

    async fn begin(&self) -> Box<MemoryTx> {
        Box::new(self.memory.begin())
    }

    async fn commit(&self, mut tx: Box<MemoryTx>) -> Result<(), StoreError> {
        tx.commit().await
    }

    async fn rollback(&self, mut tx: Box<MemoryTx>) {
        tx.rollback();
    }

    async fn enqueue_outside(&self, message: &Message) -> Option<Result<(), StoreError>> {
        let mut ended = self.memory.begin();
        ended.rollback();
        Some(self.store.enqueue(&mut ended, std::slice::from_ref(message)).await)
    }

    async fn insert_undecided(&self, message: &Message, now: Timestamp) {
        assert_eq!(now, self.undecided.clock().now());
        let mut tx = self.undecided.begin();
        self.undecided.enqueue(&mut tx, std::slice::from_ref(message)).await.unwrap();
        tx.commit().await.unwrap();
    }
}

pub(crate) struct BrokerFixture {
    broker: Arc<MemoryBroker>,
    queue: Subscription,
}

impl BrokerFixture {
    pub(crate) async fn new() -> Self {
        let broker = MemoryBroker::new().with_max_payload(1024 * 1024);
        broker.fail("nowhere", outbox_core::memory::BrokerFault::Unroutable);
        Self { queue: broker.subscribe(), broker: Arc::new(broker) }
    }
}

impl PublisherFixture for BrokerFixture {
    type Publisher = MemoryBroker;

    fn publisher(&self) -> Arc<MemoryBroker> {
        Arc::clone(&self.broker)
    }

    fn biz_type(&self) -> String {
        "order.created".to_owned()
    }

    fn unroutable(&self) -> Option<String> {
        Some("nowhere".to_owned())
    }

    fn too_large(&self) -> Option<usize> {
        Some(1024 * 1024 + 1)
    }

    /// Everything confirmed is in the queue already: nothing that comes later is waited for.
    async fn receive(&self) -> Option<Received> {
        let next = tokio::time::timeout(Duration::ZERO, self.queue.next());
        let delivery = next.await.ok()?;
        let message = delivery.message().clone();
        delivery.ack().then(|| Received {
            payload: message.payload().as_bytes().to_vec(),
            headers: wire::headers(&message).into_iter().map(|(name, v)| (name.to_owned(), v)).collect(),
            content_type: message.content_type().to_owned(),
        })
    }

    async fn go_away(&self) -> bool {
        self.broker.go_away();
        true
    }

    async fn come_back(&self) {
        self.broker.come_back();
    }
}

pub(crate) struct MemoryDedupFixture {
    store: Arc<MemoryDedup>,
    clock: ManualClock,
}

impl MemoryDedupFixture {
    pub(crate) async fn new() -> Self {
        let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
        Self { store: Arc::new(MemoryDedup::new().with_clock(clock.clone())), clock }
    }
}

impl DedupFixture for MemoryDedupFixture {
    type Store = MemoryDedup;

    fn store(&self) -> Arc<MemoryDedup> {
        Arc::clone(&self.store)
    }

    fn other(&self) -> Arc<MemoryDedup> {
        Arc::new(self.store.as_ref().clone())
    }

    fn short_lease(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn pass(&self, time: Duration) -> impl Future<Output = ()> + Send {
        self.clock.advance(time);
        std::future::ready(())
    }
}
