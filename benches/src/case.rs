use anyhow::Result;
use outbox_core::{Enqueue, Message};
use outbox_sqlx::PgStore;
use sqlx::postgres::PgPool;

use crate::cli::Args;
use crate::ground::Ground;
use crate::orders;
use crate::queue::{Queue, QueueKind};
use crate::table::{Shape, Table};

/// What a variant is given to measure itself once.
pub(crate) struct Case<'a> {
    pub(crate) args: &'a Args,
    pub(crate) ground: &'a Ground,
    pub(crate) queue_kind: QueueKind,
}

impl Case<'_> {
    pub(crate) fn pool(&self) -> &PgPool {
        &self.ground.pool
    }

    /// How many messages go through, where they go in bulk.
    pub(crate) fn many(&self) -> usize {
        self.args.messages as usize
    }

    /// How many messages go through, where they go one at a time.
    pub(crate) fn few(&self) -> usize {
        self.args.single_messages.min(self.args.messages) as usize
    }

    /// How many messages go through where a consumer takes part.
    pub(crate) fn consumed(&self) -> usize {
        self.args.consumed_messages as usize
    }

    pub(crate) async fn queue(&self) -> Result<Queue> {
        self.ground.queue(self.queue_kind).await
    }

    pub(crate) fn messages(&self, biz_type: &str, count: usize) -> Result<Vec<Message>> {
        orders::messages(biz_type, count, self.args.bytes as usize)
    }

    /// A table of this shape in which `count` messages wait.
    pub(crate) async fn filled_table(&self, shape: Shape, biz_type: &str, count: usize) -> Result<Table> {
        let table = Table::create(self.ground, shape).await?;
        table.fill(&self.messages(biz_type, count)?).await?;
        Ok(table)
    }

    /// The framework's outbox, empty, and its table to look into.
    pub(crate) async fn outbox(&self) -> Result<(PgStore, Table)> {
        let table = format!("{}.{}", self.ground.schema, self.ground.name("outbox"));
        let store = PgStore::new(self.pool().clone()).with_table(&table)?;
        store.migrate().await?;
        Ok((store, Table::existing(self.pool().clone(), table)))
    }

    /// Writes messages as an application would.
    pub(crate) async fn enqueue(&self, store: &PgStore, messages: &[Message]) -> Result<()> {
        let mut tx = self.pool().begin().await?;
        store.enqueue(&mut tx, messages).await?;
        Ok(tx.commit().await?)
    }
}
