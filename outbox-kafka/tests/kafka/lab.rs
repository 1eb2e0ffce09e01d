//! Topics of one test, made beside the publisher and deleted at the end.

use std::time::Duration;

use outbox_core::{Message, PublishError, PublishErrorKind};
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use rdkafka::topic_partition_list::Offset;
use rdkafka::{ClientConfig, TopicPartitionList};
use tokio::time::timeout;

pub(crate) fn servers() -> String {
    std::env::var("OUTBOX_KAFKA").expect("OUTBOX_KAFKA must name a Kafka broker; scripts/test.sh sets it")
}

pub(crate) fn unique(name: &str) -> String {
    format!("test.{name}.{}", uuid::Uuid::new_v4().simple())
}

pub(crate) fn message(biz_type: &str, biz_id: &str) -> Message {
    Message::json(biz_type, biz_id, &serde_json::json!({"biz_id": biz_id})).unwrap()
}

#[track_caller]
pub(crate) fn expect_error(result: &Result<(), PublishError>, kind: PublishErrorKind, part: &str) {
    let error = result.as_ref().expect_err("published");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "{error}");
}

pub(crate) struct Lab {
    admin: AdminClient<DefaultClientContext>,
    topics: Vec<String>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let admin = client().create().unwrap();
        Self { admin, topics: Vec::new() }
    }

    /// A new topic with a random name.
    pub(crate) async fn topic(&mut self, name: &str, partitions: i32, config: &[(&str, &str)]) -> String {
        let name = unique(name);
        self.make(&name, partitions, config).await;
        name
    }

    pub(crate) async fn make(&mut self, name: &str, partitions: i32, config: &[(&str, &str)]) {
        let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
        for (key, value) in config {
            topic = topic.set(key, value);
        }
        let made = self.admin.create_topics([&topic], &AdminOptions::new()).await.unwrap();
        made.into_iter().for_each(|made| drop(made.unwrap()));
        self.topics.push(name.into());
    }

    pub(crate) fn config(&self) -> KafkaConfig {
        KafkaConfig::new(servers()).unwrap()
    }

    pub(crate) fn publisher(&self) -> KafkaPublisher {
        KafkaPublisher::new(self.config())
    }

    pub(crate) async fn end(self) {
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        let gone = self.admin.delete_topics(&topics, &AdminOptions::new()).await.unwrap();
        gone.into_iter().for_each(|gone| drop(gone.unwrap()));
    }
}

fn client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", servers());
    config
}

/// Reads a topic from its beginning.
pub(crate) struct Reader(StreamConsumer);

impl Reader {
    pub(crate) fn new(topic: &str, partitions: i32) -> Self {
        let consumer: StreamConsumer = client().set("group.id", "test.reader").create().unwrap();
        let mut from = TopicPartitionList::new();
        for partition in 0..partitions {
            from.add_partition_offset(topic, partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&from).unwrap();
        Self(consumer)
    }

    pub(crate) async fn next(&self, patience: Duration) -> Option<BorrowedMessage<'_>> {
        Some(timeout(patience, self.0.recv()).await.ok()?.unwrap())
    }

    /// The `biz_id`s and partitions of the next `n` records.
    pub(crate) async fn take(&self, n: usize) -> Vec<(String, i32)> {
        let mut found = Vec::new();
        while found.len() < n {
            let record = self.next(Duration::from_secs(20)).await.expect("one more record");
            found.push((header(&record, "outbox-biz-id").unwrap(), record.partition()));
        }
        found
    }
}

pub(crate) fn header(record: &BorrowedMessage<'_>, name: &str) -> Option<String> {
    let header = record.headers()?.iter().filter(|header| header.key == name).last()?;
    Some(String::from_utf8(header.value?.to_vec()).unwrap())
}
