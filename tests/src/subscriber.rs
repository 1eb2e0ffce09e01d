use std::time::Duration;

use anyhow::Result;
use outbox_amqp::{
    AmqpConfig, AmqpConsumer, AmqpConsumerConfig, AmqpReceiptSink, ReceiptListener, SubscriberHandle,
};
use outbox_core::{Consumer, ConsumerConfig, DedupStore, ReceiptSink, RetryPolicy};
use outbox_redis_dedup::{RedisDedup, RedisDedupConfig};
use outbox_sqlx::{PgDedup, PgInbox, PgStore};
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;

use crate::fault::{Fault, FaultPoint};
use crate::faulty_consumer::{FaultyDedup, FaultySink};
use crate::worker::Worker;

/// Whatever reads a queue, the same in this process and in another.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Subscriber {
    /// A consumer of a group.
    Consumer(Box<ConsumerSetup>),
    /// The producer's listener for receipts.
    Listener(ListenerSetup),
}

/// How a consumer group remembers what it has handled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// In the transaction of the effect.
    Inbox,
    /// A dedup store in a table.
    Table,
    /// A dedup store in Redis.
    Redis {
        /// Where.
        url: String,
        /// What the keys start with.
        prefix: String,
    },
}

/// How receipts go back.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Receipts {
    /// Into the producer's table.
    Direct,
    /// Through the broker.
    Queue {
        /// The broker.
        amqp_url: String,
        /// The queue.
        queue: String,
    },
}

/// Everything that makes a consumer of a test. The defaults of [`RoundTrip::consumer`](crate::RoundTrip::consumer)
/// are impatient, so that tests are short.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of ConsumerConfig and AmqpConsumerConfig")]
pub struct ConsumerSetup {
    /// Stands beside its effects.
    pub name: String,
    pub group: String,
    pub memory: Memory,
    pub database_url: String,
    pub amqp_url: String,
    pub queue: String,
    pub receipts: Receipts,
    pub prefetch: u16,
    pub concurrency: usize,
    pub lease: Duration,
    pub patience: Duration,
    pub later: Duration,
    pub heartbeat: Duration,
    pub retry_step: Duration,
    pub max_attempts: u32,
    pub fault: Option<FaultPoint>,
}

/// Everything that makes a listener of a test.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "they say what they are")]
pub struct ListenerSetup {
    pub database_url: String,
    pub amqp_url: String,
    pub queue: String,
}

impl Subscriber {
    /// Its fault.
    #[must_use]
    pub fn fault(&self) -> Option<FaultPoint> {
        match self {
            Self::Consumer(setup) => setup.fault,
            Self::Listener(_) => None,
        }
    }

    /// Starts it on the current runtime, with this fault.
    pub fn start(&self, fault: Fault) -> Result<SubscriberHandle> {
        match self {
            Self::Consumer(setup) => setup.start(fault),
            Self::Listener(setup) => setup.start(),
        }
    }
}

impl ConsumerSetup {
    /// Starts it in this process.
    pub fn start_here(&self) -> Result<SubscriberHandle> {
        self.start(Fault::new(self.fault, |_| ()))
    }

    fn start(&self, fault: Fault) -> Result<SubscriberHandle> {
        let pool = pool(&self.database_url)?;
        let inbox = (self.memory == Memory::Inbox).then(|| PgInbox::new(pool.clone()));
        let sink = FaultySink::new(self.sink(&pool)?, fault.clone());
        let (group, name) = (self.group.clone(), self.name.clone());
        let dedup = self.dedup(&pool)?.map(|dedup| FaultyDedup::new(dedup, fault.clone()));
        let worker = Worker { group, name, pool, inbox, fault };
        let consumer = Consumer::new(&self.group, worker, sink).with_config(self.config());
        let consumer = match dedup {
            Some(dedup) => consumer.with_dedup(dedup),
            None => consumer,
        };
        let amqp = AmqpConfig::new(&self.amqp_url)?.with_heartbeat(self.heartbeat);
        Ok(AmqpConsumer::new(amqp, &self.queue, consumer).with_config(self.amqp_config()).spawn())
    }

    fn sink(&self, pool: &PgPool) -> Result<Box<dyn ReceiptSink>> {
        Ok(match &self.receipts {
            Receipts::Direct => Box::new(PgStore::new(pool.clone())),
            Receipts::Queue { amqp_url, queue } => {
                let amqp = AmqpConfig::new(amqp_url)?.with_heartbeat(self.heartbeat);
                Box::new(AmqpReceiptSink::new(amqp.with_confirm_timeout(Duration::from_secs(2)), queue))
            }
        })
    }

    fn dedup(&self, pool: &PgPool) -> Result<Option<Box<dyn DedupStore>>> {
        Ok(match &self.memory {
            Memory::Inbox => None,
            Memory::Table => Some(Box::new(PgDedup::new(pool.clone()))),
            Memory::Redis { url, prefix } => {
                let config = RedisDedupConfig::default()
                    .with_prefix(prefix)
                    .with_response_timeout(Duration::from_millis(500))
                    .with_connect_timeout(Duration::from_millis(500));
                Some(Box::new(RedisDedup::new(url, config)?))
            }
        })
    }

    fn config(&self) -> ConsumerConfig {
        let retry = RetryPolicy::default()
            .with_steps([self.retry_step])
            .with_max_attempts(self.max_attempts)
            .with_jitter(0.0);
        ConsumerConfig::default()
            .with_retry(retry)
            .with_lease(self.lease)
            .with_patience(self.patience)
            .with_later(self.later)
    }

    fn amqp_config(&self) -> AmqpConsumerConfig {
        AmqpConsumerConfig::default()
            .with_prefetch(self.prefetch)
            .with_concurrency(self.concurrency)
            .with_max_returns(1_000)
    }
}

impl ListenerSetup {
    /// Starts it on the current runtime.
    pub fn start(&self) -> Result<SubscriberHandle> {
        let store = PgStore::new(pool(&self.database_url)?);
        let amqp = AmqpConfig::new(&self.amqp_url)?.with_heartbeat(Duration::from_secs(2));
        Ok(ReceiptListener::new(amqp, &self.queue, store).spawn())
    }
}

/// A handler that waits for a connection is slow, not wrong.
fn pool(url: &str) -> Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(4).acquire_timeout(Duration::from_secs(10));
    Ok(options.connect_lazy(url)?)
}
