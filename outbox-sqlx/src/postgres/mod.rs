mod migrate;
mod schema;

use async_trait::async_trait;
use chrono::DateTime;
use outbox_core::{StoreError, StoreErrorKind, Timestamp};
use sqlx::error::DatabaseError;
use sqlx::postgres::{PgDatabaseError, PgQueryResult, PgRow};
use sqlx::{Postgres, Row, Transaction};
use uuid::Uuid;

use crate::dialect::{Dialect, Member};
use crate::enqueue::{NewRow, push_values};
use crate::keys::Layout;
use crate::names::{Names, TableName};
use crate::sql::Sql;
use crate::time::{Amount, Now, ServerClock, Time, storable};

/// Every statement runs in a transaction, so that a pooler in transaction mode cannot send its parts to
/// different servers; READ COMMITTED is said each time, because SKIP LOCKED under a stricter default fails.
#[async_trait]
impl Dialect for Postgres {
    const BEGIN_WRITE: &'static str = "BEGIN ISOLATION LEVEL READ COMMITTED";
    const BEGIN_READ: &'static str = "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY";
    const FOR_UPDATE: &'static str = " FOR UPDATE";
    const FOR_UPDATE_SKIP_LOCKED: &'static str = " FOR UPDATE SKIP LOCKED";
    const AS_JSON: &'static str = "::jsonb";
    const TEXT: &'static str = "TEXT";
    const QUOTE: char = '"';
    const ROWS_PER_INSERT: usize = 10_000;

    fn time() -> Time {
        Time::Server(ServerClock::default())
    }

    const BY_KEY: &'static str = "";

    fn by_index(_table: &TableName, _suffix: &str) -> String {
        String::new()
    }

    fn push_token(sql: Sql<Self>, token: Uuid) -> Sql<Self> {
        sql.bind(token)
    }

    fn push_time(sql: Sql<Self>, at: Timestamp) -> Sql<Self> {
        sql.bind(storable(at))
    }

    fn push_now(sql: Sql<Self>, now: Now) -> Sql<Self> {
        match now {
            Now::Server => sql.text("statement_timestamp()"),
            Now::At(at) => sql.time(at),
        }
    }

    fn push_later(sql: Sql<Self>, now: Now, by: Amount) -> Sql<Self> {
        let sql = Self::push_now(sql, now).text(" + ");
        match by {
            Amount::Micros(micros) => sql.bind(micros),
            Amount::Column(column) => sql.text(column),
        }
        .text(" * interval '1 microsecond'")
    }

    fn unless_there(key: &str) -> (&'static str, String) {
        ("INSERT", format!(" ON CONFLICT ({key}) DO NOTHING"))
    }

    fn push_among_ids(sql: Sql<Self>, ids: Vec<i64>) -> Sql<Self> {
        sql.text(" = ANY(").bind(ids).text(")")
    }

    fn push_among_texts(sql: Sql<Self>, texts: Vec<String>) -> Sql<Self> {
        sql.text(" = ANY(").bind(texts).text(")")
    }

    fn push_json_rows(sql: Sql<Self>, rows: String, members: &[Member]) -> Sql<Self> {
        let members: Vec<String> = members.iter().map(|member| typed(*member)).collect();
        sql.text("jsonb_to_recordset(").json(rows).text(format!(") AS s({})", members.join(", ")))
    }

    /// One text for any number of rows, so that the statement is parsed once.
    fn push_new_rows(sql: Sql<Self>, rows: Vec<NewRow>, receipts: &str) -> Sql<Self> {
        if rows.len() == 1 { push_values(sql, rows, receipts) } else { push_arrays(sql, rows, receipts) }
    }

    /// Infinite times, which only strangers write, read as the end of representable time.
    fn read_time(row: &PgRow, column: usize) -> Option<Timestamp> {
        const POSTGRES_EPOCH: i64 = 946_684_800_000_000;
        let micros = row.try_get_unchecked::<Option<i64>, _>(column).unwrap_or_default()?;
        let end = if micros < 0 { Timestamp::MIN_UTC } else { Timestamp::MAX_UTC };
        Some(micros.checked_add(POSTGRES_EPOCH).and_then(DateTime::from_timestamp_micros).unwrap_or(end))
    }

    fn affected(result: &PgQueryResult) -> u64 {
        result.rows_affected()
    }

    fn error_kind(error: &dyn DatabaseError) -> StoreErrorKind {
        let code = error.code().unwrap_or_default();
        match &*code {
            _ if Self::is_stale_plan(error) => StoreErrorKind::Conflict,
            // serialization_failure, deadlock_detected, lock_not_available
            "40001" | "40P01" | "55P03" => StoreErrorKind::Conflict,
            // undefined_table, undefined_column, invalid_schema_name, and ON CONFLICT without its index
            "42P01" | "42703" | "3F000" | "42P10" => StoreErrorKind::Schema,
            // read_only_sql_transaction (a standby), query_canceled, timeouts of idle or long transactions and idle
            // sessions, shutdowns and restarts, invalid_catalog_name (no such database)
            "25006" | "57014" | "25P03" | "25P04" | "57P05" | "57P01" | "57P02" | "57P03" | "3D000" => {
                StoreErrorKind::Unavailable
            }
            // invalid authorization
            code if code.starts_with("28") => StoreErrorKind::Unavailable,
            // connection exceptions, insufficient resources
            code if code.starts_with("08") || code.starts_with("53") => StoreErrorKind::Unavailable,
            _ => StoreErrorKind::Other,
        }
    }

