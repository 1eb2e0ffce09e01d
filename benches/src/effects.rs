use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sqlx::AssertSqlSafe;
use sqlx::postgres::{PgConnection, PgPool};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::ground::Ground;

/// What a handler does: one row for each message, with the time.
#[derive(Debug, Clone)]
pub(crate) struct Effects {
    pub(crate) pool: PgPool,
    pub(crate) table: String,
    happened: watch::Sender<usize>,
}

const STALLED: Duration = Duration::from_secs(60);

impl Effects {
    pub(crate) async fn create(ground: &Ground) -> Result<Self> {
        let table = format!("{}.{}", ground.schema, ground.name("effects"));
        let columns = "msg_id text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp()";
        ground.execute(format!("CREATE TABLE {table} ({columns})")).await?;
        Ok(Self { pool: ground.pool.clone(), table, happened: watch::Sender::new(0) })
    }

    /// Makes it happen; [`count`](Self::count) it when that is durable.
    pub(crate) async fn write(&self, connection: &mut PgConnection, msg_id: &str) -> sqlx::Result<()> {
        let insert = AssertSqlSafe(format!("INSERT INTO {} (msg_id) VALUES ($1)", self.table));
        sqlx::query(insert).bind(msg_id).execute(connection).await.map(drop)
    }

    pub(crate) fn count(&self) {
        self.happened.send_modify(|count| *count += 1);
    }

    /// Returns when so many have happened; fails when none does for a minute.
    pub(crate) async fn reach(&self, goal: usize) -> Result<()> {
        let mut happened = self.happened.subscribe();
        loop {
            let count = *happened.borrow_and_update();
            if count >= goal {
                return Ok(());
            }
            let next = timeout(STALLED, happened.changed()).await;
            next.with_context(|| format!("the consumer stopped at {count} of {goal} messages"))??;
        }
    }

    /// Fails unless each of so many messages had its effect once.
    pub(crate) async fn verify(&self, expected: usize) -> Result<()> {
        let sql = AssertSqlSafe(format!("SELECT count(*), count(DISTINCT msg_id) FROM {}", self.table));
        let (all, distinct): (i64, i64) = sqlx::query_as(sql).fetch_one(&self.pool).await?;
        let expected = i64::try_from(expected)?;
        ensure!(
            all == expected && distinct == expected,
            "{all} effects of {distinct} messages, instead of {expected}"
        );
        Ok(())
    }
}
