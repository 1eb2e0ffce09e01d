use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{
    Claim, ClaimRequest, Claimed, Clock, Enqueue, Filter, Limits, Message, OutboxStore, Policies, Receipt,
    ReceiptReport, Requeued, Row, RowId, Settled, Settlement, Stats, StoreError,
};
use sqlx::Pool;

use crate::access::{Access, commit, whole};
use crate::dialect::Dialect;
use crate::enqueue::Known;
use crate::error::retrying;
use crate::names::Names;
use crate::sql::Sql;

/// A database that can hold an outbox: [`sqlx::Postgres`], [`sqlx::MySql`] or [`sqlx::Sqlite`], each by a Cargo
/// feature.
/// Sealed: its methods may change in any release.
pub trait SqlDatabase: Dialect {}

impl<DB: Dialect> SqlDatabase for DB {}

/// An outbox in a table of the application's own database.
pub struct SqlStore<DB: SqlDatabase> {
    pub(crate) db: Access<DB>,
    pub(crate) names: Arc<Names>,
    pub(crate) limits: Limits,
    pub(crate) policies: Option<Arc<Policies>>,
}

impl<DB: SqlDatabase> SqlStore<DB> {
    /// An outbox in the table `biz_outbox`. Nothing is asked of the database yet, and until the first migration,
    /// enqueue or claim the store's clock is that of this host.
    #[must_use]
    pub fn new(pool: Pool<DB>) -> Self {
        Self {
            db: Access::new(pool),
            names: Arc::new(Names::plain(DB::QUOTE)),
            limits: Limits::default(),
            policies: None,
        }
    }

    /// Another table, `table` or `schema.table`. The name is taken as it is written, upper and lower case
    /// included. Companions get its name and a suffix.
    ///
    /// # Errors
    /// When it is not one or two identifiers of letters, digits and `_`, the table's at most 40 bytes.
    pub fn with_table(mut self, table: &str) -> Result<Self, StoreError> {
        self.names = Arc::new(Names::parse(table, DB::QUOTE)?);
        Ok(self)
    }

    /// Snapshots the required groups at enqueue. Without policies they stay open until the relay confirms.
    #[must_use]
    pub fn with_policies(mut self, policies: Policies) -> Self {
        self.policies = Some(Arc::new(policies));
        self
    }

    /// Refuses messages past these limits at enqueue.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Follows another clock than the database's own; meant for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.db = self.db.with_clock(clock);
        self
    }

    /// The pool that the store works on.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.db.pool
    }

    /// Creates the tables and indexes, or brings them up to date. Changes nothing where nothing is missing, and
    /// may be called by any number of processes at once.
    ///
    /// A table that has just the article's columns is adopted: its rows stay and are delivered.
    ///
    /// # Errors
    /// When the database refuses, for example for lack of rights; then nothing has changed. (On MySQL and MariaDB,
    /// where no transaction holds changes of tables, the next migration goes on where this one failed.)
    pub async fn migrate(&self) -> Result<(), StoreError> {
        retrying(|| self.try_migrate()).await
    }

    /// In a task of its own, which goes on when the call is dropped: what a migration has locked or set on the
    /// connection must not be left so in the pool.
    async fn try_migrate(&self) -> Result<(), StoreError> {
        let store = self.clone();
        whole(tokio::spawn(async move { store.migrate_here().await })).await
    }

    async fn migrate_here(&self) -> Result<(), StoreError> {
        let mut tx = self.db.begin_write().await?;
        DB::migrate(&mut tx, &self.names).await?;
        self.db.look_at_the_clock(&mut tx).await?;
        commit(tx).await
    }

    pub(crate) fn sql(&self) -> Sql<DB> {
        self.db.sql()
    }
}

impl<DB: SqlDatabase> Clone for SqlStore<DB> {
    fn clone(&self) -> Self {
        Self {
            db: self.db.clone(),
            names: Arc::clone(&self.names),
            limits: self.limits,
            policies: self.policies.clone(),
        }
    }
}

impl<DB: SqlDatabase> fmt::Debug for SqlStore<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlStore").field("database", &DB::NAME).field("table", &self.names.outbox).finish()
    }
}

#[async_trait]
impl<DB: SqlDatabase> Enqueue for SqlStore<DB> {
    /// Both a [`Transaction`](sqlx::Transaction) and a connection on which one was begun deref to it.
    type Tx = DB::Connection;

    async fn enqueue(&self, tx: &mut DB::Connection, messages: &[Message]) -> Result<(), StoreError> {
        self.insert(tx, messages, Known::Refused).await.map(|_| ())
    }

    async fn enqueue_idempotent(
        &self,
        tx: &mut DB::Connection,
        messages: &[Message],
    ) -> Result<usize, StoreError> {
        self.insert(tx, messages, Known::LeftOut).await
    }
}

#[async_trait]
impl<DB: SqlDatabase> OutboxStore for SqlStore<DB> {
    fn clock(&self) -> &dyn Clock {
        self.db.clock()
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        retrying(|| self.try_claim(request)).await
    }

    async fn renew(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError> {
        retrying(|| self.try_renew(claims, lease)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        retrying(|| self.try_settle(settlements)).await
    }

    async fn record_receipts(&self, receipts: &[Receipt]) -> Result<ReceiptReport, StoreError> {
        retrying(|| self.try_record_receipts(receipts)).await
    }

    async fn requeue(&self, id: RowId, claim_no: u64) -> Result<Requeued, StoreError> {
        retrying(|| self.try_requeue(id, claim_no)).await
    }

    async fn find(&self, filter: &Filter) -> Result<Vec<Row>, StoreError> {
        retrying(|| self.try_find(filter)).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        retrying(|| self.try_stats()).await
    }
}
