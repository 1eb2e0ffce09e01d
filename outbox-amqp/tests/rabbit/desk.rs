//! A consumer of one test: a handler that does as it is told by the message, and what it has seen.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use outbox_amqp::{AmqpConfig, AmqpConsumer, AmqpConsumerConfig, SubscriberHandle};
use outbox_core::consumer::{ConsumerConfig, Delivery, HandlerError, NoReceipts, handler_fn};
use outbox_core::memory::MemoryDedup;
use outbox_core::{Consumer, DedupStore, Message, Publisher, ReceiptSink, RetryPolicy};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use crate::lab::{Lab, header, uri};

pub(crate) const GROUP: &str = "points";

/// Polls until `condition` holds.
pub(crate) async fn until(what: &str, condition: impl Fn() -> bool) {
    let patience = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < patience, "in vain: {what}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// What a handler does, written in the message's payload.
pub(crate) fn order(biz_id: &str, act: Value) -> Message {
    Message::json("order.created", biz_id, &act).unwrap()
}

pub(crate) fn fine(biz_id: &str) -> Message {
    order(biz_id, json!({}))
}

#[derive(Clone)]
pub(crate) struct Desk {
    /// `biz_id` and attempt of each run, as it began.
    begun: Arc<Mutex<Vec<(String, u32)>>>,
    ended: Arc<Mutex<Vec<String>>>,
    /// Handlers told to wait here, do.
    pub(crate) gate: Arc<Semaphore>,
    running: Arc<Mutex<(usize, usize)>>,
}

impl Desk {
    pub(crate) fn new() -> Self {
        Self {
            begun: Arc::default(),
            ended: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
            running: Arc::default(),
        }
    }

    pub(crate) fn begun(&self) -> Vec<(String, u32)> {
        self.begun.lock().unwrap().clone()
    }

    /// `biz_id`s of the runs, as they began.
    pub(crate) fn begun_ids(&self) -> Vec<String> {
        self.begun().into_iter().map(|(id, _)| id).collect()
    }

    /// `biz_id`s of what was handled.
    pub(crate) fn handled(&self) -> Vec<String> {
        self.ended.lock().unwrap().clone()
    }

    /// The most that ran at once.
    pub(crate) fn peak(&self) -> usize {
        self.running.lock().unwrap().1
    }

    pub(crate) fn consumer(&self) -> Consumer {
        self.consumer_with(MemoryDedup::new(), NoReceipts)
    }

    pub(crate) fn consumer_with(&self, dedup: impl DedupStore, receipts: impl ReceiptSink) -> Consumer {
        self.forgetful(receipts).with_dedup(dedup)
    }

    /// A consumer without a dedup store.
    pub(crate) fn forgetful(&self, receipts: impl ReceiptSink) -> Consumer {
        let desk = self.clone();
        let handler = handler_fn(move |delivery: Delivery<Value>| {
            let desk = desk.clone();
            async move { desk.handle(delivery).await }
        });
        Consumer::new(GROUP, handler, receipts).with_config(quick())
    }

    async fn handle(&self, delivery: Delivery<Value>) -> Result<(), HandlerError> {
        self.begun.lock().unwrap().push((delivery.biz_id().to_owned(), delivery.attempt()));
        let _running = Running::new(&self.running);
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
        if act["panics"] == true {
            panic!("out of its mind");
        }
        if act["fails"].as_u64().is_some_and(|times| u64::from(delivery.attempt()) <= times) {
            let delay = Duration::from_millis(act["delay"].as_u64().unwrap_or(300));
            return Err(HandlerError::retry_after(delay, "out of stock"));
        }
        self.ended.lock().unwrap().push(delivery.biz_id().to_owned());
        Ok(())
    }
}

struct Running<'a>(&'a Mutex<(usize, usize)>);

impl<'a> Running<'a> {
    fn new(counts: &'a Mutex<(usize, usize)>) -> Self {
        let mut guard = counts.lock().unwrap();
        guard.0 += 1;
        guard.1 = guard.1.max(guard.0);
        Self(counts)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap().0 -= 1;
    }
}

/// Three attempts, and little patience.
pub(crate) fn quick() -> ConsumerConfig {
    let retry =
        RetryPolicy::default().with_steps([Duration::from_millis(300)]).with_jitter(0.0).with_max_attempts(3);
    ConsumerConfig::default()
        .with_retry(retry)
        .with_lease(Duration::from_secs(2))
        .with_later(Duration::from_millis(100))
        .with_patience(Duration::from_millis(200))
}

/// Starts a consumer of `queue`, and waits until it is subscribed.
pub(crate) async fn consume(queue: &str, consumer: Consumer, config: AmqpConsumerConfig) -> SubscriberHandle {
    consume_at(&uri(), queue, consumer, config).await
}

pub(crate) async fn consume_at(
    uri: &str,
    queue: &str,
    consumer: Consumer,
    config: AmqpConsumerConfig,
) -> SubscriberHandle {
    let amqp = AmqpConfig::new(uri).unwrap();
    let handle = AmqpConsumer::new(amqp, queue, consumer).with_config(config).spawn();
    handle.subscribed().await;
    handle
}

pub(crate) async fn publish(lab: &Lab, messages: &[Message]) {
    for result in lab.publisher().publish_batch(messages).await {
        result.unwrap();
    }
}

/// Ends a consumer that has nothing left to do, and sees that its queue is empty.
pub(crate) async fn end(lab: &Lab, queue: &str, handle: SubscriberHandle) {
    let report = handle.shutdown(Duration::from_secs(5)).await;
    assert!(report.is_clean(), "{report:?}");
    let left = lab.get(queue).await.map(|left| header(&left.properties, "outbox-biz-id"));
    assert_eq!(left, None, "left in the queue; {report:?}");
}
