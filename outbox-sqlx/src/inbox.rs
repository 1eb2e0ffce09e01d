use std::fmt;
use std::time::Duration;

use outbox_core::{Clock, DedupKey, StoreError};
use sqlx::{Connection, Pool, Transaction};

use crate::access::commit;
use crate::error::{not_in_transaction, retrying, store_error};
use crate::keys::{KeyTable, Layout, key};
use crate::names::TableName;
use crate::sql::Sql;
use crate::store::SqlDatabase;

pub(crate) const LAYOUT: Layout = Layout { token: false, time: "handled_at" };

/// Makes the effect of a message in a consumer's database happen exactly once: a marker `(group, msg_id)` is
/// written in the transaction of the effect, so that there is both or neither.
///
/// ```
/// use outbox_core::consumer::{Delivery, Handler, HandlerError};
/// use outbox_sqlx::SqliteInbox;
///
/// struct Points { inbox: SqliteInbox }
///
/// #[async_trait::async_trait]
/// impl Handler for Points {
///     type Payload = i64;
///
///     async fn handle(&self, order: Delivery<i64>) -> Result<(), HandlerError> {
///         let grant = async |tx: &mut sqlx::SqliteConnection| {
///             sqlx::query("UPDATE accounts SET points = points + ? WHERE customer = ?")
///                 .bind(order.payload()).bind(order.biz_id())
///                 .execute(tx).await?;
///             Ok(())
///         };
///         self.inbox.once("points", order.msg_id(), grant).await.map(drop)
///     }
/// }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use outbox_core::consumer::{Consumer, NoReceipts};
/// # use outbox_core::Message;
/// # let one = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
/// # let pool = one.connect("sqlite::memory:").await?;
/// # sqlx::raw_sql("CREATE TABLE accounts (customer TEXT, points INT); INSERT INTO accounts VALUES ('C-7', 0)")
/// #     .execute(&pool).await?;
/// let inbox = SqliteInbox::new(pool.clone());
/// inbox.migrate().await?;
/// let consumer = Consumer::new("points", Points { inbox }, NoReceipts); // no dedup store
/// # let order = Message::json("order.created", "C-7", &990)?;
/// # for _ in 0..3 { let _ = consumer.process(order.clone(), 0).await; }
/// # let points: i64 = sqlx::query_scalar("SELECT points FROM accounts").fetch_one(&pool).await?;
/// # assert_eq!(points, 990);
/// # Ok(())
/// # }
/// ```
///
/// Where the transaction is yours, ask in it, before the effect:
///
/// ```
/// # async fn handle(pool: sqlx::SqlitePool, inbox: outbox_sqlx::SqliteInbox, msg_id: &str) -> Result<(), Box<dyn std::error::Error>> {
/// let mut tx = pool.begin().await?;
/// if inbox.first_time(&mut tx, "points", msg_id).await? {
///     sqlx::query("UPDATE …").execute(&mut *tx).await?;
/// }
/// tx.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Two at once
///
/// The second of two deliveries waits for the end of the first one's transaction. If that commits, the second
/// is told that it is not the first; if it rolls back, the second is the first. On PostgreSQL, MySQL and
/// MariaDB only deliveries of the same message wait for each other; on SQLite everything that writes does, for as long as its busy timeout.
///
/// # For how long markers are kept
///
/// Until [`forget_older_than`](Self::forget_older_than) removes them; nothing else does. A message that comes
/// after that is handled again. So keep them for longer than a message may keep coming: the
/// [horizon](outbox_core::RetryPolicy::horizon) of the consumer's own retries and of the producer's, the longest
/// outage of this consumer, and the age at which dead letters are still put back.
pub struct SqlInbox<DB: SqlDatabase> {
    pub(crate) keys: KeyTable<DB>,
}

impl<DB: SqlDatabase> SqlInbox<DB> {
    /// An inbox in the table `biz_inbox`. Nothing is asked of the database yet.
    ///
    /// The pool is that of the consumer's own database.
    #[must_use]
    pub fn new(pool: Pool<DB>) -> Self {
        Self { keys: KeyTable::new(pool, "biz_inbox", LAYOUT) }
    }

    /// Another table, `table` or `schema.table`. The name is taken as it is written.
    ///
    /// # Errors
    /// As [`SqlStore::with_table`](crate::SqlStore::with_table).
    pub fn with_table(mut self, table: &str) -> Result<Self, StoreError> {
        self.keys.name = TableName::parse(table, DB::QUOTE)?;
        Ok(self)
    }

