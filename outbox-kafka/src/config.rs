use std::fmt;
use std::time::Duration;

use outbox_core::{Message, Pattern, Router};
use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use crate::error::InvalidKafkaConfig;
use crate::property;
use crate::route::Route;

/// What librdkafka is told unless [`KafkaConfig::with_property`] says otherwise.
const COMMON: &[(&str, &str)] = &[
    ("client.id", "outbox"),
    ("reconnect.backoff.max.ms", "2000"),
    // A topic that is made is found before the first retry.
    ("topic.metadata.refresh.interval.ms", "30000"),
];

const CONSUMER: &[(&str, &str)] = &[
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    // With `latest`, what was published before a group's first start would be skipped.
    ("auto.offset.reset", "earliest"),
    ("partition.assignment.strategy", "cooperative-sticky"),
    ("queued.max.messages.kbytes", "16384"),
];

const PRODUCER: &[(&str, &str)] = &[
    ("acks", "all"),
    ("enable.idempotence", "true"),
    ("linger.ms", "0"),
    // The same partition for the same key as with Kafka's own client.
    ("partitioner", "murmur2_random"),
    // Larger than any topic's default, so that the topic's own limit counts.
    ("message.max.bytes", "16777216"),
    ("queue.buffering.max.kbytes", "65536"),
    // A topic that does not exist fails soon.
    ("topic.metadata.propagation.max.ms", "5000"),
];

/// How to reach Kafka and where messages go.
///
/// ```
/// use std::time::Duration;
/// use outbox_kafka::{KafkaConfig, Route};
///
/// let config = KafkaConfig::new("kafka-1:9092,kafka-2:9092")?
///     .with_topic("events")
///     .with_route("order.#", Route::to("orders"))
///     .with_route("audit.*", Route::to("audit").without_key())
///     .with_confirm_timeout(Duration::from_secs(10))
///     .with_property("compression.type", "lz4")?;
/// # Ok::<(), outbox_kafka::InvalidKafkaConfig>(())
/// ```
#[derive(Clone)]
pub struct KafkaConfig {
    pub(crate) servers: String,
    pub(crate) router: Router<Route>,
    pub(crate) confirm_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    properties: Vec<(String, String)>,
}

impl KafkaConfig {
    /// Brokers to ask first for the others, `host:port`, separated by commas.
    ///
    /// # Errors
    /// [`InvalidKafkaConfig`] when none is named.
    pub fn new(servers: impl Into<String>) -> Result<Self, InvalidKafkaConfig> {
        let servers = servers.into();
        if servers.split(',').all(|server| server.trim().is_empty()) {
            return Err(InvalidKafkaConfig::NoServers);
        }
        Ok(Self {
            servers,
            router: Router::default(),
            confirm_timeout: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(5),
            properties: Vec::new(),
        })
    }

    /// The topic of messages that no rule matches. Without it, each message goes to the topic named like its
    /// `biz_type`.
    #[must_use]
    pub fn with_topic(mut self, name: impl Into<String>) -> Self {
        self.router.set_default(Route::to(name));
        self
    }

    /// Where messages go whose `biz_type` matches; the first rule that matches counts.
    #[must_use]
    pub fn with_route(mut self, pattern: impl Into<Pattern>, route: Route) -> Self {
        self.router.add_rule(pattern.into(), route);
        self
    }

    /// Routes by a function, in place of topic and rules. It must not block.
    #[must_use]
    pub fn with_router(mut self, router: impl Fn(&Message) -> Route + Send + Sync + 'static) -> Self {
        self.router.set_function(router);
        self
    }

    /// The time for one call of `publish` or `publish_batch`; 20 s by default, from 1 s to a day. Keep it well
    /// under half of the relay's lease: up to twice the connect timeout more is spent on asking whether the
    /// broker still answers.
    #[must_use]
    pub fn with_confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout.clamp(Duration::from_secs(1), Duration::from_secs(86_400));
        self
    }

    /// For how long a broker may be silent before it is asked whether it is there, and how long it may take to
    /// answer; 5 s by default, a day at most.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout.min(Duration::from_secs(86_400));
        self
    }

    /// Any [property of librdkafka](https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md):
    /// TLS, SASL, compression, sizes. The last one of a name counts.
    ///
    /// # Errors
    /// [`InvalidKafkaConfig`] when librdkafka does not take it, or when it would break a promise, as `acks=1`
    /// and `enable.idempotence=false` do.
    pub fn with_property(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, InvalidKafkaConfig> {
        let (name, value) = (name.into(), value.into());
        property::check(&name, &value)?;
        self.properties.push((property::canonical(name), value));
        Ok(self)
    }

    /// For the time that librdkafka keeps a message it cannot deliver; it looks once a second.
    fn message_timeout(&self) -> Duration {
        self.confirm_timeout * 3 / 4
    }

    pub(crate) fn producer(&self) -> ClientConfig {
        let mut client = self.client(PRODUCER);
        client.set("message.timeout.ms", self.message_timeout().as_millis().to_string());
        client
    }

    pub(crate) fn consumer(&self, group: &str) -> ClientConfig {
        let mut client = self.client(CONSUMER);
        client.set("group.id", group);
        client
    }

    fn client(&self, defaults: &[(&str, &str)]) -> ClientConfig {
        let mut client = ClientConfig::new();
        // librdkafka says nothing at this level unless the property `debug` asks for it.
        client.set_log_level(RDKafkaLogLevel::Debug);
        client.set("bootstrap.servers", &self.servers);
        for (name, value) in COMMON.iter().chain(defaults) {
            client.set(*name, *value);
        }
        for (name, value) in &self.properties {
            client.set(name, value);
        }
        client
    }
}

/// Shows properties by name only: their values may be secret.
impl fmt::Debug for KafkaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let properties: Vec<&str> = self.properties.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("KafkaConfig")
            .field("servers", &self.servers)
            .field("router", &self.router)
            .field("confirm_timeout", &self.confirm_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("properties", &properties)
            .finish()
    }
}
