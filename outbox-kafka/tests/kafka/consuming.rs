//! Handlers, order, retries and dead letters.

use std::time::Duration;

use outbox_core::Publisher;
use outbox_core::consumer::NoReceipts;
use outbox_kafka::{KafkaConsumer, KafkaConsumerConfig, Order};
use rdkafka::ClientConfig;
use rdkafka::message::Message as _;
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::desk::{Desk, fine, order, publish, until};
use crate::lab::{Lab, Reader, header, servers, unique};

const BOUND: Duration = Duration::from_secs(20);

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_consumer_handles_what_was_published_before_it_first_came_and_nothing_again() {
    let mut lab = Lab::new();
    let topic = lab.topic("consumed", 3, &[]).await;
    publish(&lab, &(0..50).map(|i| fine(&topic, &i.to_string(), i)).collect::<Vec<_>>()).await;
    let desk = Desk::new();
    let handle = desk.join_without_dedup(&topic, KafkaConsumerConfig::default()).await;
    until("all are handled", || desk.handled().len() == 50).await;
    assert!(handle.shutdown(BOUND).await.is_clean());
    let handle = desk.join_without_dedup(&topic, KafkaConsumerConfig::default()).await;
    publish(&lab, &[fine(&topic, "x", 50)]).await;
    until("the new one is handled", || desk.handled().contains(&"50".to_owned())).await;
    assert_eq!(desk.handled_numbers(), (0..=50).collect::<Vec<_>>());
    handle.shutdown(BOUND).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_consumer_keeps_the_order_of_a_key_and_lets_other_keys_pass_a_message_that_fails() {
    let mut lab = Lab::new();
    let topic = lab.topic("order", 1, &[]).await;
    let failing = order(&topic, "a", "a0", json!({"fails": 2}));
    let behind = (1..20).flat_map(|i| ["a", "b"].map(|key| fine(&topic, key, format!("{key}{i}"))));
    publish(&lab, &std::iter::once(failing).chain(behind).collect::<Vec<_>>()).await;
    let desk = Desk::new();
    let handle = desk.join(&topic, KafkaConsumerConfig::default()).await;
    until("all are handled", || desk.handled().len() == 39).await;
    let of = |key: &str| desk.handled().into_iter().filter(|id| id.starts_with(key)).collect::<Vec<_>>();
    assert_eq!(of("a"), (0..20).map(|i| format!("a{i}")).collect::<Vec<_>>());
    assert_eq!(of("b"), (1..20).map(|i| format!("b{i}")).collect::<Vec<_>>());
    let place = |id: &str| desk.handled().iter().position(|known| known == id);
    assert!(place("b19") < place("a0"), "the other key did not wait: {:?}", desk.handled());
    handle.shutdown(BOUND).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_consumer_runs_handlers_of_one_partition_at_once_unless_told_to_keep_its_order() {
    let mut lab = Lab::new();
    let topic = lab.topic("at-once", 1, &[]).await;
    let batch: Vec<_> = (0..8).map(|i| order(&topic, &i.to_string(), i, json!({"takes": 300}))).collect();
    publish(&lab, &batch).await;
    for (keeps, expected) in [(Order::ByKey, false), (Order::ByPartition, true)] {
        let desk = Desk::new();
        let since = Instant::now();
        let config = KafkaConsumerConfig::default().with_order(keeps);
        let handle = desk.join(&topic, config).await;
        until("the first begins", || !desk.begun().is_empty()).await;
        let begun = Instant::now();
        until("all are handled", || desk.handled().len() == 8).await;
        let one_by_one = begun.elapsed() > Duration::from_millis(2_000);
        assert_eq!(one_by_one, expected, "{keeps:?}: {:?} of {:?}", begun.elapsed(), since.elapsed());
        handle.shutdown(BOUND).await;
    }
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_consumer_puts_what_it_gives_up_with_the_dead_letters_before_it_commits() {
    let mut lab = Lab::new();
    let topic = lab.topic("given-up", 1, &[]).await;
    let desk = Desk::new();
    let dead = format!("{}.dead", desk.group);
    publish(
        &lab,
        &[
            order(&topic, "k", "0", json!({"rejects": true})),
            order(&topic, "k", "1", json!({"fails": 9})),
            fine(&topic, "k", "2"),
        ],
    )
    .await;
    let handle = desk.join(&topic, KafkaConsumerConfig::default()).await;
    until("the first is refused", || desk.begun().len() == 1).await;
    // Its topic is missing, so it holds its place.
    sleep(Duration::from_secs(1)).await;
    handle.shutdown(BOUND).await;
    desk.forget();
    lab.make(&dead, 1, &[]).await;
    let handle = desk.join(&topic, KafkaConsumerConfig::default()).await;
    until("the last is handled", || desk.handled() == ["2"]).await;
    let runs: Vec<_> = desk.begun().into_iter().map(|(id, attempt)| format!("{id}/{attempt}")).collect();
    assert_eq!(runs, ["0/1", "1/1", "1/2", "1/3", "2/1"], "what was not buried came again");
    let reader = Reader::new(&dead, 1);
    for (biz_id, reason, attempts) in [("0", "no such product", "1"), ("1", "gave up after 3 attempts", "3")]
    {
        let record = reader.next(BOUND).await.unwrap();
        let said = |name: &str| header(&record, name).unwrap();
        assert_eq!(said("outbox-biz-id"), biz_id);
        assert!(said("outbox-dead-reason").contains(reason), "{}", said("outbox-dead-reason"));
        assert_eq!(said("outbox-dead-attempts"), attempts);
        assert_eq!(said("outbox-dead-group"), desk.group);
        assert_eq!(
            (said("outbox-original-topic"), said("outbox-original-partition")),
            (topic.clone(), "0".into())
        );
        assert_eq!(record.key(), Some(&b"k"[..]));
        assert_eq!(said("content-type"), "application/json");
    }
    handle.shutdown(BOUND).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_consumer_finds_a_topic_that_is_made_after_it_came() {
    let mut lab = Lab::new();
    let (desk, topic) = (Desk::new(), unique("late"));
    let often = lab.config().with_property("topic.metadata.refresh.interval.ms", "500").unwrap();
    let handle = KafkaConsumer::new(often, [&topic], desk.consumer(None, NoReceipts)).spawn();
    sleep(Duration::from_secs(2)).await;
    lab.make(&topic, 1, &[]).await;
    publish(&lab, &[fine(&topic, "a", 0)]).await;
    until("it is handled", || desk.handled() == ["0"]).await;
    assert!(handle.is_subscribed() && handle.is_running());
    assert!(handle.shutdown(BOUND).await.is_clean());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_consumer_takes_messages_of_others_and_buries_those_without_an_id() {
    let mut lab = Lab::new();
    let topic = lab.topic("foreign", 1, &[]).await;
    let desk = Desk::new();
    lab.make(&format!("{}.dead", desk.group), 1, &[]).await;
    let producer: FutureProducer = ClientConfig::new().set("bootstrap.servers", servers()).create().unwrap();
    let nameless = FutureRecord::<[u8], [u8]>::to(&topic).payload(&b"{}"[..]);
    producer.send(nameless, BOUND).await.unwrap();
    let named = rdkafka::message::OwnedHeaders::new()
        .insert(rdkafka::message::Header { key: "outbox-msg-id", value: Some("f-1") })
        .insert(rdkafka::message::Header { key: "outbox-biz-id", value: Some("7") })
        .insert(rdkafka::message::Header { key: "binary", value: Some(&[0xff_u8, 0][..]) })
        .insert(rdkafka::message::Header::<&str> { key: "null", value: None });
    let named = FutureRecord::<[u8], [u8]>::to(&topic).payload(&b"{}"[..]).headers(named);
    producer.send(named, BOUND).await.unwrap();
    let handle = desk.join(&topic, KafkaConsumerConfig::default()).await;
    until("it is handled", || desk.handled() == ["7"]).await;
    let reader = Reader::new(&format!("{}.dead", desk.group), 1);
    let record = reader.next(BOUND).await.unwrap();
    assert!(header(&record, "outbox-dead-reason").unwrap().contains("no id"));
    assert_eq!((record.payload(), record.key()), (Some(&b"{}"[..]), None));
    handle.shutdown(BOUND).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_consumer_pauses_a_partition_that_is_far_ahead_and_loses_nothing_by_it() {
    let mut lab = Lab::new();
    let topic = lab.topic("paused", 1, &[]).await;
    let publisher = lab.publisher();
    publisher.publish(&order(&topic, "slow", 0, json!({"waits": true}))).await.unwrap();
    publish(&lab, &(1..300).map(|i| fine(&topic, &format!("k{}", i % 5), i)).collect::<Vec<_>>()).await;
    let desk = Desk::new();
    let handle = desk.join(&topic, KafkaConsumerConfig::default().with_prefetch(20)).await;
    until("those that may go have gone", || desk.handled().len() == 19).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(desk.handled().len(), 19, "it reads on");
    desk.gate.add_permits(1);
    until("all are handled", || desk.handled().len() == 300).await;
    assert_eq!(desk.handled_numbers(), (0..300).collect::<Vec<_>>());
    handle.shutdown(BOUND).await;
    lab.end().await;
}
