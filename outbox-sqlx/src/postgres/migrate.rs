use std::collections::{HashMap, HashSet};

use outbox_core::StoreError;
use sqlx::{PgConnection, Postgres};

use super::schema::{
    CHECKS, COLUMNS, Check, Column, INDEXES, STORAGE, TIME, create_keys, create_outbox, create_receipts,
};
use crate::driver::Run;
use crate::error::store_error;
use crate::keys::Layout;
use crate::names::{Names, TableName};
use crate::row::Cells;
use crate::sql::Sql;
use crate::time::Now;

/// A column as the catalog has it.
struct Found {
    kind: String,
    not_null: bool,
    has_default: bool,
}

impl Found {
    /// `timestamp without time zone`, of any precision.
    fn is_local_time(&self) -> bool {
        self.kind.starts_with("timestamp") && self.kind.ends_with("without time zone")
    }
}

/// Reads the catalog first and changes only what differs: an ALTER that would change nothing still stops all
/// traffic while it waits for its lock.
pub(super) async fn migrate(conn: &mut PgConnection, names: &Names) -> Result<(), StoreError> {
    wait_for_others(conn, &names.table).await?;
    let found = columns(conn, names).await?;
    if found.is_empty() {
        script(conn, create_outbox(names)).await?;
    } else {
        bring_up_to_date(conn, names, &found).await?;
    }
    if columns_of(conn, &names.receipts).await?.is_empty() {
        script(conn, create_receipts(names)).await?;
    }
    create_indexes(conn, &names.table, &INDEXES).await
}

pub(super) async fn migrate_keys(
    conn: &mut PgConnection,
    table: &TableName,
    layout: &Layout,
) -> Result<(), StoreError> {
    wait_for_others(conn, table).await?;
    if columns_of(conn, &table.to_string()).await?.is_empty() {
        script(conn, create_keys(table, layout)).await?;
    }
    let (suffix, definition) = layout.index();
    create_indexes(conn, table, &[(&suffix, &definition)]).await
}

/// One migration at a time; the lock ends with the transaction.
async fn wait_for_others(conn: &mut PgConnection, table: &TableName) -> Result<(), StoreError> {
    let sql = ask("SELECT pg_advisory_xact_lock(hashtextextended(").bind(format!("migrate {table}"));
    sql.text(", 0))").fetch(conn).await.map(|_| ())
}

async fn columns(conn: &mut PgConnection, names: &Names) -> Result<HashMap<String, Found>, StoreError> {
    columns_of(conn, &names.outbox).await
}

async fn columns_of(conn: &mut PgConnection, table: &str) -> Result<HashMap<String, Found>, StoreError> {
    let sql =
        ask("SELECT attname::text, format_type(atttypid, atttypmod), attnotnull::int, atthasdef::int FROM pg_attribute")
            .text(" WHERE attnum > 0 AND NOT attisdropped AND attrelid = to_regclass(")
            .bind(table.to_owned())
            .text(")");
    let read = |row| {
        let mut cells = Cells::<Postgres>::of(row);
        let name = cells.text().unwrap_or_default();
        let kind = cells.text().unwrap_or_default();
        let (not_null, has_default) = (cells.number::<i32>() == 1, cells.number::<i32>() == 1);
        (name, Found { kind, not_null, has_default })
    };
    Ok(sql.fetch(conn).await?.iter().map(read).collect())
}

async fn bring_up_to_date(
    conn: &mut PgConnection,
    names: &Names,
    found: &HashMap<String, Found>,
) -> Result<(), StoreError> {
    let zone = time_zone(conn).await?;
    let mut changes: Vec<String> =
        COLUMNS.iter().filter_map(|column| column_change(column, found, &zone)).collect();
    if found.contains_key("msg_id") && !msg_id_is_unique(conn, names).await? {
        changes.push("ADD UNIQUE (msg_id)".to_owned());
    }
    let checks = missing_checks(conn, names).await?;
    if changes.is_empty() && checks.is_empty() {
        return Ok(());
    }
    let outbox = &names.outbox;
    tracing::info!(table = %outbox, "adopting the outbox table");
    script(conn, format!("LOCK TABLE {outbox} IN ACCESS EXCLUSIVE MODE")).await?;
    if !changes.is_empty() {
        script(conn, format!("ALTER TABLE {outbox} {}", changes.join(", "))).await?;
    }
    script(conn, format!("ALTER TABLE {outbox} SET ({STORAGE})")).await?;
    if found.get("next_retry_time").is_some_and(Found::is_local_time) {
        script(conn, make_due(outbox)).await?;
    }
    add_checks(conn, names, &checks).await
}

/// If the time zone was guessed wrongly, pending rows would wait for hours; being early costs nothing.
fn make_due(outbox: &str) -> String {
    format!("UPDATE {outbox} SET next_retry_time = now() WHERE status = 0 AND next_retry_time > now()")
}

