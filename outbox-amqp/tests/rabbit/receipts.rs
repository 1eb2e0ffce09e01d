//! Receipts through the broker: from a consumer's sink to the producer's table.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use lapin::BasicProperties;
use outbox_amqp::{
    AmqpConfig, AmqpConsumerConfig, AmqpReceiptSink, ReceiptListener, ReceiptListenerConfig, SubscriberHandle,
};
use outbox_core::memory::{MemoryDedup, MemoryStore, Operation, StoreFault};
use outbox_core::{
    Claim, ClaimMode, ClaimRequest, Claimed, Clock, Enqueue, Filter, Message, OutboxStore, Outcome, Policies,
    Policy, Receipt, ReceiptReport, ReceiptSink, Requeued, Row, RowId, Settled, Settlement, Stats, Status,
    StoreError, StoreErrorKind,
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::desk::{Desk, GROUP, consume, fine, order, publish, until};
use crate::lab::{Lab, header, uri};
use crate::proxy::Proxy;

/// A producer's table that notes how it is called, and refuses what a real one would: a text with a NUL.
#[derive(Clone)]
struct Table {
    memory: MemoryStore,
    calls: Arc<Mutex<Vec<usize>>>,
}

impl Table {
    fn new() -> Self {
        let policies = Policies::new(Policy::default().with_required_groups([GROUP]));
        Self { memory: MemoryStore::new().with_policies(policies), calls: Arc::default() }
    }

    /// Rows that the broker has confirmed.
    async fn with_sent(self, messages: &[Message]) -> Self {
        let mut tx = self.memory.begin();
        self.memory.enqueue(&mut tx, messages).await.unwrap();
        tx.commit().await.unwrap();
        let (limit, lease) = (messages.len(), Duration::from_secs(60));
        let request = ClaimRequest { limit, lease, mode: ClaimMode::Ordinary { suspect_after: 9 } };
        let claimed = self.memory.claim(&request).await.unwrap();
        let confirmed = || Outcome::Confirmed { required_groups: vec![GROUP.into()], ack_timeout: lease };
        let settle = |row: &Claimed| Settlement { claim: row.claim, outcome: confirmed() };
        self.memory.settle(&claimed.iter().map(settle).collect::<Vec<_>>()).await.unwrap();
        self
    }

    fn completed(&self) -> usize {
        self.memory.snapshot().values().filter(|row| row.status == Status::Completed).count()
    }

    fn calls(&self) -> Vec<usize> {
        self.calls.lock().unwrap().clone()
    }
}

#[async_trait]
impl OutboxStore for Table {
    fn clock(&self) -> &dyn Clock {
        self.memory.clock()
    }
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.memory.claim(request).await
    }
    async fn renew(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError> {
        self.memory.renew(claims, lease).await
    }
    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        self.memory.settle(settlements).await
    }
    async fn record_receipts(&self, receipts: &[Receipt]) -> Result<ReceiptReport, StoreError> {
        self.calls.lock().unwrap().push(receipts.len());
        if receipts.iter().any(|receipt| receipt.group.contains('\0')) {
            return Err(StoreError::new(StoreErrorKind::Other, "invalid byte sequence"));
        }
        self.memory.record_receipts(receipts).await
    }
    async fn requeue(&self, id: RowId, claim_no: u64) -> Result<Requeued, StoreError> {
        self.memory.requeue(id, claim_no).await
    }
    async fn find(&self, filter: &Filter) -> Result<Vec<Row>, StoreError> {
        self.memory.find(filter).await
    }
    async fn stats(&self) -> Result<Stats, StoreError> {
        self.memory.stats().await
    }
}

fn messages(n: usize) -> Vec<Message> {
    (0..n).map(|i| fine(&i.to_string())).collect()
}

fn receipts(messages: &[Message]) -> Vec<Receipt> {
    messages.iter().map(|message| Receipt::handled(message.msg_id(), GROUP, 1)).collect()
}

fn sink(queue: &str) -> AmqpReceiptSink {
    AmqpReceiptSink::new(AmqpConfig::new(uri()).unwrap(), queue)
}

