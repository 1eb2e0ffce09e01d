use anyhow::Result;
use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};

/// What is in the outbox table, read past the store's own code.
#[derive(Debug, Clone)]
pub struct Tables {
    pool: PgPool,
}

/// A row of the outbox table.
#[derive(Debug, Clone, PartialEq)]
pub struct OutboxRow {
    /// The key.
    pub id: i64,
    /// The global id.
    pub msg_id: String,
    /// The article's code.
    pub status: i16,
    /// Attempts charged.
    pub retry_count: i32,
    /// Not to be claimed before.
    pub next_retry_time: DateTime<Utc>,
    /// The fence.
    pub claim_token: Option<String>,
    /// Claims so far.
    pub claim_no: i64,
    /// The end of the latest claim.
    pub lease_until: Option<DateTime<Utc>>,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
}

impl OutboxRow {
    /// Whether a claim is on it.
    #[must_use]
    pub fn is_claimed(&self) -> bool {
        self.claim_token.is_some() || self.lease_until.is_some()
    }
}

impl Tables {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool }
    }

    /// All rows in the order of their ids.
    pub async fn rows(&self) -> Result<Vec<OutboxRow>> {
        let rows = sqlx::query(
            "SELECT id, msg_id, status, retry_count, next_retry_time, claim_token::text, claim_no, lease_until,
                    last_error
             FROM biz_outbox ORDER BY id",
        )
        .fetch_all(&self.pool)
        .await?;
        rows.iter().map(read).collect()
    }

    /// The row of a message.
    pub async fn row(&self, msg_id: &str) -> Result<Option<OutboxRow>> {
        Ok(self.rows().await?.into_iter().find(|row| row.msg_id == msg_id))
    }

    /// The messages that some relay has claimed.
    pub async fn claimed(&self) -> Result<Vec<String>> {
        let rows = self.rows().await?;
        Ok(rows.into_iter().filter(|row| row.status == 0 && row.is_claimed()).map(|row| row.msg_id).collect())
    }

    /// How many rows have this status.
    pub async fn count(&self, status: i16) -> Result<usize> {
        let count: i64 = sqlx::query_scalar("SELECT count(*) FROM biz_outbox WHERE status = $1")
            .bind(status)
            .fetch_one(&self.pool)
            .await?;
        Ok(usize::try_from(count)?)
    }

    /// Every column of every row, as text: equal if and only if nothing has changed.
    pub async fn everything(&self) -> Result<Vec<String>> {
        Ok(sqlx::query_scalar("SELECT to_jsonb(o)::text FROM biz_outbox o ORDER BY id")
            .fetch_all(&self.pool)
            .await?)
    }

    /// The database server's clock.
    pub async fn now(&self) -> Result<DateTime<Utc>> {
        Ok(sqlx::query_scalar("SELECT clock_timestamp()").fetch_one(&self.pool).await?)
    }
}

fn read(row: &PgRow) -> Result<OutboxRow> {
    Ok(OutboxRow {
        id: row.try_get("id")?,
        msg_id: row.try_get("msg_id")?,
        status: row.try_get("status")?,
        retry_count: row.try_get("retry_count")?,
        next_retry_time: row.try_get("next_retry_time")?,
        claim_token: row.try_get("claim_token")?,
        claim_no: row.try_get("claim_no")?,
        lease_until: row.try_get("lease_until")?,
        last_error: row.try_get("last_error")?,
    })
}
