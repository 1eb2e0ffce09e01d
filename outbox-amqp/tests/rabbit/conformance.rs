//! The publisher suite of the core, through a proxy that can go away.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::Consumer;
use lapin::options::BasicConsumeOptions;
use lapin::types::FieldTable;
use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::conformance::{PublisherFixture, Received};
use outbox_core::publisher_suite;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::lab::{Lab, size_limit};
use crate::proxy::Proxy;

struct Fixture {
    lab: Lab,
    proxy: Mutex<Proxy>,
    publisher: Arc<AmqpPublisher>,
    consumer: Mutex<Consumer>,
}

impl Fixture {
    async fn new() -> Self {
        let mut lab = Lab::new("conformance").await;
        let queue = lab.queue("order.created").await;
        let proxy = Proxy::start().await;
        let config = AmqpConfig::new(proxy.uri()).unwrap().with_exchange(&lab.exchange);
        let options = BasicConsumeOptions { no_ack: true, ..Default::default() };
        let consuming = lab.channel.basic_consume(queue.into(), "".into(), options, FieldTable::default());
        let consumer = Mutex::new(consuming.await.unwrap());
        Self { lab, proxy: Mutex::new(proxy), publisher: Arc::new(AmqpPublisher::new(config)), consumer }
    }
}

impl PublisherFixture for Fixture {
    type Publisher = AmqpPublisher;

    fn publisher(&self) -> Arc<AmqpPublisher> {
        self.publisher.clone()
    }

    fn biz_type(&self) -> String {
        "order.created".into()
    }

    fn unroutable(&self) -> Option<String> {
        Some("nowhere".into())
    }

    fn too_large(&self) -> Option<usize> {
        Some(size_limit() + 1)
    }

    async fn receive(&self) -> Option<Received> {
        let next = timeout(Duration::from_secs(2), async { self.consumer.lock().await.next().await });
        let delivery = next.await.ok()??.unwrap();
        let headers = delivery.properties.headers().as_ref().unwrap().into_iter();
        let text = |value: &lapin::types::AMQPValue| value.as_long_string().unwrap().to_string();
        Some(Received {
            headers: headers.map(|(name, value)| (name.to_string(), text(value))).collect(),
            content_type: delivery.properties.content_type().as_ref().unwrap().to_string(),
            payload: delivery.data,
        })
    }

    async fn go_away(&self) -> bool {
        self.proxy.lock().await.refuse().await;
        true
    }

    async fn come_back(&self) {
        self.proxy.lock().await.accept().await;
    }

    async fn cleanup(self) {
        self.lab.end().await;
    }
}

publisher_suite!(
    #[ignore = "needs RabbitMQ: run scripts/test.sh"]
    rabbitmq,
    Fixture::new
);
