use std::collections::{HashMap, HashSet};

use outbox_core::StoreError;
use sqlx::{PgConnection, Postgres};

use super::schema::{CHECKS, COLUMNS, Column, INDEXES, STORAGE, TIME, create_outbox, create_receipts};
use crate::driver::Run;
use crate::error::store_error;
use crate::names::Names;
use crate::row::Cells;
use crate::sql::Sql;
use crate::time::Now;

const LOCAL_TIME: &str = "timestamp without time zone";

/// A column as the catalog has it.
struct Found {
    kind: String,
    not_null: bool,
}

/// Reads the catalog first and changes only what differs: an ALTER that would change nothing still stops all
/// traffic while it waits for its lock.
pub(super) async fn migrate(conn: &mut PgConnection, names: &Names) -> Result<(), StoreError> {
    wait_for_others(conn, names).await?;
    let found = columns(conn, names).await?;
    if found.is_empty() {
        script(conn, create_outbox(names)).await?;
    } else {
        bring_up_to_date(conn, names, &found).await?;
    }
    if columns_of(conn, &names.receipts).await?.is_empty() {
        script(conn, create_receipts(names)).await?;
    }
    create_indexes(conn, names).await
}

/// One migration at a time; the lock ends with the transaction.
async fn wait_for_others(conn: &mut PgConnection, names: &Names) -> Result<(), StoreError> {
    let sql = ask("SELECT pg_advisory_xact_lock(hashtextextended(").bind(format!("migrate {}", names.outbox));
    sql.text(", 0))").fetch(conn).await.map(|_| ())
}

async fn columns(conn: &mut PgConnection, names: &Names) -> Result<HashMap<String, Found>, StoreError> {
    columns_of(conn, &names.outbox).await
}

async fn columns_of(conn: &mut PgConnection, table: &str) -> Result<HashMap<String, Found>, StoreError> {
    let sql =
        ask("SELECT attname::text, format_type(atttypid, atttypmod), attnotnull::int FROM pg_attribute")
            .text(" WHERE attnum > 0 AND NOT attisdropped AND attrelid = to_regclass(")
            .bind(table.to_owned())
            .text(")");
    let read = |row| {
        let mut cells = Cells::<Postgres>::of(row);
        let name = cells.text().unwrap_or_default();
        (name, Found { kind: cells.text().unwrap_or_default(), not_null: cells.number::<i32>() == 1 })
    };
    Ok(sql.fetch(conn).await?.iter().map(read).collect())
}

async fn bring_up_to_date(
    conn: &mut PgConnection,
    names: &Names,
    found: &HashMap<String, Found>,
) -> Result<(), StoreError> {
    let zone = time_zone(conn).await?;
    let checks = constraints(conn, names).await?;
    let mut changes: Vec<String> =
        COLUMNS.iter().filter_map(|column| column_change(column, found, &zone)).collect();
    changes.extend(CHECKS.iter().filter_map(|check| missing_check(*check, names, &checks)));
    if changes.is_empty() {
        return Ok(());
    }
    let outbox = &names.outbox;
    tracing::info!(table = %outbox, "adopting the outbox table");
    let mut sql =
        format!("ALTER TABLE {outbox} {}; ALTER TABLE {outbox} SET ({STORAGE});", changes.join(", "));
    if found.get("next_retry_time").is_some_and(|column| column.kind == LOCAL_TIME) {
        sql += &make_due(outbox);
    }
    script(conn, sql).await
}

/// If the time zone was guessed wrongly, pending rows would wait for hours; being early costs nothing.
fn make_due(outbox: &str) -> String {
    format!(" UPDATE {outbox} SET next_retry_time = now() WHERE status = 0 AND next_retry_time > now();")
}

