//! The publisher suite of the core, through a proxy that can go away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::conformance::{PublisherFixture, Received};
use outbox_core::publisher_suite;
use outbox_kafka::{KafkaConfig, KafkaPublisher};
use rdkafka::message::{BorrowedMessage, Headers, Message as _};
use tokio::sync::Mutex;

use crate::lab::{Lab, Reader, servers, unique};
use crate::proxy::Proxy;

/// Of the topic, in bytes.
const SIZE_LIMIT: usize = 1_000_000;

struct Fixture {
    lab: Lab,
    topic: String,
    proxy: Mutex<Option<Proxy>>,
    publisher: Arc<KafkaPublisher>,
    reader: Reader,
}

impl Fixture {
    async fn new() -> Self {
        let mut lab = Lab::new();
        let limit = SIZE_LIMIT.to_string();
        let topic = lab.topic("conformance", 3, &[("max.message.bytes", &limit)]).await;
        let proxy = Proxy::start().await;
        let servers = proxy.as_ref().map_or_else(servers, Proxy::address);
        let config = KafkaConfig::new(servers).unwrap().with_connect_timeout(Duration::from_secs(2));
        let publisher = Arc::new(KafkaPublisher::new(config.with_confirm_timeout(Duration::from_secs(16))));
        let reader = Reader::new(&topic, 3);
        Self { lab, topic, proxy: Mutex::new(proxy), publisher, reader }
    }
}

impl PublisherFixture for Fixture {
    type Publisher = KafkaPublisher;

    fn publisher(&self) -> Arc<KafkaPublisher> {
        self.publisher.clone()
    }

    fn biz_type(&self) -> String {
        self.topic.clone()
    }

    /// The brokers of the tests make no topic by themselves.
    fn unroutable(&self) -> Option<String> {
        Some(unique("nowhere"))
    }

    fn too_large(&self) -> Option<usize> {
        Some(SIZE_LIMIT + 1)
    }

    async fn receive(&self) -> Option<Received> {
        self.reader.next(Duration::from_secs(2)).await.map(|record| received(&record))
    }

    async fn go_away(&self) -> bool {
        let mut proxy = self.proxy.lock().await;
        match proxy.as_mut() {
            Some(proxy) => proxy.refuse().await,
            None => return false,
        }
        true
    }

    async fn come_back(&self) {
        if let Some(proxy) = self.proxy.lock().await.as_mut() {
            proxy.accept().await;
        }
    }

    async fn cleanup(self) {
        self.lab.end().await;
    }
}

fn received(record: &BorrowedMessage<'_>) -> Received {
    let text = |bytes: Option<&[u8]>| String::from_utf8(bytes.unwrap().to_vec()).unwrap();
    let headers = record.headers().unwrap().iter();
    let mut headers: BTreeMap<String, String> =
        headers.map(|header| (header.key.to_owned(), text(header.value))).collect();
    Received {
        payload: record.payload().unwrap().to_vec(),
        content_type: headers.remove("content-type").unwrap(),
        headers,
    }
}

publisher_suite!(
    #[ignore = "needs Kafka: run scripts/test.sh"]
    kafka,
    Fixture::new
);
