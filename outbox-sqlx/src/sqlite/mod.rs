mod migrate;
mod schema;

use std::sync::Arc;

use async_trait::async_trait;
use chrono::NaiveDateTime;
use outbox_core::{StoreError, StoreErrorKind, SystemClock, Timestamp};
use sqlx::error::DatabaseError;
use sqlx::sqlite::{SqliteQueryResult, SqliteRow};
use sqlx::{Sqlite, Transaction};
use uuid::Uuid;

use crate::dialect::{Dialect, Member};
use crate::driver::Read;
use crate::keys::Layout;
use crate::names::{Names, TableName};
use crate::sql::Sql;
use crate::time::{Amount, Now, Time, moved, storable};

/// One writer at a time, so no row needs a lock of its own. Times are UTC text of fixed width, which sorts as
/// the times do; lists and tables of parameters are JSON.
#[async_trait]
impl Dialect for Sqlite {
    const BEGIN_WRITE: &'static str = "BEGIN IMMEDIATE";
    const BEGIN_READ: &'static str = "BEGIN";
    const FOR_UPDATE: &'static str = "";
    const FOR_UPDATE_SKIP_LOCKED: &'static str = "";
    const AS_JSON: &'static str = "";
    const TEXT: &'static str = "TEXT";
    const QUOTE: char = '"';
    const ROWS_PER_INSERT: usize = 2_500;

    /// The database runs in this process.
    fn time() -> Time {
        Time::Given(Arc::new(SystemClock))
    }

    /// The key it can use all the same.
    const BY_KEY: &'static str = " NOT INDEXED";

    /// Its planner passes partial indexes over.
    fn by_index(table: &TableName, suffix: &str) -> String {
        format!(" INDEXED BY {}", table.local(suffix))
    }

    fn push_token(sql: Sql<Self>, token: Uuid) -> Sql<Self> {
        sql.bind(token.to_string())
    }

    fn push_time(sql: Sql<Self>, at: Timestamp) -> Sql<Self> {
        sql.bind(text(at))
    }

    fn push_now(sql: Sql<Self>, now: Now) -> Sql<Self> {
        sql.time(instant(now))
    }

    fn push_later(sql: Sql<Self>, now: Now, by: Amount) -> Sql<Self> {
        let now = instant(now);
        match by {
            Amount::Micros(micros) => sql.time(moved(now, micros)),
            Amount::Column(column) => push_sum(sql, now, column),
        }
    }

    fn unless_there(key: &str) -> (&'static str, String) {
        ("INSERT", format!(" ON CONFLICT ({key}) DO NOTHING"))
    }

    fn push_among_ids(sql: Sql<Self>, ids: Vec<i64>) -> Sql<Self> {
        sql.text(" IN (SELECT value FROM json_each(").bind(serde_json::json!(ids).to_string()).text("))")
    }

    fn push_among_texts(sql: Sql<Self>, texts: Vec<String>) -> Sql<Self> {
        sql.text(" IN (SELECT value FROM json_each(").bind(serde_json::json!(texts).to_string()).text("))")
    }

    fn push_json_rows(sql: Sql<Self>, rows: String, members: &[Member]) -> Sql<Self> {
        let members: Vec<String> = members.iter().map(|member| extracted(*member)).collect();
        sql.text(format!("(SELECT {} FROM json_each(", members.join(", "))).bind(rows).text(")) AS s")
    }

    fn read_time(row: &SqliteRow, column: usize) -> Option<Timestamp> {
        let text = Self::text(row, column)?;
        NaiveDateTime::parse_from_str(&text, "%Y-%m-%d %H:%M:%S%.f").ok().map(|at| at.and_utc())
    }

    fn affected(result: &SqliteQueryResult) -> u64 {
        result.rows_affected()
    }

    fn error_kind(error: &dyn DatabaseError) -> StoreErrorKind {
        let message = error.message();
        match primary_code(error) {
            // BUSY, LOCKED
            5 | 6 => StoreErrorKind::Conflict,
            // IOERR, FULL, CANTOPEN
            10 | 13 | 14 => StoreErrorKind::Unavailable,
            _ if message.contains("no such table") || message.contains("no such index") => {
                StoreErrorKind::Schema
            }
            _ if message.contains("ON CONFLICT clause does not match") => StoreErrorKind::Schema,
            _ if message.contains("no column named") || message.contains("no such column") => {
                StoreErrorKind::Schema
            }
            _ => StoreErrorKind::Other,
        }
    }

    /// CONSTRAINT, which RAISE in a trigger gives too.
    fn blames_a_row(error: &dyn DatabaseError) -> bool {
        primary_code(error) == 19
    }

    fn duplicate_id(_error: &dyn DatabaseError) -> Option<String> {
        None
    }

    async fn migrate(tx: &mut Transaction<'static, Self>, names: &Names) -> Result<(), StoreError> {
        migrate::migrate(tx, names).await
    }

    async fn migrate_keys(
        tx: &mut Transaction<'static, Self>,
        table: &TableName,
        layout: &Layout,
    ) -> Result<(), StoreError> {
        migrate::migrate_keys(tx, table, layout).await
    }
}

/// The low byte of the extended code.
fn primary_code(error: &dyn DatabaseError) -> u32 {
    error.code().and_then(|code| code.parse::<u32>().ok()).unwrap_or_default() & 0xff
}

fn instant(now: Now) -> Timestamp {
    match now {
        Now::Server => outbox_core::Clock::now(&SystemClock),
        Now::At(at) => at,
    }
}

fn text(at: Timestamp) -> String {
    storable(at).format("%Y-%m-%d %H:%M:%S%.6f").to_string()
}

/// SQLite's own arithmetic on times keeps milliseconds only.
fn push_sum(sql: Sql<Sqlite>, now: Timestamp, column: &str) -> Sql<Sqlite> {
    let micros = now.timestamp_micros();
    sql.text("strftime('%Y-%m-%d %H:%M:%S', (")
        .bind(micros)
        .text(format!(" + {column}) / 1000000, 'unixepoch') || printf('.%06d', ("))
        .bind(micros)
        .text(format!(" + {column}) % 1000000)"))
}

fn extracted(member: Member) -> String {
    let (Member::Int(name) | Member::Text(name) | Member::Token(name)) = member;
    format!("json_extract(value, '$.{name}') AS {name}")
}
