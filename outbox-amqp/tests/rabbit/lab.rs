//! Exchanges and queues of one test, on a connection of its own beside the publisher's.

use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::BasicGetMessage;
use lapin::options::{
    BasicConsumeOptions, BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::{Message, Payload, PublishError, PublishErrorKind, StoredMessage};
use tokio::time::timeout;

pub(crate) fn uri() -> String {
    std::env::var("OUTBOX_AMQP_URL").expect("OUTBOX_AMQP_URL must name a RabbitMQ; scripts/test.sh sets it")
}

pub(crate) fn unique(name: &str) -> String {
    format!("test.{name}.{}", uuid::Uuid::new_v4().simple())
}

/// The broker's `max_message_size` in bytes, as far as the tests know it.
pub(crate) fn size_limit() -> usize {
    std::env::var("OUTBOX_AMQP_MAX_MESSAGE_SIZE").map_or(134_217_728, |bytes| bytes.parse().unwrap())
}

pub(crate) fn message(biz_type: &str, biz_id: &str) -> Message {
    Message::json(biz_type, biz_id, &serde_json::json!({"biz_id": biz_id})).unwrap()
}

/// `n` messages with `biz_id` 0, 1, 2 …
pub(crate) fn messages(biz_type: &str, n: usize) -> Vec<Message> {
    (0..n).map(|i| message(biz_type, &i.to_string())).collect()
}

pub(crate) fn stored(biz_type: &str) -> StoredMessage {
    StoredMessage {
        msg_id: uuid::Uuid::now_v7().to_string(),
        biz_type: biz_type.into(),
        biz_id: "A-1".into(),
        payload: Payload::json(&"x").unwrap(),
        content_type: None,
        headers: Default::default(),
        ordering_key: None,
        created_at: "2026-02-03T04:05:06.789012Z".parse().unwrap(),
        claim_no: 1,
    }
}

#[track_caller]
pub(crate) fn expect_error(result: &Result<(), PublishError>, kind: PublishErrorKind, part: &str) {
    let error = result.as_ref().expect_err("published");
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(part), "{error}");
    assert!(!error.to_string().contains("guest:guest"), "{error}");
}

/// An exchange that goes when its last queue goes, and queues that expire should a test not clean up.
pub(crate) struct Lab {
    connection: Connection,
    pub(crate) channel: Channel,
    pub(crate) exchange: String,
    queues: Vec<String>,
    exchanges: Vec<String>,
}

impl Lab {
    pub(crate) async fn new(name: &str) -> Self {
        let connection = Connection::connect(&uri(), ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let exchange = unique(name);
        let mut lab = Self {
            connection,
            channel,
            exchange: exchange.clone(),
            queues: Vec::new(),
            exchanges: Vec::new(),
        };
        lab.exchange(&exchange).await;
        lab
    }

    pub(crate) async fn exchange(&mut self, name: &str) {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let kind = ExchangeKind::Topic;
        self.channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await.unwrap();
        self.exchanges.push(name.into());
    }

    pub(crate) fn config(&self) -> AmqpConfig {
        AmqpConfig::new(uri()).unwrap().with_exchange(&self.exchange)
    }

    pub(crate) fn publisher(&self) -> AmqpPublisher {
        AmqpPublisher::new(self.config())
    }

    /// A quorum queue bound with `key`; its name.
    pub(crate) async fn queue(&mut self, key: &str) -> String {
        self.queue_with(key, "quorum", &[]).await
    }

    pub(crate) async fn queue_with(
        &mut self,
        key: &str,
        kind: &str,
        arguments: &[(&str, AMQPValue)],
    ) -> String {
        let name = unique("queue");
        let mut table = FieldTable::default();
        table.insert("x-queue-type".into(), AMQPValue::LongString(kind.into()));
        table.insert("x-expires".into(), AMQPValue::LongInt(600_000));
        for (key, value) in arguments {
            table.insert((*key).into(), value.clone());
        }
        self.channel
            .queue_declare(name.as_str().into(), QueueDeclareOptions::durable(), table)
            .await
            .unwrap();
        self.queues.push(name.clone());
        self.bind(&name, key).await;
        name
    }

    /// A queue of that name, for what belongs to another queue; it is removed with that one.
    pub(crate) async fn companion(&self, name: &str) -> String {
        let mut table = FieldTable::default();
        table.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        self.channel.queue_declare(name.into(), QueueDeclareOptions::durable(), table).await.unwrap();
        name.to_owned()
    }

    pub(crate) fn queues(&self) -> &[String] {
        &self.queues
    }

    pub(crate) async fn bind(&self, queue: &str, key: &str) {
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        let exchange = self.exchange.as_str().into();
        self.channel.queue_bind(queue.into(), exchange, key.into(), options, none).await.unwrap();
    }

    pub(crate) async fn get(&self, queue: &str) -> Option<BasicGetMessage> {
        self.channel.basic_get(queue.into(), BasicGetOptions { no_ack: true }).await.unwrap()
    }

    /// The `biz_id`s in the queue, in its order: at least `n`, and what follows within a moment.
    pub(crate) async fn drain(&self, queue: &str, n: usize) -> Vec<String> {
        let (tag, options) = (unique("drain"), BasicConsumeOptions { no_ack: true, ..Default::default() });
        let consuming =
            self.channel.basic_consume(queue.into(), tag.as_str().into(), options, FieldTable::default());
        let mut consumer = consuming.await.unwrap();
        let mut found = Vec::new();
        loop {
            let patience = Duration::from_millis(if found.len() < n { 20_000 } else { 200 });
            let Ok(Some(delivery)) = timeout(patience, consumer.next()).await else { break };
            found.push(header(&delivery.unwrap().properties, "outbox-biz-id"));
        }
        self.channel.basic_cancel(tag.as_str().into(), Default::default()).await.unwrap();
        found
    }

    pub(crate) async fn end(self) {
        for queue in self.queues.iter().flat_map(|queue| with_companions(queue)) {
            self.channel.queue_delete(queue.as_str().into(), Default::default()).await.unwrap();
        }
        for exchange in &self.exchanges {
            self.channel.exchange_delete(exchange.as_str().into(), Default::default()).await.unwrap();
        }
        self.connection.close(200, "OK".into()).await.unwrap();
    }
}

/// A queue and those that a consumer of it may have declared beside it.
fn with_companions(queue: &str) -> Vec<String> {
    let retries = (0..8).map(|n| format!("{queue}.retry.{}", 1_000 << n));
    [queue.to_owned(), format!("{queue}.dead")].into_iter().chain(retries).collect()
}

pub(crate) fn header(properties: &BasicProperties, name: &str) -> String {
    let headers = properties.headers().as_ref().unwrap();
    headers.inner()[name].as_long_string().unwrap().to_string()
}
