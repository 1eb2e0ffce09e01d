mod among;
mod catalog;
mod codes;
mod migrate;
mod schema;

use async_trait::async_trait;
use chrono::NaiveDateTime;
use outbox_core::{StoreError, StoreErrorKind, Timestamp};
use sqlx::error::DatabaseError;
use sqlx::mysql::{MySqlQueryResult, MySqlRow};
use sqlx::{MySql, Row, Transaction};
use uuid::Uuid;

use crate::dialect::{Dialect, Member, Update};
use crate::keys::Layout;
use crate::names::{Names, TableName};
use crate::sql::Sql;
use crate::time::{Amount, Now, ServerClock, Time, moved, storable};

/// MySQL 8 and MariaDB. READ COMMITTED is said each time: under their default, REPEATABLE READ, a claim locks the
/// gaps into which others enqueue. Nothing depends on the session's time zone or SQL mode.
#[async_trait]
impl Dialect for MySql {
    const BEGIN_WRITE: &'static str = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION";
    const BEGIN_READ: &'static str =
        "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION READ ONLY";
    const FOR_UPDATE: &'static str = " FOR UPDATE";
    const FOR_UPDATE_SKIP_LOCKED: &'static str = " FOR UPDATE SKIP LOCKED";
    const AS_JSON: &'static str = "";
    const TEXT: &'static str = "CHAR";
    const QUOTE: char = '`';
    /// A statement has 65,535 parameters at most.
    const ROWS_PER_INSERT: usize = 1_000;
    /// A quarter of MariaDB's default for `max_allowed_packet`.
    const BYTES_PER_INSERT: usize = 4 * 1024 * 1024;

    fn time() -> Time {
        Time::Server(ServerClock::default())
    }

    const BY_KEY: &'static str = " FORCE INDEX (PRIMARY)";

    /// There are no partial indexes: one, which begins with the status, does for every status.
    fn by_index(table: &TableName, _suffix: &str) -> String {
        format!(" FORCE INDEX ({})", table.local(schema::DUE))
    }

    fn push_token(sql: Sql<Self>, token: Uuid) -> Sql<Self> {
        sql.bind(Some(token.as_bytes().to_vec()))
    }

    fn push_time(sql: Sql<Self>, at: Timestamp) -> Sql<Self> {
        sql.bind(storable(at).naive_utc())
    }

    fn push_now(sql: Sql<Self>, now: Now) -> Sql<Self> {
        match now {
            Now::Server => sql.text("UTC_TIMESTAMP(6)"),
            Now::At(at) => sql.time(at),
        }
    }

    fn push_later(sql: Sql<Self>, now: Now, by: Amount) -> Sql<Self> {
        match (now, by) {
            (Now::At(at), Amount::Micros(micros)) => sql.time(moved(at, micros)),
            (Now::At(at), Amount::Column(column)) => {
                sql.text("CAST(").time(at).text(format!(" AS DATETIME(6)) + INTERVAL {column} MICROSECOND"))
            }
            (Now::Server, Amount::Micros(micros)) => {
                sql.text("UTC_TIMESTAMP(6) + INTERVAL ").bind(micros).text(" MICROSECOND")
            }
            (Now::Server, Amount::Column(column)) => {
                sql.text(format!("UTC_TIMESTAMP(6) + INTERVAL {column} MICROSECOND"))
            }
        }
    }

    /// Not INSERT IGNORE, which also leaves out rows that a check refuses, and cuts what is too long.
    fn unless_there(_key: &str) -> (&'static str, String) {
        ("INSERT", String::new())
    }

    fn is_there(error: &dyn DatabaseError) -> bool {
        codes::violated_key(error).is_some_and(|key| {
            ["PRIMARY", "msg_id", "consumer_group"].iter().any(|known| key.contains(known))
        })
    }

    /// The verdict comes last, because the others read the one that was there.
    fn or_replace(table: &str, _key: &str, replaced: &str) -> (&'static str, String) {
        let update = ["claim_no", "reason", "received_at", "verdict"].map(|column| {
            format!(
                "{column} = CASE WHEN {table}.verdict = '{replaced}' THEN VALUES({column}) ELSE {table}.{column} END"
            )
        });
        ("", format!(" ON DUPLICATE KEY UPDATE {}", update.join(", ")))
    }

    fn push_among_ids(sql: Sql<Self>, ids: Vec<i64>) -> Sql<Self> {
        among::push_ids(sql, ids)
    }

    fn push_among_texts(sql: Sql<Self>, texts: Vec<String>) -> Sql<Self> {
        among::push_texts(sql, texts)
    }

    fn push_json_rows(sql: Sql<Self>, rows: String, members: &[Member]) -> Sql<Self> {
        let read: Vec<String> = members.iter().map(|member| read(*member)).collect();
        let typed: Vec<String> = members.iter().map(|member| typed(*member)).collect();
        sql.text(format!("(SELECT {} FROM JSON_TABLE(", read.join(", ")))
            .bind(rows)
            .text(format!(", '$[*]' COLUMNS ({})) AS j) AS s", typed.join(", ")))
    }

    fn push_update(sql: Sql<Self>, table: &str, update: &Update<'_, Self>) -> Sql<Self> {
        let Update { set, source, condition } = update;
        let sql = source(sql.text("UPDATE ")).text(format!(" STRAIGHT_JOIN {table} AS t{}", Self::BY_KEY));
        set(sql.text(format!(" ON {condition} SET ")))
    }

    fn read_time(row: &MySqlRow, column: usize) -> Option<Timestamp> {
        let time = row.try_get_unchecked::<Option<NaiveDateTime>, _>(column).unwrap_or_default();
        time.map(|time| time.and_utc())
    }

    /// sqlx asks for the rows that were found, changed or not.
    fn affected(result: &MySqlQueryResult) -> u64 {
        result.rows_affected()
    }

    fn error_kind(error: &dyn DatabaseError) -> StoreErrorKind {
        codes::kind(error)
    }

    fn advice(error: &dyn DatabaseError) -> Option<&'static str> {
        codes::advice(error)
    }

    fn blames_a_row(error: &dyn DatabaseError) -> bool {
        codes::blames_a_row(error)
    }

    fn duplicate_id(error: &dyn DatabaseError) -> Option<String> {
        codes::violated_key(error).filter(|key| key.contains("msg_id"))?;
        let (_, entry) = error.message().split_once('\'')?;
        Some(entry.rsplit_once("' for key")?.0.to_owned())
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

fn typed(member: Member) -> String {
    match member {
        Member::Int(name) => format!("{name} BIGINT PATH '$.{name}'"),
        Member::Text(name) => format!("{name} TEXT PATH '$.{name}'"),
        Member::Token(name) => format!("{name} CHAR(36) PATH '$.{name}'"),
    }
}

/// Text in the collation of the columns, so that both can be mixed.
fn read(member: Member) -> String {
    match member {
        Member::Int(name) => format!("j.{name}"),
        Member::Text(name) => format!("CONVERT(j.{name} USING utf8mb4) COLLATE {} AS {name}", schema::BYTES),
        Member::Token(name) => format!("UNHEX(REPLACE(j.{name}, '-', '')) AS {name}"),
    }
}