fn column_change(column: &Column, found: &HashMap<String, Found>, zone: &str) -> Option<String> {
    let Column { name, kind, rest } = column;
    let Some(found) = found.get(*name) else { return Some(format!("ADD COLUMN {name} {kind} {rest}")) };
    if *kind == TIME && found.kind == LOCAL_TIME {
        return Some(to_universal_time(column, zone));
    }
    if *name == "payload" && found.not_null {
        return Some(format!("ALTER COLUMN {name} DROP NOT NULL"));
    }
    (width(kind)? > width(&found.kind)?).then(|| format!("ALTER COLUMN {name} TYPE {kind}"))
}

fn to_universal_time(Column { name, kind, rest }: &Column, zone: &str) -> String {
    let change = format!(
        "ALTER COLUMN {name} DROP DEFAULT, ALTER COLUMN {name} TYPE {kind} USING {name} AT TIME ZONE '{zone}'"
    );
    let default = rest.split_once("DEFAULT ");
    default.map_or_else(
        || change.clone(),
        |(_, default)| format!("{change}, ALTER COLUMN {name} SET DEFAULT {default}"),
    )
}

/// Of a text column with a limit.
fn width(kind: &str) -> Option<u32> {
    kind.strip_prefix("character varying(")?.strip_suffix(')')?.parse().ok()
}

/// What an adopted table holds already is left as it is.
fn missing_check((suffix, check): (&str, &str), names: &Names, found: &HashSet<String>) -> Option<String> {
    let missing = !found.contains(&format!("{}{suffix}", names.base));
    missing.then(|| format!("ADD CONSTRAINT {} CHECK ({check}) NOT VALID", names.local(suffix)))
}

async fn constraints(conn: &mut PgConnection, names: &Names) -> Result<HashSet<String>, StoreError> {
    let sql = ask("SELECT conname::text FROM pg_constraint WHERE conrelid = to_regclass(");
    texts(conn, sql.bind(names.outbox.clone()).text(")")).await
}

async fn create_indexes(conn: &mut PgConnection, names: &Names) -> Result<(), StoreError> {
    let sql = ask(
        "SELECT relname::text FROM pg_index JOIN pg_class ON oid = indexrelid WHERE indrelid = to_regclass(",
    );
    let found = texts(conn, sql.bind(names.outbox.clone()).text(")")).await?;
    for (suffix, definition) in INDEXES {
        if !found.contains(&format!("{}{suffix}", names.base)) {
            script(conn, format!("CREATE INDEX {} ON {} {definition}", names.local(suffix), names.outbox))
                .await?;
        }
    }
    Ok(())
}

/// The zone in which `TIMESTAMP` columns were filled: that of the role or database, else that of the server's
/// logs, which initdb sets to the same as the server's. The session's own says nothing: the driver sets it.
async fn time_zone(conn: &mut PgConnection) -> Result<String, StoreError> {
    let sql = ask(
        "SELECT COALESCE((SELECT substr(setting, 10) FROM pg_db_role_setting, unnest(setconfig) AS setting \
         WHERE setting ILIKE 'timezone=%' AND setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database())) \
         AND setrole IN (0, (SELECT oid FROM pg_roles WHERE rolname = current_user)) \
         ORDER BY setrole <> 0 AND setdatabase <> 0 DESC, setrole <> 0 DESC, setdatabase <> 0 DESC LIMIT 1), \
         current_setting('log_timezone'))",
    );
    let zones = texts(conn, sql).await?;
    Ok(zones.into_iter().next().unwrap_or_else(|| "UTC".to_owned()).replace('\'', "''"))
}

fn ask(sql: &str) -> Sql<Postgres> {
    Sql::at(Now::Server).text(sql)
}

async fn texts(conn: &mut PgConnection, sql: Sql<Postgres>) -> Result<HashSet<String>, StoreError> {
    let rows = sql.fetch(conn).await?;
    Ok(rows.iter().filter_map(|row| Cells::<Postgres>::of(row).text()).collect())
}

async fn script(conn: &mut PgConnection, sql: String) -> Result<(), StoreError> {
    Postgres::script(conn, sql).await.map_err(store_error::<Postgres>)
}
