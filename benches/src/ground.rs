use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use lapin::options::{ConfirmSelectOptions, QueueDeleteOptions};
use lapin::{Channel, Connection, ConnectionProperties};
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgPool, PgPoolOptions};
use uuid::Uuid;

use crate::cli::Args;
use crate::queue::{Queue, QueueKind};

/// The services, and in them the places that belong to this run alone: a schema and the queues.
pub(crate) struct Ground {
    pub(crate) pool: PgPool,
    pub(crate) schema: String,
    broker: Connection,
    queues: Mutex<Vec<String>>,
    names: AtomicU32,
}

impl Ground {
    pub(crate) async fn open(args: &Args) -> Result<Self> {
        let pool = pool(args).await?;
        let broker = Connection::connect(&args.amqp_url, ConnectionProperties::default())
            .await
            .context("cannot reach RabbitMQ")?;
        let schema = format!("outbox_bench_{}", &Uuid::new_v4().simple().to_string()[..8]);
        let ground = Self { pool, schema, broker, queues: Mutex::default(), names: AtomicU32::new(0) };
        ground.execute(format!("CREATE SCHEMA {}", ground.schema)).await?;
        Ok(ground)
    }

    pub(crate) async fn execute(&self, sql: String) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(sql)).execute(&self.pool).await?;
        Ok(())
    }

    /// A name that this run has not used yet.
    pub(crate) fn name(&self, stem: &str) -> String {
        format!("{stem}_{}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) async fn queue(&self, kind: QueueKind) -> Result<Queue> {
        let name = self.name(&self.schema);
        let queue = Queue::declare(self.broker.create_channel().await?, name, kind).await?;
        self.queues().extend([queue.name().to_owned(), dead_letters(&queue)]);
        Ok(queue)
    }

    /// The queue beside `queue` for what its reader cannot read, which goes by itself as `queue` does.
    pub(crate) async fn declare_dead_letters(&self, queue: &Queue, kind: QueueKind) -> Result<()> {
        Queue::declare(self.broker.create_channel().await?, dead_letters(queue), kind).await.map(drop)
    }

    /// A channel on which the broker confirms.
    pub(crate) async fn confirming_channel(&self) -> Result<Channel> {
        let channel = self.broker.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    /// Removes what was made so far, before the next measurement.
    pub(crate) async fn reset(&self) -> Result<()> {
        self.clear().await?;
        self.execute(format!("CREATE SCHEMA {}", self.schema)).await
    }

    /// Removes everything that this run has made.
    pub(crate) async fn clear(&self) -> Result<()> {
        let queues = self.delete_queues().await;
        self.execute(format!("DROP SCHEMA IF EXISTS {} CASCADE", self.schema)).await?;
        queues
    }

    /// On a channel of its own: the others may be what failed.
    async fn delete_queues(&self) -> Result<()> {
        let queues = std::mem::take(&mut *self.queues());
        let channel = self.broker.create_channel().await?;
        for queue in queues {
            channel
                .queue_delete(queue.as_str().into(), QueueDeleteOptions::default())
                .await
                .with_context(|| format!("cannot delete the queue {queue}"))?;
        }
        channel.close(200, "done".into()).await?;
        Ok(())
    }

    fn queues(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where consumers put what they give up.
fn dead_letters(queue: &Queue) -> String {
    format!("{}.dead", queue.name())
}

async fn pool(args: &Args) -> Result<PgPool> {
    PgPoolOptions::new()
        .min_connections(args.connections)
        .max_connections(args.connections)
        .connect(&args.pg_url)
        .await
        .context("cannot reach PostgreSQL")
}
