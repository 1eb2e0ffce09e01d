use anyhow::{Result, ensure};
use sqlx::postgres::PgPool;
use uuid::Uuid;

use super::wire::Outgoing;
use crate::table::Table;

/// Claims by lease in hand-written SQL: what an engineer would write who knows PostgreSQL well.
#[derive(Debug, Clone)]
pub(crate) struct Leases {
    pub(crate) pool: PgPool,
    pub(crate) table: Table,
    pub(crate) batch: usize,
}

/// Rows under one token.
pub(crate) struct Claimed {
    pub(crate) token: Uuid,
    pub(crate) rows: Vec<Outgoing>,
}

const CLAIM: &str = "WITH due AS MATERIALIZED (
        SELECT id FROM {table}
        WHERE status = 0 AND next_retry_time <= now() AND (lease_until IS NULL OR lease_until <= now())
        ORDER BY next_retry_time, id LIMIT $1 FOR UPDATE SKIP LOCKED)
    UPDATE {table} AS t SET claim_token = $2, lease_until = now() + interval '1 minute'
    FROM due WHERE t.id = due.id
    RETURNING t.id, t.msg_id, t.biz_type, t.payload::text AS payload";

const SETTLE: &str = "UPDATE {table} SET status = 1, sent_at = now(), claim_token = NULL, lease_until = NULL
    WHERE id = ANY($1) AND claim_token = $2 AND status = 0";

impl Leases {
    /// The next batch; empty when nothing is left.
    pub(crate) async fn claim(&self) -> Result<Claimed> {
        let token = Uuid::new_v4();
        let rows = sqlx::query_as(self.table.sql(CLAIM))
            .bind(i64::try_from(self.batch)?)
            .bind(token)
            .fetch_all(&self.pool)
            .await?;
        Ok(Claimed { token, rows })
    }

    /// Marks a whole batch as sent.
    pub(crate) async fn settle(&self, claimed: &Claimed) -> Result<()> {
        let ids: Vec<i64> = claimed.rows.iter().map(|row| row.id).collect();
        let settled =
            sqlx::query(self.table.sql(SETTLE)).bind(&ids).bind(claimed.token).execute(&self.pool).await?;
        ensure!(settled.rows_affected() == ids.len() as u64, "a claim was lost");
        Ok(())
    }
}
