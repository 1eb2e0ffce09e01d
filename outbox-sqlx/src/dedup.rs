use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Begin, Clock, DedupError, DedupKey, DedupStore, DedupToken, StoreError, StoreErrorKind};
use sqlx::Pool;

use crate::access::commit;
use crate::error::retrying;
use crate::keys::{KeyTable, Layout, key};
use crate::names::TableName;
use crate::row::Cells;
use crate::sql::Sql;
use crate::store::SqlDatabase;

pub(crate) const LAYOUT: Layout = Layout { token: true, time: "expires_at" };

/// The memory of a consumer group in a table: first a lease, after the handler a done marker. For handlers whose
/// effect is not in this database; where it is, [`SqlInbox`](crate::SqlInbox) makes it happen exactly once.
///
/// ```
/// use std::time::Duration;
/// use outbox_core::consumer::{Consumer, Delivery, NoReceipts, handler_fn};
/// use outbox_sqlx::SqliteDedup;
///
/// # async fn example(pool: sqlx::SqlitePool) -> Result<(), Box<dyn std::error::Error>> {
/// let dedup = SqliteDedup::new(pool).with_retention(Duration::from_secs(3 * 24 * 3600));
/// dedup.migrate().await?;
/// let handler = handler_fn(async |order: Delivery<serde_json::Value>| {
///     println!("mail for {}", order.biz_id());
///     Ok(())
/// });
/// let consumer = Consumer::new("mails", handler, NoReceipts).with_dedup(dedup.clone());
///
/// // Now and then, in one process or in all:
/// dedup.forget_expired(500).await?;
/// # Ok(())
/// # }
/// ```
///
/// The effect happens at least once and never zero times. It happens twice when the consumer dies between the
/// effect and the marker, when a handler outlives its lease without renewing it, and when a message comes after
/// the retention.
///
/// Leases and markers end by the clock of the database server, whatever the clocks of the hosts. Every call is one
/// short transaction, run again after a collision. A future that is dropped leaves the key as before or as
/// after the call; a lease that nobody knows of runs out.
pub struct SqlDedup<DB: SqlDatabase> {
    pub(crate) keys: KeyTable<DB>,
    retention: Duration,
}

impl<DB: SqlDatabase> SqlDedup<DB> {
    /// A dedup store in the table `biz_dedup` that keeps done markers for a day. Nothing is asked of the database
    /// yet.
    ///
    /// Give it a pool of its own: where handlers hold all connections of a pool, leases are not renewed in time, and
    /// what they were doing is begun again.
    #[must_use]
    pub fn new(pool: Pool<DB>) -> Self {
        let retention = Duration::from_secs(24 * 3600);
        Self { keys: KeyTable::new(pool, "biz_dedup", LAYOUT), retention }
    }

    /// Another table, `table` or `schema.table`. The name is taken as it is written.
    ///
    /// # Errors
    /// As [`SqlStore::with_table`](crate::SqlStore::with_table).
    pub fn with_table(mut self, table: &str) -> Result<Self, StoreError> {
        self.keys.name = TableName::parse(table, DB::QUOTE)?;
        Ok(self)
    }

