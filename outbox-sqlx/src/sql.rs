use std::fmt::Display;
use std::time::Duration;

use outbox_core::{ClaimToken, RowId, StoreError, Timestamp};
use sqlx::Connection;
use sqlx::query_builder::QueryBuilder;
use uuid::Uuid;

use crate::dialect::{Dialect, Member};
use crate::driver::Bind;
use crate::error::store_error;
use crate::time::{Amount, Now, micros};

/// A statement under construction; reads as the SQL it makes.
pub struct Sql<DB: Dialect> {
    builder: QueryBuilder<DB>,
    now: Now,
}

impl<DB: Dialect> Sql<DB> {
    /// A statement for which it is `now`.
    pub(crate) fn at(now: Now) -> Self {
        Self { builder: QueryBuilder::default(), now }
    }

    pub(crate) fn text(mut self, sql: impl Display) -> Self {
        self.builder.push(sql);
        self
    }

    pub(crate) fn bind<T>(mut self, value: T) -> Self
    where
        DB: Bind<T>,
    {
        DB::bind(&mut self.builder, value);
        self
    }

    pub(crate) fn json(self, text: String) -> Self {
        self.bind(text).text(DB::AS_JSON)
    }

    pub(crate) fn token(self, token: ClaimToken) -> Self {
        self.uuid(token.0)
    }

    pub(crate) fn uuid(self, token: Uuid) -> Self {
        DB::push_token(self, token)
    }

    pub(crate) fn time(self, at: Timestamp) -> Self {
        DB::push_time(self, at)
    }

    pub(crate) fn now(self) -> Self {
        let now = self.now;
        DB::push_now(self, now)
    }

    /// Now, plus `by`.
    pub(crate) fn later(self, by: Duration) -> Self {
        let now = self.now;
        DB::push_later(self, now, Amount::Micros(micros(by)))
    }

    /// Now, minus `by`.
    pub(crate) fn earlier(self, by: Duration) -> Self {
        let now = self.now;
        DB::push_later(self, now, Amount::Micros(-micros(by)))
    }

    /// Now, plus the microseconds in `column`.
    pub(crate) fn later_by(self, column: &'static str) -> Self {
        let now = self.now;
        DB::push_later(self, now, Amount::Column(column))
    }

    /// One of `ids`.
    pub(crate) fn among(self, ids: &[RowId]) -> Self {
        DB::push_among_ids(self, ids.iter().map(|id| id.0).collect())
    }

    /// One of `texts`.
    pub(crate) fn among_texts(self, texts: impl IntoIterator<Item = String>) -> Self {
        DB::push_among_texts(self, texts.into_iter().collect())
    }

    /// A table expression over a JSON array of objects.
    pub(crate) fn json_rows(self, rows: &[serde_json::Value], members: &[Member]) -> Self {
        let rows = rows.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        DB::push_json_rows(self, format!("[{rows}]"), members)
    }

    pub(crate) fn into_builder(self) -> QueryBuilder<DB> {
        self.builder
    }

    /// Runs it, and says how many rows it wrote.
    pub(crate) async fn execute(self, conn: &mut DB::Connection) -> Result<usize, StoreError> {
        self.try_execute(conn).await.map_err(store_error::<DB>)
    }

    /// As [`execute`](Self::execute), with the driver's error.
    pub(crate) async fn try_execute(self, conn: &mut DB::Connection) -> Result<usize, sqlx::Error> {
        let result = DB::execute(conn, self.into_builder()).await?;
        Ok(usize::try_from(DB::affected(&result)).unwrap_or(usize::MAX))
    }

    pub(crate) async fn fetch(self, conn: &mut DB::Connection) -> Result<Vec<DB::Row>, StoreError> {
        match DB::fetch(conn, self.into_builder()).await {
            Ok(rows) => Ok(rows),
            Err(error) => {
                forget_stale_plans::<DB>(conn, &error).await;
                Err(store_error::<DB>(error))
            }
        }
    }
}

/// A prepared statement keeps the columns of its result: when one of them has been altered, it fails as long as
/// its connection lives.
async fn forget_stale_plans<DB: Dialect>(conn: &mut DB::Connection, error: &sqlx::Error) {
    if error.as_database_error().is_some_and(DB::is_stale_plan) {
        // If this fails, the connection has ended, and its statements with it.
        let _ = conn.clear_cached_statements().await;
    }
}

/// Text as every database can store it: PostgreSQL refuses U+0000, and a stranger's error must not keep a
/// whole batch from being settled.
pub(crate) fn storable_text(text: &str) -> String {
    const LONGEST: usize = 4096;
    text.chars().take(LONGEST).map(|c| if c == '\0' { '\u{fffd}' } else { c }).collect()
}
