use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lapin::Channel;
use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use serde::Serialize;
use tokio::time::{Instant, sleep};

/// RabbitMQ's queue types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum QueueKind {
    Classic,
    Quorum,
}

impl QueueKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Classic => "classic",
            Self::Quorum => "quorum",
        }
    }
}

/// A durable queue of this run.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    channel: Channel,
    name: String,
}

/// After a run that was killed, the broker removes the queue by itself.
const UNUSED_FOR: Duration = Duration::from_secs(3600);
const COUNT_WITHIN: Duration = Duration::from_secs(10);

impl Queue {
    pub(crate) async fn declare(channel: Channel, name: String, kind: QueueKind) -> Result<Self> {
        let mut arguments = FieldTable::default();
        arguments.insert("x-queue-type".into(), AMQPValue::LongString(kind.name().into()));
        arguments.insert("x-expires".into(), AMQPValue::LongInt(UNUSED_FOR.as_millis().try_into()?));
        let queue = name.as_str().into();
        channel
            .queue_declare(queue, QueueDeclareOptions::durable(), arguments)
            .await
            .with_context(|| format!("cannot declare a {} queue", kind.name()))?;
        Ok(Self { channel, name })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Fails unless exactly `expected` messages arrive. The broker's count may lag behind its confirms.
    pub(crate) async fn verify(&self, expected: usize) -> Result<()> {
        let end = Instant::now() + COUNT_WITHIN;
        let mut count = self.count().await?;
        while count != expected && Instant::now() < end {
            sleep(Duration::from_millis(50)).await;
            count = self.count().await?;
        }
        ensure!(count == expected, "the queue holds {count} messages instead of {expected}");
        Ok(())
    }

    async fn count(&self) -> Result<usize> {
        let passive = QueueDeclareOptions::durable().passive();
        let queue = self.channel.queue_declare(self.name.as_str().into(), passive, FieldTable::default());
        Ok(queue.await.context("cannot count the queue")?.message_count().try_into()?)
    }
}
