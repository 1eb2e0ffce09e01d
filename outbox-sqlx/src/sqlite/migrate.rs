use std::collections::HashSet;

use outbox_core::{StoreError, StoreErrorKind};
use sqlx::{Sqlite, SqliteConnection};

use super::schema::{COLUMNS, INDEXES, Kind, NOW, create_index, create_keys, create_outbox, create_receipts};
use crate::driver::Run;
use crate::error::store_error;
use crate::keys::Layout;
use crate::names::{Names, TableName};
use crate::row::Cells;
use crate::sql::Sql;
use crate::time::Now;

/// The transaction is the only writer, so no other migration runs.
pub(super) async fn migrate(conn: &mut SqliteConnection, names: &Names) -> Result<(), StoreError> {
    let found = columns(conn, names).await?;
    if found.is_empty() {
        script(conn, create_outbox(names, "")).await?;
    } else if !COLUMNS.iter().all(|(name, _)| found.contains(*name)) {
        refuse_references(conn, names).await?;
        script(conn, rebuild(names, &found)).await?;
    }
    script(conn, create_receipts(names)).await?;
    for (suffix, definition) in INDEXES {
        script(conn, create_index(&names.table, suffix, definition)).await?;
    }
    Ok(())
}

pub(super) async fn migrate_keys(
    conn: &mut SqliteConnection,
    table: &TableName,
    layout: &Layout,
) -> Result<(), StoreError> {
    script(conn, create_keys(table, layout)).await?;
    let (suffix, definition) = layout.index();
    script(conn, create_index(table, &suffix, &definition)).await
}

async fn columns(conn: &mut SqliteConnection, names: &Names) -> Result<HashSet<String>, StoreError> {
    let sql = Sql::<Sqlite>::at(Now::Server)
        .text("SELECT name FROM pragma_table_xinfo(")
        .bind(names.table.base.clone())
        .text(", ")
        .bind(names.table.schema.clone().unwrap_or_else(|| "main".to_owned()))
        .text(")");
    let rows = sql.fetch(conn).await?;
    Ok(rows.iter().filter_map(|row| Cells::<Sqlite>::of(row).text()).collect())
}

/// Dropping the old table would delete the rows that refer to it with ON DELETE CASCADE. Foreign keys cannot be
/// switched off inside a transaction.
async fn refuse_references(conn: &mut SqliteConnection, names: &Names) -> Result<(), StoreError> {
    let schema = names.table.schema.as_deref().unwrap_or("main");
    let sql = Sql::<Sqlite>::at(Now::Server)
        .text(format!("SELECT m.name FROM \"{schema}\".sqlite_master AS m, pragma_foreign_keys AS p"))
        .text(format!(", pragma_foreign_key_list(m.name, '{schema}') AS f"))
        .text(" WHERE m.type = 'table' AND p.foreign_keys = 1 AND lower(f.\"table\") = lower(")
        .bind(names.table.base.clone())
        .text(")");
    let rows = sql.fetch(conn).await?;
    let Some(table) = rows.first().and_then(|row| Cells::<Sqlite>::of(row).text()) else { return Ok(()) };
    let message = format!(
        "the outbox table is not adopted: {table:?} refers to it by a foreign key, and its rows could be deleted; \
         run migrate() once on a pool whose connections have foreign_keys off"
    );
    Err(StoreError::new(StoreErrorKind::Other, message))
}

/// SQLite can add columns but not constraints, nor drop a NOT NULL: the rows move to a new table.
fn rebuild(names: &Names, found: &HashSet<String>) -> String {
    tracing::info!(table = %names.outbox, "adopting the outbox table");
    let (old, new) = (&names.outbox, names.table.qualified("_new"));
    let kept: Vec<(&str, Kind)> =
        COLUMNS.into_iter().filter(|(name, kind)| *kind != Kind::Computed && found.contains(*name)).collect();
    let columns = kept.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
    let values = kept.iter().map(|(name, kind)| copied(name, *kind)).collect::<Vec<_>>().join(", ");
    format!(
        "{} INSERT INTO {new} (id, {columns}) SELECT id, {values} FROM {old}; DROP TABLE {old}; \
         ALTER TABLE {new} RENAME TO {};",
        create_outbox(names, "_new"),
        names.table.local("")
    )
}

fn copied(name: &str, kind: Kind) -> String {
    let time = format!("strftime('%Y-%m-%d %H:%M:%f000', {name}, 'auto')");
    match kind {
        Kind::Time => time,
        Kind::TimeSet => format!("COALESCE({time}, {NOW})"),
        Kind::Count => format!("COALESCE({name}, 0)"),
        _ => name.to_owned(),
    }
}

async fn script(conn: &mut SqliteConnection, sql: String) -> Result<(), StoreError> {
    Sqlite::script(conn, sql).await.map_err(store_error::<Sqlite>)
}
