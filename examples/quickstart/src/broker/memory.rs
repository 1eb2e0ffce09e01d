use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use outbox::Publisher;
use outbox::memory::{MemoryBroker, Subscription};

use super::Broker;
use crate::deliveries::Deliveries;

pub struct InMemory {
    broker: MemoryBroker,
    subscription: Subscription,
}

impl InMemory {
    pub fn new() -> Self {
        let broker = MemoryBroker::new();
        let subscription = broker.subscribe();
        Self { broker, subscription }
    }
}

#[async_trait]
impl Broker for InMemory {
    fn name(&self) -> &'static str {
        "in memory"
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(self.broker.clone())
    }

    fn go_away(&self) {
        self.broker.go_away();
    }

    fn come_back(&self) {
        self.broker.come_back();
    }

    async fn consume(&self, deliveries: &Deliveries) -> Result<()> {
        loop {
            let delivery = self.subscription.next().await;
            deliveries.record(delivery.message().msg_id());
            delivery.ack();
        }
    }
}
