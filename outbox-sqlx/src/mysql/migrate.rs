use std::collections::HashMap;

use outbox_core::{StoreError, StoreErrorKind};
use sqlx::{MySql, MySqlConnection};

use super::catalog::{Found, ask, collation, columns, constraints, indexes, texts};
use super::schema::{
    CHECKS, COLUMNS, DUE, Kind, NOW, Rest, check, create_keys, create_outbox, create_receipts, definition,
    due, kind, unique,
};
use crate::driver::Run;
use crate::error::store_error;
use crate::keys::Layout;
use crate::names::{Names, TableName};

/// How long one migration waits for another one.
const PATIENCE_SECONDS: u32 = 600;

/// Every statement that changes a table commits, so each leaves a table that the next run can go on with.
pub(super) async fn migrate(conn: &mut MySqlConnection, names: &Names) -> Result<(), StoreError> {
    let collation = collation(conn).await?;
    lock(conn, &names.table).await?;
    let done = migrate_alone(conn, names, collation).await;
    unlock(conn, &names.table).await?;
    done
}

pub(super) async fn migrate_keys(
    conn: &mut MySqlConnection,
    table: &TableName,
    layout: &Layout,
) -> Result<(), StoreError> {
    let collation = collation(conn).await?;
    lock(conn, table).await?;
    let done = migrate_keys_alone(conn, table, layout, collation).await;
    unlock(conn, table).await?;
    done
}

/// One migration at a time. In UTC, because changing a `TIMESTAMP` to a `DATETIME` reads the session's time zone.
async fn lock(conn: &mut MySqlConnection, table: &TableName) -> Result<(), StoreError> {
    let sql = locking("GET_LOCK", table).text(format!(", {PATIENCE_SECONDS}) AS CHAR)"));
    if !texts(conn, sql).await?.contains("1") {
        let message = "another process has been migrating the table for ten minutes; try again later";
        return Err(StoreError::new(StoreErrorKind::Unavailable, message));
    }
    script(conn, "SET @outbox_zone = @@SESSION.time_zone, time_zone = '+00:00'".to_owned()).await
}

async fn unlock(conn: &mut MySqlConnection, table: &TableName) -> Result<(), StoreError> {
    script(conn, "SET time_zone = @outbox_zone".to_owned()).await?;
    texts(conn, locking("RELEASE_LOCK", table).text(") AS CHAR)")).await.map(|_| ())
}

/// The name of a lock holds for all databases of the server and has 64 characters at most.
fn locking(function: &str, table: &TableName) -> crate::sql::Sql<MySql> {
    ask(&format!("SELECT CAST({function}(CONCAT('outbox ', MD5(CONCAT(COALESCE("))
        .bind(table.schema.clone())
        .text(", DATABASE(), ''), '.', ")
        .bind(table.base.clone())
        .text(")))")
}

async fn migrate_alone(conn: &mut MySqlConnection, names: &Names, collation: &str) -> Result<(), StoreError> {
    let found = columns(conn, &names.table).await?;
    if found.is_empty() {
        script(conn, create_outbox(names, collation)).await?;
    } else {
        bring_up_to_date(conn, names, &found, collation).await?;
    }
    script(conn, create_receipts(names, collation)).await
}

async fn migrate_keys_alone(
    conn: &mut MySqlConnection,
    table: &TableName,
    layout: &Layout,
    collation: &str,
) -> Result<(), StoreError> {
    script(conn, create_keys(table, layout, collation)).await?;
    let found = indexes(conn, table).await?;
    if !found.values().any(|columns| columns == "!consumer_group,msg_id") {
        let message = "no unique key has the columns consumer_group and msg_id";
        return Err(StoreError::new(StoreErrorKind::Schema, message));
    }
    let (suffix, definition) = layout.index();
    if found.contains_key(&format!("{}{suffix}", table.base)) {
        return Ok(());
    }
    script(conn, format!("CREATE INDEX {} ON {table} {definition}", table.local(&suffix))).await
}

/// Reads the catalog first and changes only what differs, in one ALTER that does all or nothing.
async fn bring_up_to_date(
    conn: &mut MySqlConnection,
    names: &Names,
    found: &HashMap<String, Found>,
    collation: &str,
) -> Result<(), StoreError> {
    let mut changes: Vec<String> = COLUMNS
        .iter()
        .filter_map(|(name, of, rest)| column_change(name, *of, *rest, found.get(*name), collation))
        .collect();
    changes.extend(index_changes(conn, &names.table).await?);
    if !changes.is_empty() {
        tracing::info!(table = %names.outbox, "adopting the outbox table");
        for fill in fills(&names.outbox, found) {
            script(conn, fill).await?;
        }
        script(conn, format!("ALTER TABLE {} {}", names.outbox, changes.join(", "))).await?;
    }
    add_checks(conn, names).await
}

