//! A cluster of one test. It cannot move between threads, so it stays in the body of the test.

use std::time::Duration;

use outbox_core::{Message, PublishError, PublishErrorKind};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::topic_partition_list::Offset;
use rdkafka::{ClientConfig, TopicPartitionList};

pub(crate) const TOPIC: &str = "order.created";
pub(crate) const ALL_BROKERS: i32 = -1;

pub(crate) struct Cluster(pub(crate) MockCluster<'static, DefaultProducerContext>);

impl Cluster {
    /// Three brokers, and a topic of one partition.
    pub(crate) fn new() -> Self {
        let cluster = MockCluster::new(3).unwrap();
        cluster.create_topic(TOPIC, 1, 3).unwrap();
        Self(cluster)
    }

    /// With short times.
    pub(crate) fn config(&self) -> KafkaConfig {
        KafkaConfig::new(self.0.bootstrap_servers())
            .unwrap()
            .with_confirm_timeout(Duration::from_secs(4))
            .with_connect_timeout(Duration::from_secs(1))
    }

    pub(crate) fn publisher(&self) -> KafkaPublisher {
        KafkaPublisher::new(self.config())
    }

    /// The `biz_id`s in the topic, in its order: at least `n`, and what follows within a moment.
    pub(crate) fn drain(&self, topic: &str, n: usize) -> Vec<String> {
        let consumer = self.consumer(topic);
        let patience = |found: usize| Duration::from_millis(if found < n { 20_000 } else { 500 });
        let mut found = Vec::new();
        while let Some(record) = consumer.poll(patience(found.len())) {
            found.push(biz_id(&record.unwrap()));
        }
        found
    }

    /// The `biz_id`s that are there, and those that come within `time`.
    pub(crate) fn drain_for(&self, topic: &str, time: Duration) -> Vec<String> {
        let consumer = self.consumer(topic);
        std::iter::from_fn(|| consumer.poll(time).map(|record| biz_id(&record.unwrap()))).collect()
    }

    fn consumer(&self, topic: &str) -> BaseConsumer {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", self.0.bootstrap_servers()).set("group.id", "drain");
        let consumer: BaseConsumer = config.create().unwrap();
        let mut from = TopicPartitionList::new();
        from.add_partition_offset(topic, 0, Offset::Beginning).unwrap();
        consumer.assign(&from).unwrap();
        consumer
    }
}

fn biz_id(record: &BorrowedMessage<'_>) -> String {
    let headers = record.headers().unwrap();
    let biz_id = headers.iter().find(|header| header.key == "outbox-biz-id").unwrap();
    String::from_utf8(biz_id.value.unwrap().to_vec()).unwrap()
}

pub(crate) fn message(biz_type: &str, biz_id: &str) -> Message {
    Message::json(biz_type, biz_id, &serde_json::json!({"biz_id": biz_id})).unwrap()
}

/// `n` messages with `biz_id` 0, 1, 2 …
pub(crate) fn messages(n: usize) -> Vec<Message> {
    (0..n).map(|i| message(TOPIC, &i.to_string())).collect()
}

pub(crate) fn numbers(n: usize) -> Vec<String> {
    (0..n).map(|i| i.to_string()).collect()
}

#[track_caller]
pub(crate) fn expect_error(result: &Result<(), PublishError>, kind: PublishErrorKind, part: &str) {
    let error = result.as_ref().expect_err("published");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

#[track_caller]
pub(crate) fn expect_all(results: &[Result<(), PublishError>], kind: PublishErrorKind, part: &str) {
    assert!(!results.is_empty());
    results.iter().for_each(|result| expect_error(result, kind, part));
}

#[track_caller]
pub(crate) fn expect_stored(results: Vec<Result<(), PublishError>>) {
    results.into_iter().for_each(|result| result.unwrap());
}
