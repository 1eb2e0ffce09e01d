mod config;
mod errand;
mod run;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::Consumer;
use outbox_core::subscriber::SubscriberHandle;
use tokio::sync::Semaphore;
use tracing::warn;

pub use config::{KafkaConsumerConfig, Order};

use errand::Office;
use run::Run;

use crate::config::KafkaConfig;
use crate::membership::{Membership, Shared};
use crate::session::Session;

/// Retries hold a partition up: past this, somebody should know.
const LONG: Duration = Duration::from_secs(600);

/// Reads topics for a consumer group.
///
/// ```no_run
/// use outbox_core::consumer::{Consumer, ConsumerConfig, Delivery, handler_fn};
/// use outbox_core::{DedupStore, OutboxStore, RetryPolicy};
/// use outbox_kafka::{InvalidKafkaConfig, KafkaConfig, KafkaConsumer};
/// use std::time::Duration;
///
/// # async fn example(store: impl OutboxStore, dedup: impl DedupStore) -> Result<(), InvalidKafkaConfig> {
/// let handler = handler_fn(async |order: Delivery<serde_json::Value>| {
///     println!("points for {}", order.biz_id());
///     Ok(())
/// });
/// let retry = RetryPolicy::default().with_steps([Duration::from_secs(1), Duration::from_secs(10)]);
/// let consumer = Consumer::new("points", handler, store)
///     .with_dedup(dedup)
///     .with_config(ConsumerConfig::default().with_retry(retry));
/// let kafka = KafkaConfig::new("localhost:9092")?;
/// let running = KafkaConsumer::new(kafka, ["order.created"], consumer).spawn();
/// running.shutdown(Duration::from_secs(10)).await;
/// # Ok(())
/// # }
/// ```
///
/// # What happens to a record
///
/// Its group is the [`Consumer`]'s, and a new group begins with the oldest record. Handlers run for several
/// records at once, those of the same key one after another ([`Order`]). A message that failed is tried again
/// in place, and its key waits for it; other keys go on until the partition is
/// [so far ahead](KafkaConsumerConfig::with_prefetch) that it is paused. So let retries take seconds or minutes
/// ([`ConsumerConfig::with_retry`](outbox_core::ConsumerConfig::with_retry)); hours, as by default, suit a
/// queue. What is given up, or has no id, goes to the topic of the dead letters with the reason in its headers.
///
/// An offset is committed when its record and all before it were handled, or are confirmed among the dead
/// letters. A crash therefore loses nothing, and delivers again what was handled since: at most the prefetch of
/// each partition. When partitions move to another member, handlers that run go on, and their messages are
/// delivered there as well. The dedup store or the inbox makes one effect of both.
///
/// Kafka does not count deliveries: a message that ends the process comes again whenever the process starts.
pub struct KafkaConsumer {
    kafka: KafkaConfig,
    topics: Vec<String>,
    consumer: Consumer,
    config: KafkaConsumerConfig,
}

impl KafkaConsumer {
    /// Reads `topics` for `consumer`. A name that begins with `^` is a regular expression. What `kafka` says of
    /// routes does not matter here.
    #[must_use]
    pub fn new(
        kafka: KafkaConfig,
        topics: impl IntoIterator<Item = impl Into<String>>,
        consumer: Consumer,
    ) -> Self {
        let topics = topics.into_iter().map(Into::into).collect();
        Self { kafka, topics, consumer, config: KafkaConsumerConfig::default() }
    }

    /// Other settings.
    #[must_use]
    pub fn with_config(mut self, config: KafkaConsumerConfig) -> Self {
        self.config = config;
        self
    }

    /// Starts to read, and goes on until it is [shut down](SubscriberHandle::shutdown): whatever is wrong with
    /// the broker or the topics is logged, and tried again.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn spawn(self) -> SubscriberHandle {
        self.consumer.check_retention();
        self.warn_of_long_retries();
        let Self { kafka, topics, consumer, config } = self;
        let dead_letters = config.dead_letters.clone();
        let dead_letters = dead_letters.unwrap_or_else(|| format!("{}.dead", consumer.group()));
        let (slots, shared) = (Arc::new(Semaphore::new(config.concurrency)), Shared::default());
        SubscriberHandle::spawn(shared.subscribed(), |stop| {
            let membership =
                Membership::new(kafka.clone(), consumer.group().to_owned(), topics, shared.clone());
            let session = Session::new(kafka);
            let office = Office { consumer, session, dead_letters, slots, shared, stop };
            Run::new(Arc::new(office), membership, config).run()
        })
    }

    fn warn_of_long_retries(&self) {
        let horizon = self.consumer.config().retry().horizon();
        if horizon > LONG {
            warn!(
                group = self.consumer.group(),
                "retries take up to {horizon:?}, for which one message can hold its partition up; let them take \
                 less long"
            );
        }
    }
}

impl fmt::Debug for KafkaConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaConsumer")
            .field("kafka", &self.kafka)
            .field("topics", &self.topics)
            .field("consumer", &self.consumer)
            .field("config", &self.config)
            .finish()
    }
}
