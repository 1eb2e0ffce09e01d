use std::sync::Arc;
use std::time::Instant;

use outbox_core::{Clock, StoreError, StoreErrorKind};
use sqlx::{Pool, SqlSafeStr, Transaction};
use tokio::task::JoinHandle;

use crate::dialect::Dialect;
use crate::error::store_error;
use crate::row::Cells;
use crate::sql::Sql;
use crate::time::{ServerClock, Time};

/// A database and the clock that counts in it.
pub(crate) struct Access<DB: Dialect> {
    pub(crate) pool: Pool<DB>,
    time: Arc<Time>,
}

impl<DB: Dialect> Access<DB> {
    pub(crate) fn new(pool: Pool<DB>) -> Self {
        Self { pool, time: Arc::new(DB::time()) }
    }

    pub(crate) fn with_clock(self, clock: impl Clock) -> Self {
        Self { time: Arc::new(Time::Given(Arc::new(clock))), ..self }
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        self.time.clock()
    }

    pub(crate) fn sql(&self) -> Sql<DB> {
        Sql::at(self.time.now())
    }

    pub(crate) async fn begin_write(&self) -> Result<Transaction<'static, DB>, StoreError> {
        begin(&self.pool, DB::BEGIN_WRITE).await.map_err(store_error::<DB>)
    }

    pub(crate) async fn begin_read(&self) -> Result<Transaction<'static, DB>, StoreError> {
        begin(&self.pool, DB::BEGIN_READ).await.map_err(store_error::<DB>)
    }

    /// Once in a while asks the server for its time, where the server's clock counts.
    pub(crate) async fn look_at_the_clock(&self, conn: &mut DB::Connection) -> Result<(), StoreError> {
        match &*self.time {
            Time::Server(clock) if clock.is_stale() => self.ask_for_the_time(clock, conn).await,
            _ => Ok(()),
        }
    }

    /// The first look of a process that only enqueues; one is enough for times of delivery.
    pub(crate) async fn look_at_the_clock_once(&self, conn: &mut DB::Connection) -> Result<(), StoreError> {
        match &*self.time {
            Time::Server(clock) if clock.is_unknown() => self.ask_for_the_time(clock, conn).await,
            _ => Ok(()),
        }
    }

    async fn ask_for_the_time(
        &self,
        clock: &ServerClock,
        conn: &mut DB::Connection,
    ) -> Result<(), StoreError> {
        let asked = Instant::now();
        let rows = self.sql().text("SELECT ").now().fetch(conn).await?;
        if let Some(server) = rows.first().and_then(|row| Cells::<DB>::of(row).time()) {
            clock.set(server, asked);
        }
        Ok(())
    }
}

impl<DB: Dialect> Clone for Access<DB> {
    fn clone(&self) -> Self {
        Self { pool: self.pool.clone(), time: Arc::clone(&self.time) }
    }
}

/// In a task of its own, which goes on when the call is dropped: sqlx would give the connection back to the pool
/// with the transaction open, and what the application wrote on it next would never be committed.
async fn begin<DB: Dialect>(
    pool: &Pool<DB>,
    statement: &'static str,
) -> Result<Transaction<'static, DB>, sqlx::Error> {
    let connection = pool.acquire().await?;
    let begun = tokio::spawn(Transaction::begin(connection, Some(statement.into_sql_str())));
    begun.await.unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

/// The outcome of a task that nobody aborts.
pub(crate) async fn whole<T>(task: JoinHandle<Result<T, StoreError>>) -> Result<T, StoreError> {
    task.await.unwrap_or_else(|error| {
        let message = "the task of the operation ended before it was done";
        Err(StoreError::new(StoreErrorKind::Other, message).with_source(error))
    })
}

/// Ends a transaction of this crate's own.
pub(crate) async fn commit<DB: Dialect>(tx: Transaction<'static, DB>) -> Result<(), StoreError> {
    tx.commit().await.map_err(store_error::<DB>)
}
