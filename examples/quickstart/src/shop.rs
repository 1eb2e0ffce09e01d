use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use outbox::sqlx::{SqlDatabase, SqlStore};
use outbox::{Enqueue, Message, OutboxStore};
use serde::Serialize;
use sqlx::{ColumnIndex, Decode, Encode, Executor, IntoArguments, Pool, Type};

/// What a customer buys.
#[derive(Debug, Serialize)]
pub struct Order {
    pub id: String,
    pub cents: i64,
}

/// What the bank says after order and message are written, and before the commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payment {
    Accepted,
    Refused,
}

/// The order service, on any database.
#[async_trait]
pub trait Shop: Send + Sync {
    /// Writes the order and its message in one transaction: both exist, or neither. Answers the `msg_id`.
    async fn place(&self, order: &Order, payment: Payment) -> Result<String>;

    /// How many orders there are.
    async fn orders(&self) -> Result<i64>;

    /// Where the messages wait.
    fn outbox(&self) -> Arc<dyn OutboxStore>;
}

/// An application's tables, and the outbox in the same database.
pub struct SqlShop<DB: SqlDatabase> {
    pool: Pool<DB>,
    outbox: SqlStore<DB>,
}

impl<DB: SqlDatabase> SqlShop<DB>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    /// Creates the tables.
    pub async fn open(pool: Pool<DB>) -> Result<Self> {
        let outbox = SqlStore::new(pool.clone());
        outbox.migrate().await?;
        let mut connection = pool.acquire().await?;
        connection.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, cents BIGINT NOT NULL)").await?;
        Ok(Self { pool, outbox })
    }
}

/// The bounds are the price of one body for two databases: with a `PgPool` and a `PgStore` there are none.
#[async_trait]
impl<DB: SqlDatabase> Shop for SqlShop<DB>
where
    DB::Arguments: IntoArguments<DB>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
    for<'q> &'q str: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Decode<'q, DB> + Type<DB>,
    usize: ColumnIndex<DB::Row>,
{
    async fn place(&self, order: &Order, payment: Payment) -> Result<String> {
        let message = Message::json("order.created", &order.id, order)?;
        let msg_id = message.msg_id().to_owned();

        let mut tx = self.pool.begin().await?;
        sqlx::query("INSERT INTO orders (id, cents) VALUES ($1, $2)")
            .bind(order.id.as_str())
            .bind(order.cents)
            .execute(&mut *tx)
            .await?;
        self.outbox.enqueue(&mut tx, &[message]).await?;
        match payment {
            Payment::Accepted => tx.commit().await?,
            Payment::Refused => tx.rollback().await?,
        }
        Ok(msg_id)
    }

    async fn orders(&self) -> Result<i64> {
        let mut connection = self.pool.acquire().await?;
        Ok(sqlx::query_scalar("SELECT COUNT(*) FROM orders").fetch_one(&mut *connection).await?)
    }

    fn outbox(&self) -> Arc<dyn OutboxStore> {
        Arc::new(self.outbox.clone())
    }
}
