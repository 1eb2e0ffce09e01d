//! Topics, keys, order and sizes, as a real broker has them.

use std::time::{Duration, Instant};

use outbox_core::PublishErrorKind::{Failed, Rejected};
use outbox_core::{Message, Publisher};
use outbox_kafka::{KafkaPublisher, Route};
use rdkafka::message::Message as _;

use crate::lab::{Lab, Reader, expect_error, header, message, unique};

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_a_batch_keeps_its_order_in_each_partition() {
    let mut lab = Lab::new();
    let topic = lab.topic("order", 3, &[]).await;
    let key = |i: usize| format!("key-{}", i % 10);
    let batch: Vec<Message> =
        (0..3_000).map(|i| message(&topic, &i.to_string()).with_ordering_key(key(i)).unwrap()).collect();
    for result in lab.publisher().publish_batch(&batch).await {
        result.unwrap();
    }
    let mut partitions: [Vec<usize>; 3] = Default::default();
    for (biz_id, partition) in Reader::new(&topic, 3).take(3_000).await {
        partitions[partition as usize].push(biz_id.parse().unwrap());
    }
    for found in &partitions {
        assert!(found.is_sorted(), "not in order");
        for key in 0..10 {
            let count = found.iter().filter(|i| *i % 10 == key).count();
            assert!(count == 0 || count == 300, "key {key} is in more than one partition");
        }
    }
    assert!(partitions.iter().filter(|found| !found.is_empty()).count() > 1, "all keys in one partition");
    lab.end().await;
}

/// The partitions are those that Kafka's own Java client computes: murmur2 of the key, without its sign, modulo
/// the number of partitions.
#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_record_has_the_key_and_the_partition_that_other_clients_choose() {
    let mut lab = Lab::new();
    let topic = lab.topic("key", 10, &[]).await;
    let publisher = lab.publisher();
    let reader = Reader::new(&topic, 10);
    for (key, partition) in
        [("21", -973_932_308_i32), ("foobar", -790_332_482), ("a-little-bit-long-string", -985_981_536)]
            .map(|(key, hash)| (key, (hash & i32::MAX) % 10))
    {
        publisher.publish(&message(&topic, key)).await.unwrap();
        let record = reader.next(Duration::from_secs(20)).await.unwrap();
        assert_eq!(record.key(), Some(key.as_bytes()));
        assert_eq!(record.partition(), partition, "{key}");
    }
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_routes_choose_topic_and_key() {
    let mut lab = Lab::new();
    let (orders, rest) = (lab.topic("orders", 1, &[]).await, lab.topic("rest", 1, &[]).await);
    let config = lab.config().with_topic(&rest).with_route("order.#", Route::to(&orders).without_key());
    let publisher = KafkaPublisher::new(config);
    for result in publisher.publish_batch(&[message("order.created", "1"), message("mail.sent", "2")]).await {
        result.unwrap();
    }
    for (topic, biz_type, key) in [(&orders, "order.created", None), (&rest, "mail.sent", Some("2"))] {
        let reader = Reader::new(topic, 1);
        let record = reader.next(Duration::from_secs(20)).await.unwrap();
        assert_eq!(header(&record, "outbox-biz-type").as_deref(), Some(biz_type));
        assert_eq!(record.key(), key.map(str::as_bytes));
    }
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_a_users_content_type_header_stays_and_ours_counts() {
    let mut lab = Lab::new();
    let topic = lab.topic("content-type", 1, &[]).await;
    let message = message(&topic, "1").with_header("content-type", "the user's").unwrap();
    lab.publisher().publish(&message).await.unwrap();
    let reader = Reader::new(&topic, 1);
    let record = reader.next(Duration::from_secs(20)).await.unwrap();
    assert_eq!(header(&record, "content-type").as_deref(), Some("application/json"));
    lab.end().await;
}

/// Kafka's limit is on what is sent together, and librdkafka does not know it.
#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_messages_that_are_too_large_only_together_are_stored_and_the_large_one_is_rejected() {
    let mut lab = Lab::new();
    let topic = lab.topic("small", 1, &[("max.message.bytes", "10000")]).await;
    let mut batch: Vec<Message> =
        (0..50).map(|i| Message::binary(&*topic, i.to_string(), vec![7; 3_000]).unwrap()).collect();
    batch.push(Message::binary(&*topic, "large", vec![7; 20_000]).unwrap());
    let mut results = lab.publisher().publish_batch(&batch).await;
    expect_error(&results.pop().unwrap(), Rejected, "max.message.bytes");
    for result in results {
        result.unwrap();
    }
    let reader = Reader::new(&topic, 1);
    let mut found: Vec<usize> =
        reader.take(50).await.into_iter().map(|(biz_id, _)| biz_id.parse().unwrap()).collect();
    found.sort_unstable();
    assert_eq!(found, (0..50).collect::<Vec<_>>());
    assert!(reader.next(Duration::from_secs(1)).await.is_none());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_missing_topic_is_failed_soon_and_stored_once_it_is_there() {
    let mut lab = Lab::new();
    let (topic, late) = (lab.topic("there", 1, &[]).await, unique("late"));
    let config = lab.config().with_property("topic.metadata.refresh.interval.ms", "1000").unwrap();
    let publisher = KafkaPublisher::new(config);
    let since = Instant::now();
    let results = publisher.publish_batch(&[message(&late, "1"), message(&topic, "1")]).await;
    expect_error(&results[0], Failed, "create it, or correct the route");
    assert!(results[1].is_ok(), "{results:?}");
    assert!(since.elapsed() < Duration::from_secs(12), "{:?}", since.elapsed());
    lab.make(&late, 1, &[]).await;
    let patience = Instant::now() + Duration::from_secs(30);
    while let Err(error) = publisher.publish(&message(&late, "1")).await {
        assert_eq!(error.kind(), Failed, "{error}");
        assert!(Instant::now() < patience, "never found: {error}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    lab.end().await;
}