    fn advice(error: &dyn DatabaseError) -> Option<&'static str> {
        let code = error.code().unwrap_or_default();
        (code == "3D000" || code.starts_with("28")).then_some(
            "the database lets nobody in under this name: check user, password and the database's name; \
             trying again helps once they are right",
        )
    }

    /// Data exceptions, integrity constraints, views with a check, values past a limit, and what triggers raise.
    fn blames_a_row(error: &dyn DatabaseError) -> bool {
        let code = error.code().unwrap_or_default();
        ["22", "23", "44", "54", "P0"].iter().any(|class| code.starts_with(class))
    }

    /// "cached plan must not change result type", in whatever language the server says it.
    fn is_stale_plan(error: &dyn DatabaseError) -> bool {
        let error = error.try_downcast_ref::<PgDatabaseError>();
        error.is_some_and(|error| error.code() == "0A000" && error.routine() == Some("RevalidateCachedQuery"))
    }

    /// From a detail such as `Key (msg_id)=(abc) already exists.`
    fn duplicate_id(error: &dyn DatabaseError) -> Option<String> {
        let detail = error.try_downcast_ref::<PgDatabaseError>()?.detail()?;
        let (_, rest) = detail.split_once("(msg_id)=(")?;
        Some(rest.rsplit_once(')')?.0.to_owned())
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
        Member::Int(name) => format!("{name} bigint"),
        Member::Text(name) => format!("{name} text"),
        Member::Token(name) => format!("{name} uuid"),
    }
}

/// An array of parameters for each column.
fn push_arrays(sql: Sql<Postgres>, rows: Vec<NewRow>, receipts: &str) -> Sql<Postgres> {
    let received = if rows.iter().any(waits_for_receipts) { received(receipts) } else { "0".to_owned() };
    let sql = sql
        .text("SELECT msg_id, biz_type, biz_id, payload::jsonb, payload_bin, content_type, headers::jsonb")
        .text(format!(", ordering_key, required_groups::jsonb, {received}, COALESCE(due, "))
        .now()
        .text("), ")
        .now()
        .text(" FROM UNNEST(");
    let mut columns = Columns::default();
    rows.into_iter().for_each(|row| columns.push(row));
    columns.bind(sql).text(
        ") AS s(msg_id, biz_type, biz_id, payload, payload_bin, content_type, headers, ordering_key, \
         required_groups, due)",
    )
}

/// Only such a row can have receipts that came before it.
fn waits_for_receipts(row: &NewRow) -> bool {
    row.required_groups.as_ref().is_some_and(|groups| !groups.is_empty())
}

fn received(receipts: &str) -> String {
    format!(
        "(SELECT count(*) FROM {receipts} AS r WHERE r.verdict = 'handled' AND r.msg_id = s.msg_id \
         AND s.required_groups::jsonb ? r.consumer_group)"
    )
}

#[derive(Default)]
struct Columns {
    msg_id: Vec<String>,
    biz_type: Vec<String>,
    biz_id: Vec<String>,
    json: Vec<Option<String>>,
    bytes: Vec<Option<Vec<u8>>>,
    content_type: Vec<Option<String>>,
    headers: Vec<Option<String>>,
    ordering_key: Vec<Option<String>>,
    required_groups: Vec<Option<String>>,
    due: Vec<Option<Timestamp>>,
}

impl Columns {
    fn push(&mut self, row: NewRow) {
        self.required_groups.push(row.required_json());
        self.msg_id.push(row.msg_id);
        self.biz_type.push(row.biz_type);
        self.biz_id.push(row.biz_id);
        self.json.push(row.json);
        self.bytes.push(row.bytes);
        self.content_type.push(row.content_type);
        self.headers.push(row.headers);
        self.ordering_key.push(row.ordering_key);
        self.due.push(row.due);
    }

    fn bind(self, sql: Sql<Postgres>) -> Sql<Postgres> {
        let sql =
            sql.bind(self.msg_id).text(", ").bind(self.biz_type).text(", ").bind(self.biz_id).text(", ");
        let sql =
            sql.bind(self.json).text(", ").bind(self.bytes).text(", ").bind(self.content_type).text(", ");
        let sql = sql.bind(self.headers).text(", ").bind(self.ordering_key).text(", ");
        sql.bind(self.required_groups).text(", ").bind(self.due)
    }
}
