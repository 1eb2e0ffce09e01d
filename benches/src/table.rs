use anyhow::{Context, Result, ensure};
use outbox_core::Message;
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgConnection, PgPool};

use crate::ground::Ground;

/// What the variants without the framework keep their messages in.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Shape {
    /// The article's table and index, to the letter.
    Article,
    /// The same with a lease, and the index that claiming by lease wants.
    Leased,
}

const ARTICLE: &str = "CREATE TABLE {table} (
    id BIGSERIAL PRIMARY KEY, msg_id VARCHAR(64) NOT NULL UNIQUE, biz_type VARCHAR(32) NOT NULL,
    biz_id VARCHAR(64) NOT NULL, payload JSONB NOT NULL, status SMALLINT NOT NULL DEFAULT 0,
    retry_count INT NOT NULL DEFAULT 0, next_retry_time TIMESTAMP NOT NULL DEFAULT now(),
    created_at TIMESTAMP NOT NULL DEFAULT now(), sent_at TIMESTAMP);
CREATE INDEX ON {table} (status, next_retry_time)";

const LEASED: &str = "CREATE TABLE {table} (
    id BIGSERIAL PRIMARY KEY, msg_id VARCHAR(64) NOT NULL UNIQUE, biz_type VARCHAR(32) NOT NULL,
    biz_id VARCHAR(64) NOT NULL, payload JSONB NOT NULL, status SMALLINT NOT NULL DEFAULT 0,
    retry_count INT NOT NULL DEFAULT 0, next_retry_time TIMESTAMPTZ NOT NULL DEFAULT now(),
    created_at TIMESTAMPTZ NOT NULL DEFAULT now(), sent_at TIMESTAMPTZ,
    claim_token UUID, lease_until TIMESTAMPTZ) WITH (fillfactor = 50);
CREATE INDEX ON {table} (next_retry_time, id) WHERE status = 0";

const INSERT: &str = "INSERT INTO {table} (msg_id, biz_type, biz_id, payload)
    SELECT m, t, b, p::jsonb FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS x (m, t, b, p)";

const FILL_CHUNK: usize = 1_000;

/// A table of this run.
#[derive(Debug, Clone)]
pub(crate) struct Table {
    pool: PgPool,
    name: String,
}

impl Table {
    pub(crate) async fn create(ground: &Ground, shape: Shape) -> Result<Self> {
        let name = format!("{}.{}", ground.schema, ground.name("messages"));
        let table = Self { pool: ground.pool.clone(), name };
        let ddl = match shape {
            Shape::Article => ARTICLE,
            Shape::Leased => LEASED,
        };
        sqlx::raw_sql(table.sql(ddl)).execute(&table.pool).await.context("cannot create the table")?;
        Ok(table)
    }

    /// A table that somebody else has created.
    pub(crate) fn existing(pool: PgPool, name: String) -> Self {
        Self { pool, name }
    }

    /// Puts the table's name into a statement.
    pub(crate) fn sql(&self, template: &str) -> AssertSqlSafe<String> {
        AssertSqlSafe(template.replace("{table}", &self.name))
    }

    pub(crate) async fn fill(&self, messages: &[Message]) -> Result<()> {
        let mut tx = self.pool.begin().await?;
        for chunk in messages.chunks(FILL_CHUNK) {
            self.insert(&mut tx, chunk).await?;
        }
        tx.commit().await?;
        self.analyze().await
    }

    /// One statement for all of them, with the article's columns.
    pub(crate) async fn insert(&self, connection: &mut PgConnection, messages: &[Message]) -> Result<()> {
        let column = |of: fn(&Message) -> &str| messages.iter().map(of).collect::<Vec<_>>();
        sqlx::query(self.sql(INSERT))
            .bind(column(Message::msg_id))
            .bind(column(Message::biz_type))
            .bind(column(Message::biz_id))
            .bind(column(body))
            .execute(connection)
            .await?;
        Ok(())
    }

    /// A table in use has statistics; one that was filled a second ago has none.
    pub(crate) async fn analyze(&self) -> Result<()> {
        sqlx::raw_sql(self.sql("VACUUM (ANALYZE) {table}")).execute(&self.pool).await?;
        Ok(())
    }

    /// Fails unless the table holds exactly `expected` messages, all with this status.
    pub(crate) async fn verify(&self, status: i16, expected: usize) -> Result<()> {
        let count = "SELECT count(*) FILTER (WHERE status = $1), count(*) FROM {table}";
        let (right, all): (i64, i64) =
            sqlx::query_as(self.sql(count)).bind(status).fetch_one(&self.pool).await?;
        let expected = i64::try_from(expected)?;
        ensure!(
            right == expected && all == expected,
            "the table holds {all} messages, {right} with status {status}, instead of {expected}"
        );
        Ok(())
    }
}

fn body(message: &Message) -> &str {
    std::str::from_utf8(message.payload().as_bytes()).unwrap_or_default()
}
