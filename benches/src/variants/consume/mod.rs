//! The consumer's side: a queue that is full, and a handler whose effect is one row.

mod article;
mod handlers;
mod round_trip;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use outbox_amqp::{
    AmqpConfig, AmqpConsumer, AmqpConsumerConfig, AmqpPublisher, QueueKind as Kind, SubscriberHandle,
};
use outbox_core::consumer::{Consumer, NoReceipts};
use outbox_core::{Message, Publisher};
use outbox_redis_dedup::{RedisDedup, RedisDedupConfig};
use outbox_sqlx::{PgDedup, PgInbox};

pub(crate) use article::ArticleConsumer;
pub(crate) use round_trip::{Pace, RoundTrip};

use crate::case::Case;
use crate::effects::Effects;
use crate::queue::{Queue, QueueKind};
use crate::stopwatch::{Sample, Stopwatch};
use crate::variant::Variant;
use handlers::{Once, Plain};

const GROUP: &str = "bench";
const SHUTDOWN: Duration = Duration::from_secs(20);
const CHUNK: usize = 1_000;

/// Where a consumer group remembers what it has handled.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Memory {
    Nowhere,
    Inbox,
    Table,
    Redis,
}

/// The framework's consumer.
pub(crate) struct Consume {
    pub(crate) memory: Memory,
}

#[async_trait]
impl Variant for Consume {
    fn name(&self) -> &'static str {
        match self.memory {
            Memory::Nowhere => "consume",
            Memory::Inbox => "consume-inbox",
            Memory::Table => "consume-table",
            Memory::Redis => "consume-redis",
        }
    }

    fn about(&self) -> &'static str {
        match self.memory {
            Memory::Nowhere => "AmqpConsumer with default settings, no deduplication",
            Memory::Inbox => "the same, the marker in the handler's own transaction (PgInbox)",
            Memory::Table => "the same, leases and markers in a table (PgDedup)",
            Memory::Redis => "the same, leases and markers in Redis (RedisDedup)",
        }
    }

    fn publishes(&self) -> bool {
        true
    }

    fn compared_with(&self) -> &'static [&'static str] {
        match self.memory {
            Memory::Nowhere => &["consume-article"],
            _ => &["consume-article", "consume"],
        }
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let (queue, count) = (case.queue().await?, case.consumed());
        fill(case, &queue, count).await?;
        let effects = Effects::create(case.ground).await?;
        let consumer = self.consumer(case, &effects).await?;
        let stopwatch = Stopwatch::start();
        let running = spawn(case, &queue, consumer)?;
        let reached = effects.reach(count).await;
        let sample = stopwatch.stop(count);
        let report = running.shutdown(SHUTDOWN).await;
        reached?;
        ensure!(report.ended, "the consumer did not stop in time");
        effects.verify(count).await?;
        queue.verify(0).await?;
        Ok(sample)
    }
}

impl Consume {
    async fn consumer(&self, case: &Case<'_>, effects: &Effects) -> Result<Consumer> {
        let table = format!("{}.{}", case.ground.schema, case.ground.name("handled"));
        let plain = || Consumer::new(GROUP, Plain(effects.clone()), NoReceipts);
        Ok(match self.memory {
            Memory::Nowhere => plain(),
            Memory::Inbox => {
                let inbox = PgInbox::new(case.pool().clone()).with_table(&table)?;
                inbox.migrate().await?;
                Consumer::new(GROUP, Once { effects: effects.clone(), inbox }, NoReceipts)
            }
            Memory::Table => {
                let dedup = PgDedup::new(case.pool().clone()).with_table(&table)?;
                dedup.migrate().await?;
                plain().with_dedup(dedup)
            }
            Memory::Redis => {
                let keys =
                    RedisDedupConfig::default().with_prefix(&table).with_retention(Duration::from_secs(600));
                plain().with_dedup(RedisDedup::new(redis_url(case)?, keys)?)
            }
        })
    }
}

fn redis_url<'a>(case: &'a Case<'_>) -> Result<&'a str> {
    case.args.redis_url.as_deref().context("Redis is missing: --redis-url, or OUTBOX_REDIS_URL")
}

/// Messages as the relay sends them.
async fn fill(case: &Case<'_>, queue: &Queue, count: usize) -> Result<()> {
    let publisher = AmqpPublisher::new(AmqpConfig::new(&case.args.amqp_url)?);
    let messages: Vec<Message> = case.messages(queue.name(), count)?;
    for chunk in messages.chunks(CHUNK) {
        publisher.publish_batch(chunk).await.into_iter().collect::<Result<Vec<()>, _>>()?;
    }
    publisher.close().await?;
    queue.verify(count).await
}

fn spawn(case: &Case<'_>, queue: &Queue, consumer: Consumer) -> Result<SubscriberHandle> {
    let kind = match case.queue_kind {
        QueueKind::Classic => Kind::Classic,
        QueueKind::Quorum => Kind::Quorum,
    };
    let config = AmqpConsumerConfig::default().with_queue_kind(kind);
    let amqp = AmqpConfig::new(&case.args.amqp_url)?;
    Ok(AmqpConsumer::new(amqp, queue.name(), consumer).with_config(config).spawn())
}
