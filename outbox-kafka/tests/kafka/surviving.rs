//! Members that come, go, die, or take long.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::Message;
use outbox_core::consumer::{Delivery, NoReceipts, handler_fn};
use outbox_kafka::{KafkaConsumer, KafkaConsumerConfig};
use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer, StreamConsumer};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::desk::{Desk, fine, order, publish, until};
use crate::lab::{Lab, servers, unique};

const BOUND: Duration = Duration::from_secs(20);

fn config() -> KafkaConsumerConfig {
    KafkaConsumerConfig::default()
}

fn slow(topic: &str, n: usize) -> Vec<Message> {
    (0..n).map(|i| order(topic, &format!("k{}", i % 20), i, json!({"takes": 20}))).collect()
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_members_that_come_and_go_lose_nothing_and_handle_nothing_twice() {
    let mut lab = Lab::new();
    let topic = lab.topic("members", 6, &[]).await;
    publish(&lab, &slow(&topic, 1_500)).await;
    let desk = Desk::new();
    let first = desk.join(&topic, config()).await;
    until("some are handled", || desk.handled().len() > 100).await;
    let second = desk.join(&topic, config()).await;
    until("more are handled", || desk.handled().len() > 500).await;
    let third = desk.join(&topic, config()).await;
    until("still more are handled", || desk.handled().len() > 800).await;
    assert!(first.shutdown(BOUND).await.is_clean());
    until("all are handled", || desk.handled().len() >= 1_500).await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(desk.handled_numbers(), (0..1_500).collect::<Vec<_>>());
    second.shutdown(BOUND).await;
    third.shutdown(BOUND).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_member_that_dies_in_the_middle_loses_nothing_and_no_effect_is_doubled() {
    let mut lab = Lab::new();
    let topic = lab.topic("dies", 3, &[]).await;
    publish(&lab, &slow(&topic, 600)).await;
    let desk = Desk::new();
    for handled in [100, 300, 450] {
        let handle = desk.join(&topic, config()).await;
        until("some are handled", || desk.handled().len() > handled).await;
        handle.abort();
    }
    let handle = desk.join(&topic, config()).await;
    until("all are handled", || desk.handled().len() >= 600).await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(desk.handled_numbers(), (0..600).collect::<Vec<_>>());
    handle.shutdown(BOUND).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_shutdown_waits_for_what_runs_and_leaves_the_rest_to_the_next_member() {
    let mut lab = Lab::new();
    let topic = lab.topic("shutdown", 1, &[]).await;
    let mut batch = vec![order(&topic, "a", 0, json!({"takes": 1_000}))];
    batch.extend((1..5).map(|i| fine(&topic, "a", i)));
    publish(&lab, &batch).await;
    let desk = Desk::new();
    let handle = desk.join_without_dedup(&topic, config()).await;
    until("the first begins", || desk.begun().len() == 1).await;
    let report = handle.shutdown(BOUND).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.answered, desk.handled()), (1, vec!["0".to_owned()]));
    desk.forget();
    let handle = desk.join_without_dedup(&topic, config()).await;
    until("the rest is handled", || desk.handled() == ["1", "2", "3", "4"]).await;
    handle.shutdown(BOUND).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_shutdown_drops_what_does_not_end_and_it_comes_again() {
    let mut lab = Lab::new();
    let topic = lab.topic("dropped", 1, &[]).await;
    publish(&lab, &[fine(&topic, "a", 0), order(&topic, "b", 1, json!({"waits": true}))]).await;
    let desk = Desk::new();
    let handle = desk.join(&topic, config()).await;
    until("both began", || desk.begun().len() == 2 && desk.handled().len() == 1).await;
    let report = handle.shutdown(Duration::from_millis(200)).await;
    assert!(!report.is_clean() && report.dropped == 1, "{report:?}");
    desk.gate.add_permits(1);
    let handle = desk.join(&topic, config()).await;
    until("it is handled", || desk.handled() == ["0", "1"]).await;
    handle.shutdown(BOUND).await;
    lab.end().await;
}

/// Two members with the same `group.instance.id`: Kafka tells the one that was there that it can never go on.
#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_member_that_is_fenced_joins_again_and_loses_nothing() {
    let mut lab = Lab::new();
    let topic = lab.topic("fenced", 2, &[]).await;
    publish(&lab, &slow(&topic, 300)).await;
    let (desk, instance) = (Desk::new(), unique("instance"));
    let fixed = lab.config().with_property("group.instance.id", &*instance).unwrap();
    let handle = desk.join_with(fixed, &topic, config()).await;
    until("some are handled", || desk.handled().len() > 50).await;
    let usurper: StreamConsumer = ClientConfig::new()
        .set("bootstrap.servers", servers())
        .set("group.id", &desk.group)
        .set("group.instance.id", &instance)
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("enable.auto.commit", "false")
        .create()
        .unwrap();
    usurper.subscribe(&[&topic]).unwrap();
    let (_, ()) = tokio::join!(
        timeout(Duration::from_secs(2), usurper.recv()),
        until("it is fenced", || !handle.is_subscribed()),
    );
    tokio::task::spawn_blocking(move || drop(usurper)).await.unwrap();
    until("all are handled", || desk.handled().len() >= 300).await;
    assert_eq!(desk.handled_numbers(), (0..300).collect::<Vec<_>>());
    assert!(handle.shutdown(BOUND).await.is_clean());
    lab.end().await;
}

/// The poll interval is as short as Kafka allows.
#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_handler_that_takes_longer_than_the_poll_interval_keeps_its_partitions() {
    let mut lab = Lab::new();
    let topic = lab.topic("slow", 1, &[]).await;
    publish(&lab, &[order(&topic, "a", 0, json!({"takes": 9_000})), fine(&topic, "a", 1)]).await;
    let desk = Desk::new();
    let short = lab.config().with_property("max.poll.interval.ms", "6000").unwrap();
    let short = short.with_property("session.timeout.ms", "6000").unwrap();
    let handle = desk.join_with(short, &topic, config().with_prefetch(1)).await;
    until("both are handled", || desk.handled() == ["0", "1"]).await;
    assert_eq!(desk.begun().len(), 2, "nothing was delivered again: {:?}", desk.begun());
    handle.shutdown(BOUND).await;
    lab.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_shutdown_under_a_handler_that_blocks_its_thread_ends_within_its_bound() {
    let mut lab = Lab::new();
    let topic = lab.topic("blocked", 1, &[]).await;
    publish(&lab, &[fine(&topic, "k", 0)]).await;
    let (blocker, gate) = std::sync::mpsc::channel::<()>();
    let (begun, begins) = tokio::sync::oneshot::channel();
    let held = Arc::new(Mutex::new((Some(begun), gate)));
    let handler = handler_fn(move |_: Delivery<Value>| {
        let mut held = held.lock().unwrap();
        let _ = held.0.take().map(|begun| begun.send(()));
        let _ = held.1.recv();
        std::future::ready(Ok(()))
    });
    let consumer = outbox_core::Consumer::new(unique("group"), handler, NoReceipts);
    let handle = KafkaConsumer::new(lab.config(), [topic.as_str()], consumer).spawn();
    begins.await.unwrap();
    let report = timeout(Duration::from_secs(15), handle.shutdown(Duration::from_millis(300))).await.unwrap();
    assert_eq!((report.dropped, report.is_clean()), (1, false), "{report:?}");
    drop(blocker);
    lab.end().await;
}
