use anyhow::Result;
use chrono::{DateTime, Utc};
use sqlx::postgres::PgRow;
use sqlx::{PgPool, Row};

/// One change of one row, as a trigger saw it.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// When, by the database's clock.
    pub at: DateTime<Utc>,
    /// The `application_name` of the session.
    pub by: String,
    /// The message.
    pub msg_id: String,
    /// The new status.
    pub status: i16,
    /// The new count of attempts.
    pub retry_count: i32,
    /// The new due time.
    pub next_retry_time: DateTime<Utc>,
    /// The new fence.
    pub claim_token: Option<String>,
    /// The new claim number.
    pub claim_no: i64,
    /// The new end of the lease.
    pub lease_until: Option<DateTime<Utc>>,
}

const TRIGGER: &str = "
    CREATE TABLE audit (
        n bigserial PRIMARY KEY, at timestamptz NOT NULL, by text NOT NULL, msg_id text NOT NULL,
        status smallint NOT NULL, retry_count int NOT NULL, next_retry_time timestamptz NOT NULL,
        claim_token text, claim_no bigint NOT NULL, lease_until timestamptz
    );
    CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        INSERT INTO audit (at, by, msg_id, status, retry_count, next_retry_time, claim_token, claim_no, lease_until)
        VALUES (clock_timestamp(), current_setting('application_name'), NEW.msg_id, NEW.status, NEW.retry_count,
                NEW.next_retry_time, NEW.claim_token::text, NEW.claim_no, NEW.lease_until);
        RETURN NULL;
    END $$;
    INSERT INTO audit (at, by, msg_id, status, retry_count, next_retry_time, claim_token, claim_no, lease_until)
        SELECT clock_timestamp(), 'before', msg_id, status, retry_count, next_retry_time, claim_token::text, claim_no,
               lease_until FROM biz_outbox ORDER BY id;
    CREATE TRIGGER audit AFTER INSERT OR UPDATE ON biz_outbox FOR EACH ROW EXECUTE FUNCTION audit();
";

/// From now on every change of the outbox table is kept; what is there already counts as the first. A change that is rolled back is not.
pub(crate) async fn install(pool: &PgPool) -> Result<()> {
    sqlx::raw_sql(TRIGGER).execute(pool).await?;
    Ok(())
}

/// All changes; those of one row in the order in which they happened.
pub(crate) async fn steps(pool: &PgPool) -> Result<Vec<Step>> {
    let rows = sqlx::query("SELECT * FROM audit ORDER BY n").fetch_all(pool).await?;
    rows.iter().map(read).collect()
}

fn read(row: &PgRow) -> Result<Step> {
    Ok(Step {
        at: row.try_get("at")?,
        by: row.try_get("by")?,
        msg_id: row.try_get("msg_id")?,
        status: row.try_get("status")?,
        retry_count: row.try_get("retry_count")?,
        next_retry_time: row.try_get("next_retry_time")?,
        claim_token: row.try_get("claim_token")?,
        claim_no: row.try_get("claim_no")?,
        lease_until: row.try_get("lease_until")?,
    })
}