async fn listen(queue: &str, table: &Table) -> SubscriberHandle {
    listen_with(queue, table, ReceiptListenerConfig::default()).await
}

async fn listen_with(queue: &str, table: &Table, config: ReceiptListenerConfig) -> SubscriberHandle {
    let config = config.without_declaring();
    let amqp = AmqpConfig::new(uri()).unwrap();
    let handle = ReceiptListener::new(amqp, queue, table.clone()).with_config(config).spawn();
    handle.subscribed().await;
    handle
}

/// A queue for receipts, and one for its dead letters.
async fn queues(lab: &mut Lab) -> (String, String) {
    let queue = lab.queue("receipts").await;
    let dead = lab.companion(&format!("{queue}.dead")).await;
    (queue, dead)
}

async fn end(lab: &Lab, queue: &str, handle: SubscriberHandle) {
    let report = handle.shutdown(Duration::from_secs(5)).await;
    assert!(report.is_clean(), "{report:?}");
    assert!(lab.get(queue).await.is_none(), "something is left in the queue");
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_receipts_complete_their_rows_many_in_one_call() {
    let mut lab = Lab::new("receipts").await;
    let (queue, _) = queues(&mut lab).await;
    let messages = messages(450);
    let table = Table::new().with_sent(&messages).await;
    sink(&queue).record(&receipts(&messages)).await.unwrap();
    let handle = listen(&queue, &table).await;
    until("all are completed", || table.completed() == 450).await;
    assert!(table.calls().len() <= 6, "{:?}", table.calls());
    assert!(table.calls().iter().all(|size| *size <= 100), "{:?}", table.calls());

    let began = Instant::now();
    let more = receipts(&messages[..3]);
    for _ in 0..3 {
        sink(&queue).record(&more).await.unwrap();
    }
    let seen = || table.calls().iter().sum::<usize>();
    until("repeated ones are taken", || seen() == 459).await;
    assert!(began.elapsed() < Duration::from_secs(2));
    assert_eq!(table.completed(), 450);
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_receipts_wait_in_the_broker_while_the_store_is_away() {
    let mut lab = Lab::new("store-away").await;
    let (queue, dead) = queues(&mut lab).await;
    let messages = messages(150);
    let table = Table::new().with_sent(&messages).await;
    let fault = StoreFault::After(StoreErrorKind::Unavailable);
    table.memory.fail_next(
        usize::MAX,
        Operation::RecordReceipts,
        StoreFault::Before(StoreErrorKind::Unavailable),
    );
    let handle = listen(&queue, &table).await;
    sink(&queue).record(&receipts(&messages)).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    assert!((2..20).contains(&table.calls().len()), "{:?} in two seconds", table.calls());
    let report = handle.shutdown(Duration::from_secs(2)).await;
    assert_eq!((report.answered, report.returned), (0, 150), "{report:?}");
    let handle = listen(&queue, &table).await;
    sleep(Duration::from_millis(200)).await;
    table.memory.heal();
    table.memory.fail_next(2, Operation::RecordReceipts, fault);
    until("all are completed", || table.completed() == 150).await;
    until("and acknowledged", || table.calls().iter().rev().take_while(|n| **n > 0).count() > 2).await;
    sleep(Duration::from_millis(500)).await;
    end(&lab, &queue, handle).await;
    assert!(lab.get(&dead).await.is_none());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_bad_receipts_go_to_the_dead_letters_and_hold_up_no_others() {
    let mut lab = Lab::new("bad-receipts").await;
    let (queue, dead) = queues(&mut lab).await;
    let messages = messages(60);
    let table = Table::new().with_sent(&messages).await;
    let mut all = receipts(&messages);
    all.insert(20, Receipt::handled("m", "nul\0", 1));
    all.insert(40, Receipt::handled("m", "\0", 1));
    sink(&queue).record(&all).await.unwrap();
    for body in [
        "no JSON",
        r#"{"version":9}"#,
        r#"{"version":1,"msg_id":"of-nobody","group":"x","verdict":"handled"}"#,
    ] {
        let (exchange, key) = (lab.exchange.as_str().into(), "receipts".into());
        let properties = BasicProperties::default();
        lab.channel
            .basic_publish(exchange, key, Default::default(), body.as_bytes(), properties)
            .await
            .unwrap();
    }
    let handle = listen(&queue, &table).await;
    until("all are completed", || table.completed() == 60).await;
    end(&lab, &queue, handle).await;
    let mut reasons = Vec::new();
    while let Some(letter) = lab.get(&dead).await {
        reasons.push(header(&letter.properties, "outbox-dead-reason"));
    }
    reasons.sort();
    assert_eq!(
        reasons,
        [
            "a receipt of version 9, which needs a newer listener",
            "invalid byte sequence",
            "invalid byte sequence",
            "no receipt: Syntax error",
        ]
    );
    assert!(table.calls().len() < 40, "{:?}", table.calls());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_batch_full_of_bad_receipts_holds_up_no_others() {
    let mut lab = Lab::new("bad-batch").await;
    let (queue, dead) = queues(&mut lab).await;
    let messages = messages(4);
    let table = Table::new().with_sent(&messages).await;
    let bad: Vec<Receipt> = (0..5).map(|_| Receipt::handled("m", "\0", 1)).collect();
    sink(&queue).record(&bad).await.unwrap();
    let handle = listen_with(&queue, &table, ReceiptListenerConfig::default().with_batch(5)).await;
    until("they were tried", || table.calls().len() > 9).await;
    assert!(lab.get(&dead).await.is_none(), "perhaps it is the store");
    sink(&queue).record(&receipts(&messages)).await.unwrap();
    until("the others are completed", || table.completed() == 4).await;
    end(&lab, &queue, handle).await;
    let mut buried = 0;
    while lab.get(&dead).await.is_some() {
        buried += 1;
    }
    assert_eq!(buried, 5);
    assert!(table.calls().iter().all(|size| *size <= 5), "{:?}", table.calls());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_store_that_takes_nothing_gets_no_receipt_buried() {
    let mut lab = Lab::new("broken-store").await;
    let (queue, dead) = queues(&mut lab).await;
    let messages = messages(5);
    let table = Table::new().with_sent(&messages).await;
    table.memory.fail_next(usize::MAX, Operation::RecordReceipts, StoreFault::Before(StoreErrorKind::Other));
    sink(&queue).record(&receipts(&messages)).await.unwrap();
    let handle = listen(&queue, &table).await;
    until("it was tried twice", || table.calls().iter().filter(|size| **size == 5).count() >= 2).await;
    assert!(lab.get(&dead).await.is_none());
    table.memory.heal();
    until("all are completed", || table.completed() == 5).await;
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_listener_that_crashes_and_loses_its_connection_loses_no_receipt() {
    let mut lab = Lab::new("crashing-listener").await;
    let (queue, _) = queues(&mut lab).await;
    let messages = messages(400);
    let table = Table::new().with_sent(&messages).await;
    let proxy = Proxy::start().await;
    let all = receipts(&messages);
    let sending = tokio::spawn(async move {
        let sink = sink(&queue);
        for part in all.chunks(10) {
            sink.record(part).await.unwrap();
            sleep(Duration::from_millis(5)).await;
        }
        queue
    });
    let queue = lab.queues()[0].clone();
    for round in 0..8 {
        let config = ReceiptListenerConfig::default().without_declaring().with_wait(Duration::from_millis(5));
        let amqp = AmqpConfig::new(proxy.uri()).unwrap();
        let handle = ReceiptListener::new(amqp, &queue, table.clone()).with_config(config).spawn();
        handle.subscribed().await;
        sleep(Duration::from_millis(10 + 7 * round)).await;
        proxy.cut();
        handle.abort();
    }
    let handle = listen(&queue, &table).await;
    sending.await.unwrap();
    until("all are completed", || table.completed() == 400).await;
    sleep(Duration::from_millis(300)).await;
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_message_is_acknowledged_only_when_its_receipt_is_stored() {
    let mut lab = Lab::new("receipt-first").await;
    let queue = lab.queue("order.created").await;
    let (slips, _) = queues(&mut lab).await;
    let mut proxy = Proxy::start().await;
    proxy.refuse().await;
    let messages = [fine("0"), order("1", json!({"rejects": true}))];
    let table = Table::new().with_sent(&messages).await;
    publish(&lab, &with_claims(&messages)).await;
    let receipts = AmqpReceiptSink::new(
        AmqpConfig::new(proxy.uri()).unwrap().with_connect_timeout(Duration::from_millis(200)),
        &slips,
    );
    let error = receipts.record(&[Receipt::handled("m", GROUP, 1)]).await.unwrap_err();
    assert!(error.to_string().contains("1 of 1 were not stored"), "{error}");
    let desk = Desk::new();
    let consumer = desk.consumer_with(MemoryDedup::new(), receipts);
    let handle = consume(&queue, consumer, AmqpConsumerConfig::default()).await;
    until("both ran", || desk.begun().len() >= 2).await;
    sleep(Duration::from_millis(800)).await;
    let dead = format!("{queue}.dead");
    assert!(lab.get(&dead).await.is_none(), "the producer was not told yet");
    proxy.accept().await;
    let listener = listen(&slips, &table).await;
    until("the one is completed", || table.completed() == 1).await;
    let failed = || table.memory.state(messages[1].msg_id()).unwrap().status == Status::Failed;
    until("the other is failed", failed).await;
    assert_eq!(desk.handled(), ["0"], "once");
    until("nothing is held", || handle.is_subscribed()).await;
    assert_eq!(lab.drain(&dead, 1).await, ["1"]);
    let report = handle.shutdown(Duration::from_secs(3)).await;
    assert!(report.is_clean() && report.returned == 0, "{report:?}");
    end(&lab, &slips, listener).await;
    lab.end().await;
}

/// As a relay publishes them at the first claim.
fn with_claims(messages: &[Message]) -> Vec<Message> {
    let claimed = |message: &Message| {
        Message::from_stored(outbox_core::StoredMessage {
            msg_id: message.msg_id().into(),
            biz_type: message.biz_type().into(),
            biz_id: message.biz_id().into(),
            payload: message.payload().clone(),
            claim_no: 1,
            ..crate::lab::stored("")
        })
    };
    messages.iter().map(claimed).collect()
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_receipt_that_no_queue_takes_is_an_error() {
    let error = sink("test.no-such-queue").record(&[Receipt::handled("m", GROUP, 1)]).await.unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("no queue takes"), "{cause}");
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_listener_declares_its_queues() {
    let lab = Lab::new("listener-declares").await;
    let queue = crate::lab::unique("receipts");
    let messages = messages(1);
    let table = Table::new().with_sent(&messages).await;
    let handle = ReceiptListener::new(AmqpConfig::new(uri()).unwrap(), &queue, table.clone()).spawn();
    handle.subscribed().await;
    sink(&queue).record(&receipts(&messages)).await.unwrap();
    until("it is completed", || table.completed() == 1).await;
    end(&lab, &queue, handle).await;
    let publish = Default::default();
    let (exchange, properties) = ("".into(), BasicProperties::default());
    lab.channel.basic_publish(exchange, queue.as_str().into(), publish, b"x", properties).await.unwrap();
    let letter = loop {
        if let Some(letter) = lab.channel.basic_get(queue.as_str().into(), Default::default()).await.unwrap()
        {
            break letter;
        }
    };
    letter.reject(Default::default()).await.unwrap();
    let dead = format!("{queue}.dead");
    let given_up = async { while lab.get(&dead).await.is_none() {} };
    timeout(Duration::from_secs(20), given_up).await.expect("with the dead letters");
    for name in [dead, queue] {
        lab.channel.queue_delete(name.as_str().into(), Default::default()).await.unwrap();
    }
    lab.end().await;
}