fn column_change(column: &Column, found: &HashMap<String, Found>, zone: &str) -> Option<String> {
    let Column { name, kind, rest } = column;
    let Some(found) = found.get(*name) else { return Some(format!("ADD COLUMN {name} {kind} {rest}")) };
    if let Some((_, default)) = rest.split_once("NOT NULL DEFAULT ") {
        return always_set(column, default, found, zone);
    }
    if *kind == TIME && found.is_local_time() {
        return Some(format!("ALTER COLUMN {name} DROP DEFAULT, {}", to_universal_time(column, zone)));
    }
    if *name == "payload" && found.not_null {
        return Some(format!("ALTER COLUMN {name} DROP NOT NULL"));
    }
    (width(kind)? > width(&found.kind)?).then(|| format!("ALTER COLUMN {name} TYPE {kind}"))
}

fn to_universal_time(Column { name, kind, .. }: &Column, zone: &str) -> String {
    format!("ALTER COLUMN {name} TYPE {kind} USING {name} AT TIME ZONE '{zone}'")
}

/// A column that every row has, filled with its default where it was NULL: relays would pass such rows over.
fn always_set(
    Column { name, kind, .. }: &Column,
    default: &str,
    found: &Found,
    zone: &str,
) -> Option<String> {
    let local = *kind == TIME && found.is_local_time();
    let set = format!("ALTER COLUMN {name} SET DEFAULT {default}");
    if found.not_null && !local {
        return (!found.has_default).then_some(set);
    }
    let (kind, value) = if local {
        (*kind, format!("{name} AT TIME ZONE '{zone}'"))
    } else {
        (&*found.kind, (*name).to_owned())
    };
    Some(format!(
        "ALTER COLUMN {name} DROP DEFAULT, ALTER COLUMN {name} TYPE {kind} USING COALESCE({value}, {default}), \
         {set}, ALTER COLUMN {name} SET NOT NULL"
    ))
}

/// Of a text column with a limit.
fn width(kind: &str) -> Option<u32> {
    kind.strip_prefix("character varying(")?.strip_suffix(')')?.parse().ok()
}

/// By an index that the database can use for ON CONFLICT (msg_id).
async fn msg_id_is_unique(conn: &mut PgConnection, names: &Names) -> Result<bool, StoreError> {
    let sql = ask(
        "SELECT attname::text FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0] \
         WHERE indisunique AND indisvalid AND indimmediate AND indpred IS NULL AND indexprs IS NULL \
         AND indnkeyatts = 1 AND attname = 'msg_id' AND indrelid = to_regclass(",
    );
    Ok(!texts(conn, sql.bind(names.outbox.clone()).text(")")).await?.is_empty())
}

async fn missing_checks(conn: &mut PgConnection, names: &Names) -> Result<Vec<Check>, StoreError> {
    let sql = ask("SELECT conname::text FROM pg_constraint WHERE conrelid = to_regclass(");
    let found = texts(conn, sql.bind(names.outbox.clone()).text(")")).await?;
    Ok(CHECKS
        .into_iter()
        .filter(|(suffix, _)| !found.contains(&format!("{}{suffix}", names.table.base)))
        .collect())
}

/// A check holds for old rows too as soon as they are updated, as each claim does. So pending rows that violate
/// one fail first, where people see them; what remains is left as it is.
async fn add_checks(conn: &mut PgConnection, names: &Names, checks: &[Check]) -> Result<(), StoreError> {
    for (suffix, check) in checks {
        script(conn, park(names, suffix, check)).await?;
        let violated = format!("SELECT 'violated' FROM {} WHERE ({check}) IS FALSE LIMIT 1", names.outbox);
        let not_valid = if texts(conn, ask(&violated)).await?.is_empty() { "" } else { " NOT VALID" };
        let (outbox, name) = (&names.outbox, names.table.local(suffix));
        script(conn, format!("ALTER TABLE {outbox} ADD CONSTRAINT {name} CHECK ({check}){not_valid}"))
            .await?;
    }
    Ok(())
}

fn park(names: &Names, suffix: &str, check: &str) -> String {
    format!(
        "UPDATE {} SET status = 9, last_error = 'violates the check {}{suffix}, found by migrate(): \
         repair the row, then requeue it' WHERE status = 0 AND ({check}) IS FALSE",
        names.outbox, names.table.base
    )
}

async fn create_indexes(
    conn: &mut PgConnection,
    table: &TableName,
    indexes: &[(&str, &str)],
) -> Result<(), StoreError> {
    let sql = ask(
        "SELECT relname::text FROM pg_index JOIN pg_class ON oid = indexrelid WHERE indrelid = to_regclass(",
    );
    let found = texts(conn, sql.bind(table.to_string()).text(")")).await?;
    for (suffix, definition) in indexes {
        if !found.contains(&format!("{}{suffix}", table.base)) {
            script(conn, format!("CREATE INDEX {} ON {table} {definition}", table.local(suffix))).await?;
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
