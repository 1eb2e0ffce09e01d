//! Receipts through the broker: from a consumer's sink to the producer's table.

use std::time::Duration;

use outbox_core::memory::{MemoryStore, Operation, StoreFault};
use outbox_core::{
    ClaimMode, ClaimRequest, Claimed, Enqueue, Message, OutboxStore, Outcome, Policies, Policy, Publisher,
    Receipt, ReceiptSink, Settlement, Status, StoreErrorKind,
};
use outbox_kafka::{KafkaReceiptSink, ReceiptListener, ReceiptListenerConfig, SubscriberHandle};
use serde_json::json;

use crate::desk::{Desk, fine, order, publish, until};
use crate::lab::{Lab, Reader, header};

const BOUND: Duration = Duration::from_secs(20);

/// A producer's table with rows that the broker has confirmed, and that wait for `group`.
async fn table(group: &str, messages: &[Message]) -> MemoryStore {
    let store =
        MemoryStore::new().with_policies(Policies::new(Policy::default().with_required_groups([group])));
    let mut tx = store.begin();
    store.enqueue(&mut tx, messages).await.unwrap();
    tx.commit().await.unwrap();
    let (limit, lease) = (messages.len(), Duration::from_secs(60));
    let request = ClaimRequest { limit, lease, mode: ClaimMode::Ordinary { suspect_after: 9 } };
    let claimed = store.claim(&request).await.unwrap();
    let confirmed = || Outcome::Confirmed { required_groups: vec![group.into()], ack_timeout: lease };
    let settle = |row: &Claimed| Settlement { claim: row.claim, outcome: confirmed() };
    store.settle(&claimed.iter().map(settle).collect::<Vec<_>>()).await.unwrap();
    store
}

fn count(store: &MemoryStore, status: Status) -> usize {
    store.snapshot().values().filter(|row| row.status == status).count()
}

fn receipts(messages: &[Message], group: &str) -> Vec<Receipt> {
    messages.iter().map(|message| Receipt::handled(message.msg_id(), group, 1)).collect()
}

fn messages(topic: &str, n: usize) -> Vec<Message> {
    (0..n).map(|i| fine(topic, &i.to_string(), i)).collect()
}

async fn listen(lab: &Lab, topic: &str, store: &MemoryStore) -> SubscriberHandle {
    let config = ReceiptListenerConfig::default().with_batch(40);
    let handle = ReceiptListener::new(lab.config(), topic, store.clone()).with_config(config).spawn();
    handle.subscribed().await;
    handle
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_receipts_of_a_consumer_complete_and_fail_the_producers_rows() {
    let mut lab = Lab::new();
    let desk = Desk::new();
    let (topic, back) = (lab.topic("orders", 3, &[]).await, lab.topic("receipts", 3, &[]).await);
    lab.make(&format!("{}.dead", desk.group), 1, &[]).await;
    let mut messages = messages(&topic, 30);
    messages.push(order(&topic, "bad", "bad", json!({"rejects": true})));
    let store = table(&desk.group, &messages).await;
    let sent: Vec<Message> =
        store.find(&Default::default()).await.unwrap().into_iter().map(|row| row.message).collect();
    publish(&lab, &sent).await;
    let listener = listen(&lab, &back, &store).await;
    let consumer = desk.join_with_receipts(&topic, KafkaReceiptSink::new(lab.config(), &back)).await;
    until("all are completed", || count(&store, Status::Completed) == 30).await;
    until("one has failed", || count(&store, Status::Failed) == 1).await;
    assert!(consumer.shutdown(BOUND).await.is_clean());
    assert!(listener.shutdown(BOUND).await.is_clean());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_receipts_wait_for_a_store_that_is_away() {
    let mut lab = Lab::new();
    let topic = lab.topic("receipts", 2, &[]).await;
    let messages = messages("a", 300);
    let store = table("points", &messages).await;
    store.fail_next(12, Operation::RecordReceipts, StoreFault::Before(StoreErrorKind::Unavailable));
    KafkaReceiptSink::new(lab.config(), &topic).record(&receipts(&messages, "points")).await.unwrap();
    let listener = listen(&lab, &topic, &store).await;
    until("all are completed", || count(&store, Status::Completed) == 300).await;
    assert!(listener.shutdown(BOUND).await.is_clean());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_receipts_that_were_not_applied_before_the_end_are_applied_by_the_next_listener() {
    let mut lab = Lab::new();
    let topic = lab.topic("receipts", 1, &[]).await;
    let messages = messages("a", 100);
    let store = table("points", &messages).await;
    store.fail_next(usize::MAX, Operation::RecordReceipts, StoreFault::Before(StoreErrorKind::Unavailable));
    KafkaReceiptSink::new(lab.config(), &topic).record(&receipts(&messages, "points")).await.unwrap();
    let listener = listen(&lab, &topic, &store).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    listener.shutdown(BOUND).await;
    assert_eq!(count(&store, Status::Completed), 0);
    store.fail_next(0, Operation::RecordReceipts, StoreFault::Before(StoreErrorKind::Unavailable));
    let listener = listen(&lab, &topic, &store).await;
    until("all are completed", || count(&store, Status::Completed) == 100).await;
    listener.shutdown(BOUND).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_what_is_no_receipt_goes_to_the_dead_letters_and_stops_no_other() {
    let mut lab = Lab::new();
    let topic = lab.topic("receipts", 1, &[]).await;
    let dead = format!("{topic}.dead");
    lab.make(&dead, 1, &[]).await;
    let messages = messages("a", 10);
    let store = table("points", &messages).await;
    let sink = KafkaReceiptSink::new(lab.config(), &topic);
    sink.record(&receipts(&messages[..5], "points")).await.unwrap();
    lab.publisher().publish(&Message::binary(&*topic, "1", "no JSON").unwrap()).await.unwrap();
    sink.record(&receipts(&messages[5..], "points")).await.unwrap();
    let listener = listen(&lab, &topic, &store).await;
    until("all are completed", || count(&store, Status::Completed) == 10).await;
    let reader = Reader::new(&dead, 1);
    let record = reader.next(BOUND).await.unwrap();
    assert!(header(&record, "outbox-dead-reason").unwrap().contains("no receipt"));
    assert!(listener.shutdown(BOUND).await.is_clean());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_batch_full_of_what_cannot_be_set_aside_holds_up_no_others() {
    let mut lab = Lab::new();
    let topic = lab.topic("receipts", 1, &[]).await;
    let messages = messages("a", 4);
    let store = table("points", &messages).await;
    let garbage = vec![Message::binary(&*topic, "1", "no JSON").unwrap(); 40];
    publish(&lab, &garbage).await;
    let sink = KafkaReceiptSink::new(lab.config(), &topic);
    sink.record(&receipts(&messages, "points")).await.unwrap();
    let listener = listen(&lab, &topic, &store).await;
    until("the others are completed", || count(&store, Status::Completed) == 4).await;
    let dead = format!("{topic}.dead");
    lab.make(&dead, 1, &[]).await;
    let reader = Reader::new(&dead, 1);
    for _ in 0..40 {
        reader.next(2 * BOUND).await.unwrap();
    }
    assert!(listener.shutdown(BOUND).await.is_clean());
    lab.end().await;
}