    /// Follows another clock than the database's own; meant for tests.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.keys.db = self.keys.db.with_clock(clock);
        self
    }

    /// The pool that the inbox works on.
    #[must_use]
    pub fn pool(&self) -> &Pool<DB> {
        &self.keys.db.pool
    }

    /// Creates the table and its index. Changes nothing where nothing is missing, and may be called by any
    /// number of processes at once.
    ///
    /// # Errors
    /// When the database refuses, or a table of that name is there that is no inbox; then nothing has changed.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        self.keys.migrate().await
    }

    /// Whether `group` handles this message for the first time. If so, the marker is written in `tx`, and is
    /// there when `tx` commits. Waits while another transaction that was the first is open.
    ///
    /// # Errors
    /// - Outside a transaction, or for a group or id that is empty, longer than 255 bytes or has a NUL.
    /// - [`Conflict`](outbox_core::StoreErrorKind::Conflict): run the whole transaction again. On PostgreSQL
    ///   above READ COMMITTED also when another transaction has just handled the message; on SQLite when the
    ///   database stays busy, or when `tx` has read before and somebody else has written since.
    ///
    /// # Cancellation
    /// When the future is dropped, roll `tx` back: the marker may be in it.
    pub async fn first_time(
        &self,
        tx: &mut DB::Connection,
        group: &str,
        msg_id: &str,
    ) -> Result<bool, StoreError> {
        if !tx.is_in_transaction() {
            return Err(not_in_transaction("the marker could exist without the effect", "first_time"));
        }
        self.keys.insert(tx, &key(group, msg_id)?, None).await
    }

    /// Runs `effect` in a transaction if `group` handles this message for the first time, and commits it with
    /// the marker. `None` if it was handled before; an error of `effect` rolls everything back.
    ///
    /// The transaction is READ COMMITTED on PostgreSQL, MySQL and MariaDB, and IMMEDIATE on SQLite. For another one begin it
    /// yourself and ask [`first_time`](Self::first_time).
    ///
    /// # Errors
    /// Those of `effect` and of [`first_time`](Self::first_time). If the connection is lost during the commit
    /// nobody knows whether it happened; the next delivery will find out.
    ///
    /// # Cancellation
    /// A dropped future leaves the effect with its marker or neither.
    pub async fn once<T, E: From<StoreError>>(
        &self,
        group: &str,
        msg_id: &str,
        effect: impl AsyncFnOnce(&mut DB::Connection) -> Result<T, E>,
    ) -> Result<Option<T>, E> {
        let Some(mut tx) = retrying(|| self.begin(group, msg_id)).await? else { return Ok(None) };
        match effect(&mut tx).await {
            Ok(done) => {
                commit(tx).await?;
                Ok(Some(done))
            }
            Err(error) => {
                // A connection on which this fails is closed, and the database rolls back.
                let _ = tx.rollback().await;
                Err(error)
            }
        }
    }

    /// A transaction with the marker in it; none if the message was handled before.
    async fn begin(&self, group: &str, msg_id: &str) -> Result<Option<Transaction<'static, DB>>, StoreError> {
        let mut tx = self.keys.db.begin_write().await?;
        if self.first_time(&mut tx, group, msg_id).await? {
            return Ok(Some(tx));
        }
        tx.rollback().await.map_err(store_error::<DB>)?;
        Ok(None)
    }

    /// Whether the transaction in which `group` handled this message has committed. For reconciling; a handler
    /// asks [`first_time`](Self::first_time).
    ///
    /// # Errors
    /// When the database did not answer, or for a key as in [`first_time`](Self::first_time).
    pub async fn is_done(&self, group: &str, msg_id: &str) -> Result<bool, StoreError> {
        let key = key(group, msg_id)?;
        retrying(|| self.try_is_done(&key)).await
    }

    async fn try_is_done(&self, key: &DedupKey) -> Result<bool, StoreError> {
        let mut tx = self.keys.db.begin_read().await?;
        let rows = self.marker(key).fetch(&mut tx).await?;
        commit(tx).await?;
        Ok(!rows.is_empty())
    }

    pub(crate) fn marker(&self, key: &DedupKey) -> Sql<DB> {
        let sql = self.keys.db.sql().text(format!("SELECT msg_id FROM {} WHERE ", self.keys.name));
        KeyTable::is(sql, key)
    }

    /// Removes the markers that are older than `age`, the oldest first, `batch` in each short transaction, until
    /// none is left; says how many. Some hundreds are a good batch. Several processes may do it at once. `age` must
    /// be longer than a message may keep coming, as [above](Self#for-how-long-markers-are-kept).
    ///
    /// # Errors
    /// When the database did not answer. What is removed by then stays removed, also when the future is dropped.
    pub async fn forget_older_than(&self, age: Duration, batch: usize) -> Result<usize, StoreError> {
        self.keys.forget(age, batch).await
    }
}

impl<DB: SqlDatabase> Clone for SqlInbox<DB> {
    fn clone(&self) -> Self {
        Self { keys: self.keys.clone() }
    }
}

impl<DB: SqlDatabase> fmt::Debug for SqlInbox<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.keys.name.to_string();
        f.debug_struct("SqlInbox").field("database", &DB::NAME).field("table", &table).finish()
    }
}
