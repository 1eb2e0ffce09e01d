//! What the server is, and what it knows of a table.

use std::collections::{HashMap, HashSet};

use outbox_core::{StoreError, StoreErrorKind};
use sqlx::{MySql, MySqlConnection};

use crate::names::TableName;
use crate::row::Cells;
use crate::sql::Sql;
use crate::time::Now;

/// A column, with its type as `INFORMATION_SCHEMA` prints it.
pub(super) struct Found {
    pub(super) kind: String,
    pub(super) not_null: bool,
    pub(super) has_default: bool,
    pub(super) collation: Option<String>,
}

/// The collation of ids and names, in which only the same bytes are the same: no other case, no padding.
pub(super) async fn collation(conn: &mut MySqlConnection) -> Result<&'static str, StoreError> {
    let version = texts(conn, ask("SELECT VERSION()")).await?.into_iter().next().unwrap_or_default();
    let (needed, collation) = if version.contains("MariaDB") {
        ((10, 6, 0), "utf8mb4_nopad_bin")
    } else {
        ((8, 0, 17), "utf8mb4_0900_bin")
    };
    if parse(&version) < needed { Err(too_old(&version)) } else { Ok(collation) }
}

fn parse(version: &str) -> (u32, u32, u32) {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
    let mut next = || numbers.next().unwrap_or(0);
    (next(), next(), next())
}

fn too_old(version: &str) -> StoreError {
    let message = format!(
        "the server is {version}, which cannot share a queue among relays (SKIP LOCKED, JSON_TABLE): MySQL 8.0.17 \
         or MariaDB 10.6 is the oldest that can"
    );
    StoreError::new(StoreErrorKind::Other, message)
}

pub(super) async fn columns(
    conn: &mut MySqlConnection,
    table: &TableName,
) -> Result<HashMap<String, Found>, StoreError> {
    let sql = ask(
        "SELECT COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE = 'NO', COLUMN_DEFAULT IS NOT NULL, COLLATION_NAME",
    )
    .text(" FROM INFORMATION_SCHEMA.COLUMNS WHERE ");
    let read = |row| {
        let mut cells = Cells::<MySql>::of(row);
        let name = cells.text().unwrap_or_default().to_lowercase();
        let kind = cells.text().unwrap_or_default().to_lowercase();
        let (not_null, has_default) = (cells.number::<i32>() == 1, cells.number::<i32>() == 1);
        (name, Found { kind, not_null, has_default, collation: cells.text() })
    };
    Ok(of(sql, table).fetch(conn).await?.iter().map(read).collect())
}

/// Indexes by their names, with their columns as `a,b`; a unique one begins with `!`.
pub(super) async fn indexes(
    conn: &mut MySqlConnection,
    table: &TableName,
) -> Result<HashMap<String, String>, StoreError> {
    let sql = ask("SELECT INDEX_NAME, CONCAT(CASE WHEN MAX(NON_UNIQUE) = 0 THEN '!' ELSE '' END")
        .text(", GROUP_CONCAT(LOWER(COLUMN_NAME) ORDER BY SEQ_IN_INDEX SEPARATOR ','))")
        .text(" FROM INFORMATION_SCHEMA.STATISTICS WHERE ");
    let read = |row| {
        let mut cells = Cells::<MySql>::of(row);
        (cells.text().unwrap_or_default(), cells.text().unwrap_or_default())
    };
    Ok(of(sql, table).text(" GROUP BY INDEX_NAME").fetch(conn).await?.iter().map(read).collect())
}

pub(super) async fn constraints(
    conn: &mut MySqlConnection,
    table: &TableName,
) -> Result<HashSet<String>, StoreError> {
    texts(conn, of(ask("SELECT CONSTRAINT_NAME FROM INFORMATION_SCHEMA.TABLE_CONSTRAINTS WHERE "), table))
        .await
}

fn of(sql: Sql<MySql>, table: &TableName) -> Sql<MySql> {
    sql.text("TABLE_SCHEMA = COALESCE(")
        .bind(table.schema.clone())
        .text(", DATABASE()) AND TABLE_NAME = ")
        .bind(table.base.clone())
}

pub(super) fn ask(sql: &str) -> Sql<MySql> {
    Sql::at(Now::Server).text(sql)
}

pub(super) async fn texts(
    conn: &mut MySqlConnection,
    sql: Sql<MySql>,
) -> Result<HashSet<String>, StoreError> {
    let rows = sql.fetch(conn).await?;
    Ok(rows.iter().filter_map(|row| Cells::<MySql>::of(row).text()).collect())
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert_eq!(parse("10.11.19-MariaDB-0+deb12u1"), (10, 11, 19));
        assert_eq!(parse("8.0.36"), (8, 0, 36));
        assert!(parse("8.0.4-rc-log") < (8, 0, 17) && parse("8.4.0") > (8, 0, 17) && parse("") < (8, 0, 17));
    }
}