    /// For how long a done marker stays. It must be longer than a message may keep coming, which
    /// [`Consumer::check_retention`](outbox_core::Consumer::check_retention) checks at the start. Markers
    /// that are there keep the retention they were given.
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Follows another clock than the database's own; meant for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.keys.db = self.keys.db.with_clock(clock);
        self
    }

    /// The pool that the store works on.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.keys.db.pool
    }

    /// Creates the table and its index. Changes nothing where nothing is missing, and may be called by any
    /// number of processes at once.
    ///
    /// # Errors
    /// When the database refuses, or a table of that name is there that is no dedup table; then nothing has
    /// changed.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.keys.migrate().await
    }

    /// Removes the leases and done markers whose time is over, the oldest first, `batch` in each short
    /// transaction, until none is left; says how many. They count for nothing any more: this only frees their
    /// space. Some hundreds are a good batch. Several processes may do it at once.
    ///
    /// # Errors
    /// When the database did not answer. What is removed by then stays removed, also when the future is dropped.
    pub async fn forget_expired(&self, batch: usize) -> Result<usize, StoreError> {
        self.keys.forget(Duration::ZERO, batch).await
    }

    /// A key that is new takes one statement.
    async fn try_begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, StoreError> {
        let token = DedupToken::random();
        let mut tx = self.keys.db.begin_write().await?;
        let begin = if self.keys.insert(&mut tx, key, Some((token.0, lease))).await?
            || self.take_over(key, token, lease).execute(&mut tx).await? == 1
        {
            Begin::Acquired(token)
        } else {
            let rows = self.live(key).fetch(&mut tx).await?;
            let done = rows.first().map(|row| Cells::<DB>::of(row).number::<u8>() == 1);
            match done.ok_or_else(vanished)? {
                true => Begin::Done,
                false => Begin::InProgress,
            }
        };
        commit(tx).await?;
        Ok(begin)
    }

    pub(crate) fn take_over(&self, key: &DedupKey, token: DedupToken, lease: Duration) -> Sql<DB> {
        let sql = self.keys.db.sql().text(format!("UPDATE {} SET token = ", self.keys.name));
        let sql = sql.uuid(token.0).text(", expires_at = ").later(lease).text(" WHERE ");
        KeyTable::is(sql, key).text(" AND expires_at <= ").now()
    }

    /// Whether the lease or marker of `key` is a marker, if there is one.
    pub(crate) fn live(&self, key: &DedupKey) -> Sql<DB> {
        let sql = self.keys.db.sql().text("SELECT CASE WHEN token IS NULL THEN 1 ELSE 0 END");
        let sql = sql.text(format!(" FROM {} WHERE ", self.keys.name));
        KeyTable::is(sql, key).text(" AND expires_at > ").now()
    }

    fn prolong(&self, lease: Duration) -> Sql<DB> {
        self.keys.db.sql().text(format!("UPDATE {} SET expires_at = ", self.keys.name)).later(lease)
    }

    fn mark(&self) -> Sql<DB> {
        let sql = self.keys.db.sql().text(format!("UPDATE {} SET token = NULL", self.keys.name));
        sql.text(", expires_at = ").later(self.retention)
    }

    fn free(&self) -> Sql<DB> {
        self.keys.db.sql().text(format!("DELETE FROM {}", self.keys.name))
    }

    /// Runs a statement on the row of `key` if `token` holds it.
    async fn fenced(
        &self,
        key: &DedupKey,
        token: DedupToken,
        statement: impl Fn() -> Sql<DB>,
    ) -> Result<bool, DedupError> {
        fitting(key)?;
        let run = async || {
            let mut tx = self.keys.db.begin_write().await?;
            let sql = KeyTable::is(statement().text(" WHERE "), key).text(" AND token = ").uuid(token.0);
            let held = sql.text(" AND expires_at > ").now().execute(&mut tx).await? == 1;
            commit(tx).await?;
            Ok(held)
        };
        retrying(run).await.map_err(dedup_error)
    }

    async fn try_is_done(&self, key: &DedupKey) -> Result<bool, StoreError> {
        let mut tx = self.keys.db.begin_read().await?;
        let rows = self.live(key).fetch(&mut tx).await?;
        commit(tx).await?;
        Ok(rows.first().is_some_and(|row| Cells::<DB>::of(row).number::<u8>() == 1))
    }
}

#[async_trait]
impl<DB: SqlDatabase> DedupStore for SqlDedup<DB> {
    async fn begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError> {
        fitting(key)?;
        retrying(|| self.try_begin(key, lease)).await.map_err(dedup_error)
    }

    async fn renew(&self, key: &DedupKey, token: DedupToken, lease: Duration) -> Result<bool, DedupError> {
        self.fenced(key, token, || self.prolong(lease)).await
    }

    async fn finish(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.fenced(key, token, || self.mark()).await
    }

    async fn abandon(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.fenced(key, token, || self.free()).await
    }

    async fn is_done(&self, key: &DedupKey) -> Result<bool, DedupError> {
        fitting(key)?;
        retrying(|| self.try_is_done(key)).await.map_err(dedup_error)
    }

    fn retention(&self) -> Duration {
        self.retention
    }
}

fn fitting(DedupKey { group, msg_id }: &DedupKey) -> Result<(), DedupError> {
    let unfit = |error: StoreError| DedupError::unfit(error.to_string()).with_source(error);
    key(group, msg_id).map(drop).map_err(unfit)
}

/// The row was there, and was removed before it could be read.
fn vanished() -> StoreError {
    StoreError::new(StoreErrorKind::Conflict, "the key was freed at this moment; try again")
}

fn dedup_error(error: StoreError) -> DedupError {
    DedupError::new(error.to_string()).with_source(error)
}

impl<DB: SqlDatabase> Clone for SqlDedup<DB> {
    fn clone(&self) -> Self {
        Self { keys: self.keys.clone(), retention: self.retention }
    }
}

impl<DB: SqlDatabase> fmt::Debug for SqlDedup<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.keys.name.to_string();
        f.debug_struct("SqlDedup")
            .field("database", &DB::NAME)
            .field("table", &table)
            .field("retention", &self.retention)
            .finish()
    }
}