async fn index_changes(conn: &mut MySqlConnection, table: &TableName) -> Result<Vec<String>, StoreError> {
    let indexes = indexes(conn, table).await?;
    let by_id: Vec<&String> =
        indexes.iter().filter(|(_, of)| *of == "!msg_id").map(|(name, _)| name).collect();
    let mut changes = Vec::new();
    if by_id.is_empty() {
        changes.push(format!("ADD {}", unique(table)));
    } else if let Some(name) = by_id.iter().find(|name| !name.contains("msg_id")) {
        // Errors tell the name of the key.
        changes.push(format!("RENAME INDEX `{name}` TO {}", table.local("_msg_id")));
    }
    if !indexes.contains_key(&format!("{}{DUE}", table.base)) {
        changes.push(format!("ADD {}", due(table)));
    }
    Ok(changes)
}

fn column_change(name: &str, of: Kind, rest: Rest, found: Option<&Found>, collation: &str) -> Option<String> {
    let Some(found) = found else {
        return Some(format!("ADD COLUMN {}", definition(name, &kind(of, collation), rest)));
    };
    let modified = |kind: &str| Some(format!("MODIFY COLUMN {}", definition(name, kind, rest)));
    let loose = matches!(rest, Rest::Default(_)) && !(found.not_null && found.has_default);
    match of {
        Kind::Text(max) => {
            let width = width(&found.kind)?;
            let same = width >= max && found.collation.as_deref() == Some(collation);
            if same { None } else { modified(&kind(Kind::Text(max.max(width)), collation)) }
        }
        Kind::Time if found.kind != "datetime(6)" || loose => modified(&kind(of, collation)),
        // MariaDB's JSON is a longtext with a check.
        Kind::Json if found.not_null && matches!(&*found.kind, "json" | "longtext") => modified("JSON"),
        Kind::Json if found.not_null => modified(&found.kind),
        _ if loose => modified(&found.kind),
        _ => None,
    }
}

fn width(kind: &str) -> Option<usize> {
    kind.strip_prefix("varchar(")?.strip_suffix(')')?.parse().ok()
}

/// NULL becomes the default: relays would pass such rows over. In which time zone a `DATETIME` was written nobody
/// knows: what is pending becomes due, because being early costs nothing.
fn fills(outbox: &str, found: &HashMap<String, Found>) -> Vec<String> {
    let fill = |(name, _, rest): &(&str, Kind, Rest)| match (found.get(*name), rest) {
        (Some(found), Rest::Default(default)) if !found.not_null => {
            Some(format!("UPDATE {outbox} SET {name} = {default} WHERE {name} IS NULL"))
        }
        _ => None,
    };
    let mut fills: Vec<String> = COLUMNS.iter().filter_map(fill).collect();
    let local = |found: &Found| found.kind.starts_with("datetime") && found.kind != "datetime(6)";
    if found.get("next_retry_time").is_some_and(local) {
        fills.push(format!(
            "UPDATE {outbox} SET next_retry_time = {NOW} WHERE status = 0 AND next_retry_time > {NOW}"
        ));
    }
    fills
}

/// A pending row that violates a check fails, where people see it: each claim would be refused. While other rows
/// violate it, the check is left out.
async fn add_checks(conn: &mut MySqlConnection, names: &Names) -> Result<(), StoreError> {
    let found = constraints(conn, &names.table).await?;
    for (suffix, condition) in CHECKS {
        if found.contains(&format!("{}{suffix}", names.table.base)) {
            continue;
        }
        script(conn, park(names, suffix, condition)).await?;
        let violated = format!("SELECT 'violated' FROM {} WHERE NOT ({condition}) LIMIT 1", names.outbox);
        if texts(conn, ask(&violated)).await?.is_empty() {
            let check = check(&names.table, (suffix, condition));
            script(conn, format!("ALTER TABLE {} ADD {check}", names.outbox)).await?;
        } else {
            tracing::warn!(table = %names.outbox, condition, "rows violate a check, which is left out until they are gone");
        }
    }
    Ok(())
}

fn park(names: &Names, suffix: &str, check: &str) -> String {
    format!(
        "UPDATE {} SET status = 9, last_error = 'violates the check {}{suffix}, found by migrate(): \
         repair the row, then requeue it' WHERE status = 0 AND NOT ({check})",
        names.outbox, names.table.base
    )
}

async fn script(conn: &mut MySqlConnection, sql: String) -> Result<(), StoreError> {
    MySql::script(conn, sql).await.map_err(store_error::<MySql>)
}
