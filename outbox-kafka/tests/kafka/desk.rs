//! A consumer of one test: a handler that does as it is told by the message, and what it has seen.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outbox_core::consumer::{ConsumerConfig, Delivery, HandlerError, NoReceipts, handler_fn};
use outbox_core::memory::MemoryDedup;
use outbox_core::{Consumer, DedupStore, Message, Publisher, ReceiptSink, RetryPolicy};
use outbox_kafka::{KafkaConfig, KafkaConsumer, KafkaConsumerConfig, SubscriberHandle};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::lab::{Lab, servers, unique};

/// Polls until `condition` holds.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(40);
    while !condition() {
        assert!(Instant::now() < patience, "in vain: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// What the handler does is written in the payload.
pub(crate) fn order(topic: &str, key: &str, biz_id: impl ToString, act: Value) -> Message {
    let message = Message::json(topic, biz_id.to_string(), &act).unwrap();
    message.with_ordering_key(key).unwrap()
}

pub(crate) fn fine(topic: &str, key: &str, biz_id: impl ToString) -> Message {
    order(topic, key, biz_id, json!({}))
}

pub(crate) async fn publish(lab: &Lab, messages: &[Message]) {
    for result in lab.publisher().publish_batch(messages).await {
        result.unwrap();
    }
}

/// A consumer group and all that its members have seen.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) group: String,
    /// `biz_id` and attempt of each run, as it began.
    begun: Arc<Mutex<Vec<(String, u32)>>>,
    ended: Arc<Mutex<Vec<String>>>,
    /// Handlers told to wait here, do.
    pub(crate) gate: Arc<Semaphore>,
    dedup: Arc<MemoryDedup>,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self {
            group: unique("group"),
            begun: Arc::default(),
            ended: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            dedup: Arc::new(MemoryDedup::new()),
        }
    }

    pub(crate) fn begun(&self) -> Vec<(String, u32)> {
        self.begun.lock().unwrap().clone()
    }

    /// `biz_id`s of what was handled.
    pub(crate) fn handled(&self) -> Vec<String> {
        self.ended.lock().unwrap().clone()
    }

    /// What was handled, sorted: every number below `n` once, if all is well.
    pub(crate) fn handled_numbers(&self) -> Vec<usize> {
        let mut numbers: Vec<usize> = self.handled().iter().map(|id| id.parse().unwrap()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Forgets what was seen, as another process has not seen it. The dedup store stays.
    pub(crate) fn forget(&self) {
        self.begun.lock().unwrap().clear();
        self.ended.lock().unwrap().clear();
    }

    pub(crate) fn consumer(
        &self,
        dedup: Option<Arc<dyn DedupStore>>,
        receipts: impl ReceiptSink,
    ) -> Consumer {
        let desk = self.clone();
        let handler = handler_fn(move |delivery: Delivery<Value>| {
            let desk = desk.clone();
            async move { desk.handle(delivery).await }
        });
        let consumer = Consumer::new(&*self.group, handler, receipts).with_config(quick());
        match dedup {
            Some(dedup) => consumer.with_dedup(dedup),
            None => consumer,
        }
    }

    /// A member of the group that reads `topic`.
    pub(crate) async fn join(&self, topic: &str, config: KafkaConsumerConfig) -> SubscriberHandle {
        self.join_with(KafkaConfig::new(servers()).unwrap(), topic, config).await
    }

    pub(crate) async fn join_with(
        &self,
        kafka: KafkaConfig,
        topic: &str,
        config: KafkaConsumerConfig,
    ) -> SubscriberHandle {
        subscribed(
            KafkaConsumer::new(kafka, [topic], self.consumer(Some(self.dedup.clone()), NoReceipts)),
            config,
        )
        .await
    }

    /// As [`join`](Self::join), with receipts.
    pub(crate) async fn join_with_receipts(
        &self,
        topic: &str,
        receipts: impl ReceiptSink,
    ) -> SubscriberHandle {
        let consumer = self.consumer(Some(self.dedup.clone()), receipts);
        let kafka = KafkaConfig::new(servers()).unwrap();
        subscribed(KafkaConsumer::new(kafka, [topic], consumer), KafkaConsumerConfig::default()).await
    }

    /// As [`join`](Self::join), so that every delivery reaches the handler.
    pub(crate) async fn join_without_dedup(
        &self,
        topic: &str,
        config: KafkaConsumerConfig,
    ) -> SubscriberHandle {
        let kafka = KafkaConfig::new(servers()).unwrap();
        subscribed(KafkaConsumer::new(kafka, [topic], self.consumer(None, NoReceipts)), config).await
    }

    async fn handle(&self, delivery: Delivery<Value>) -> Result<(), HandlerError> {
        self.begun.lock().unwrap().push((delivery.biz_id().to_owned(), delivery.attempt()));
        let act = delivery.payload();
        if let Some(ms) = act["takes"].as_u64() {
            sleep(Duration::from_millis(ms)).await;
        }
        if act["waits"] == true {
            self.gate.acquire().await.unwrap().forget();
        }
        if act["rejects"] == true {
            return Err(HandlerError::reject("no such product"));
        }
        if act["fails"].as_u64().is_some_and(|times| u64::from(delivery.attempt()) <= times) {
            return Err(HandlerError::retry("out of stock"));
        }
        self.ended.lock().unwrap().push(delivery.biz_id().to_owned());
        Ok(())
    }
}

async fn subscribed(consumer: KafkaConsumer, config: KafkaConsumerConfig) -> SubscriberHandle {
    let handle = consumer.with_config(config).spawn();
    handle.subscribed().await;
    handle
}

/// Three attempts, and little patience.
fn quick() -> ConsumerConfig {
    let retry =
        RetryPolicy::default().with_steps([Duration::from_millis(300)]).with_jitter(0.0).with_max_attempts(3);
    ConsumerConfig::default()
        .with_retry(retry)
        .with_lease(Duration::from_secs(2))
        .with_later(Duration::from_millis(100))
}
