use std::collections::BTreeMap;

use anyhow::Result;
use chrono::{DateTime, Utc};
use outbox_core::consumer::Delivery;
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{PgExecutor, PgPool, Row};

/// The tables in which handlers leave their traces, and a witness of the moment at which a row is completed: which of
/// its required groups had not had its effect by then.
const TABLES: &str = "
    CREATE TABLE runs (
        n bigserial PRIMARY KEY, consumer_group text NOT NULL, msg_id text NOT NULL, attempt int NOT NULL,
        by text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE TABLE effects (
        n bigserial PRIMARY KEY, consumer_group text NOT NULL, msg_id text NOT NULL, biz_id text NOT NULL,
        by text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp()
    );
    CREATE INDEX ON effects (msg_id);
    CREATE TABLE premature (consumer_group text NOT NULL, msg_id text NOT NULL);
    CREATE FUNCTION witness() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO premature (consumer_group, msg_id)
            SELECT g, NEW.msg_id FROM jsonb_array_elements_text(NEW.required_groups) g
            WHERE NOT EXISTS (SELECT FROM effects e WHERE e.msg_id = NEW.msg_id AND e.consumer_group = g);
        RETURN NULL;
    END $$;
    CREATE TRIGGER witness AFTER UPDATE ON biz_outbox FOR EACH ROW
        WHEN (NEW.status = 2 AND OLD.status <> 2) EXECUTE FUNCTION witness();
";

pub(crate) async fn install(pool: &PgPool) -> Result<()> {
    sqlx::raw_sql(TABLES).execute(pool).await?;
    Ok(())
}

/// What the handlers of all groups have done, read past the framework's own code.
#[derive(Debug, Clone)]
pub struct Effects {
    pool: PgPool,
}

/// A trace of a handler.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The group.
    pub consumer_group: String,
    /// The message.
    pub msg_id: String,
    /// The name of the consumer.
    pub by: String,
    /// When, by the database's clock.
    pub at: DateTime<Utc>,
}

impl Effects {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// The beginnings of the handlers' runs, in their order.
    pub async fn runs(&self) -> Result<Vec<Trace>> {
        self.traces("SELECT consumer_group, msg_id, by, at FROM runs ORDER BY n").await
    }

    /// The effects, in their order.
    pub async fn all(&self) -> Result<Vec<Trace>> {
        self.traces("SELECT consumer_group, msg_id, by, at FROM effects ORDER BY n").await
    }

    async fn traces(&self, sql: &'static str) -> Result<Vec<Trace>> {
        let rows = sqlx::query(sql).fetch_all(&self.pool).await?;
        rows.iter().map(read).collect()
    }

    /// How often each message has had its effect in a group.
    pub async fn counts(&self, group: &str) -> Result<BTreeMap<String, usize>> {
        let mut counts = BTreeMap::new();
        for effect in self.all().await?.into_iter().filter(|effect| effect.consumer_group == group) {
            *counts.entry(effect.msg_id).or_default() += 1;
        }
        Ok(counts)
    }

    /// The groups and messages whose row was completed before their effect had happened.
    pub async fn premature(&self) -> Result<Vec<(String, String)>> {
        Ok(sqlx::query_as("SELECT consumer_group, msg_id FROM premature").fetch_all(&self.pool).await?)
    }
}

fn read(row: &PgRow) -> Result<Trace> {
    Ok(Trace {
        consumer_group: row.try_get("consumer_group")?,
        msg_id: row.try_get("msg_id")?,
        by: row.try_get("by")?,
        at: row.try_get("at")?,
    })
}

/// A handler's run begins.
pub(crate) async fn begin(pool: &PgPool, group: &str, by: &str, order: &Delivery<Value>) -> sqlx::Result<()> {
    let sql = "INSERT INTO runs (consumer_group, msg_id, attempt, by) VALUES ($1, $2, $3, $4)";
    let attempt = i32::try_from(order.attempt()).unwrap_or(i32::MAX);
    sqlx::query(sql).bind(group).bind(order.msg_id()).bind(attempt).bind(by).execute(pool).await.map(drop)
}

/// The effect itself.
pub(crate) async fn happen(
    connection: impl PgExecutor<'_>,
    group: &str,
    by: &str,
    order: &Delivery<Value>,
) -> sqlx::Result<()> {
    let sql = "INSERT INTO effects (consumer_group, msg_id, biz_id, by) VALUES ($1, $2, $3, $4)";
    let effect = sqlx::query(sql).bind(group).bind(order.msg_id()).bind(order.biz_id()).bind(by);
    effect.execute(connection).await.map(drop)
}
