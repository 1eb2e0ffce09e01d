use std::collections::BTreeMap;
use std::time::Duration;

use outbox_core::{DedupKey, StoreError, StoreErrorKind};
use sqlx::Pool;

use crate::access::{Access, commit, whole};
use crate::error::{retrying, store_error};
use crate::names::TableName;
use crate::row::Cells;
use crate::sql::Sql;
use crate::store::SqlDatabase;

/// Bytes of a message's id: what fits the `message_id` of AMQP, so more than this framework's own 64.
pub(crate) const MAX_MSG_ID: usize = 255;
/// Bytes of a consumer group's name.
pub(crate) const MAX_GROUP: usize = 255;

/// The primary key.
const KEY: &str = "consumer_group, msg_id";

/// What a table of keys has beside its key.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// A column `token`, which may be NULL.
    pub(crate) token: bool,
    /// The column by which rows get old.
    pub(crate) time: &'static str,
}

impl Layout {
    /// The index for the clean-up: the suffix of its name, and its definition.
    pub(crate) fn index(&self) -> (String, String) {
        (format!("_{}", self.time), format!("({})", self.time))
    }
}

/// A table with a row for each message that a consumer group knows of.
pub(crate) struct KeyTable<DB: SqlDatabase> {
    pub(crate) db: Access<DB>,
    pub(crate) name: TableName,
    layout: Layout,
}

impl<DB: SqlDatabase> KeyTable<DB> {
    pub(crate) fn new(pool: Pool<DB>, name: &str, layout: Layout) -> Self {
        Self { db: Access::new(pool), name: TableName::plain(name, DB::QUOTE), layout }
    }

    pub(crate) async fn migrate(&self) -> Result<(), StoreError> {
        retrying(|| self.try_migrate()).await.map_err(|error| match error.kind() {
            StoreErrorKind::Schema => self.unfit(error),
            _ => error,
        })
    }

    /// In a task of its own, as that of the outbox.
    async fn try_migrate(&self) -> Result<(), StoreError> {
        let keys = self.clone();
        whole(tokio::spawn(async move { keys.migrate_here().await })).await
    }

    async fn migrate_here(&self) -> Result<(), StoreError> {
        let mut tx = self.db.begin_write().await?;
        DB::migrate_keys(&mut tx, &self.name, &self.layout).await?;
        self.insertion("EXPLAIN ", &DedupKey::new("x", "x"), None).fetch(&mut tx).await?;
        commit(tx).await
    }

    fn unfit(&self, error: StoreError) -> StoreError {
        let (table, time) = (&self.name, self.layout.time);
        let token = if self.layout.token { ", token" } else { "" };
        let message = format!(
            "there is a table {table}, but it lacks a column or the unique key of the one that is needed, \
             ({KEY}{token}, {time}) with the key ({KEY}): rename it, or choose another name with with_table()"
        );
        StoreError::new(StoreErrorKind::Schema, message).with_source(error)
    }

    /// Writes the row of `key` unless there is one, and says whether it did. The time is now if there is no token,
    /// else the lease's end.
    pub(crate) async fn insert(
        &self,
        conn: &mut DB::Connection,
        key: &DedupKey,
        token: Option<(uuid::Uuid, Duration)>,
    ) -> Result<bool, StoreError> {
        match self.insertion("", key, token).try_execute(conn).await {
            Ok(written) => Ok(written == 1),
            Err(error) if error.as_database_error().is_some_and(DB::is_there) => Ok(false),
            Err(error) => Err(store_error::<DB>(error)),
        }
    }

    fn insertion(&self, before: &str, key: &DedupKey, token: Option<(uuid::Uuid, Duration)>) -> Sql<DB> {
        let (insert, unless_there) = DB::unless_there(KEY);
        let Layout { time, .. } = self.layout;
        let columns = if token.is_some() { "token, " } else { "" };
        let sql = self
            .db
            .sql()
            .text(format!("{before}{insert} INTO {} ({KEY}, {columns}{time}) VALUES (", self.name))
            .bind(key.group.clone())
            .text(", ")
            .bind(key.msg_id.clone())
            .text(", ");
        let sql = match token {
            Some((token, lease)) => sql.uuid(token).text(", ").later(lease),
            None => sql.now(),
        };
        sql.text(")").text(unless_there)
    }

    /// A condition: the row of `key`.
    pub(crate) fn is(sql: Sql<DB>, key: &DedupKey) -> Sql<DB> {
        sql.text("consumer_group = ").bind(key.group.clone()).text(" AND msg_id = ").bind(key.msg_id.clone())
    }

    /// Removes the rows whose time is `age` ago or longer, `batch` in a transaction, the oldest first.
    pub(crate) async fn forget(&self, age: Duration, batch: usize) -> Result<usize, StoreError> {
        let (batch, mut forgotten) = (batch.max(1), 0);
        loop {
            let gone = retrying(|| self.try_forget(age, batch)).await?;
            forgotten += gone;
            if gone < batch {
                return Ok(forgotten);
            }
        }
    }

    async fn try_forget(&self, age: Duration, batch: usize) -> Result<usize, StoreError> {
        let mut tx = self.db.begin_write().await?;
        let rows = self.old(age, batch).fetch(&mut tx).await?;
        let mut gone = 0;
        for (group, ids) in by_group::<DB>(&rows) {
            gone += self.delete(group, ids).execute(&mut tx).await?;
        }
        commit(tx).await?;
        Ok(gone)
    }

    /// Selects and locks. What somebody else has locked is being removed, or has just been made younger.
    pub(crate) fn old(&self, age: Duration, batch: usize) -> Sql<DB> {
        let time = self.layout.time;
        self.db
            .sql()
            .text(format!("SELECT {KEY} FROM {} WHERE {time} <= ", self.name))
            .earlier(age)
            .text(format!(" ORDER BY {time} LIMIT "))
            .bind(i64::try_from(batch).unwrap_or(i64::MAX))
            .text(DB::FOR_UPDATE_SKIP_LOCKED)
    }

    /// Of one group at a time, which every planner looks up by the key.
    pub(crate) fn delete(&self, group: String, ids: Vec<String>) -> Sql<DB> {
        let sql = self.db.sql().text(format!("DELETE FROM {} WHERE consumer_group = ", self.name));
        sql.bind(group).text(" AND msg_id").among_texts(ids)
    }
}

impl<DB: SqlDatabase> Clone for KeyTable<DB> {
    fn clone(&self) -> Self {
        Self { db: self.db.clone(), name: self.name.clone(), layout: self.layout }
    }
}

fn by_group<DB: SqlDatabase>(rows: &[DB::Row]) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for row in rows {
        let mut cells = Cells::<DB>::of(row);
        let (group, id) = (cells.text().unwrap_or_default(), cells.text().unwrap_or_default());
        groups.entry(group).or_default().push(id);
    }
    groups
}

/// A key that fits the columns.
///
/// # Errors
/// Says which part does not.
pub(crate) fn key(group: &str, msg_id: &str) -> Result<DedupKey, StoreError> {
    check("consumer group", group, MAX_GROUP)?;
    check("msg_id", msg_id, MAX_MSG_ID)?;
    Ok(DedupKey::new(group, msg_id))
}

fn check(what: &str, text: &str, max: usize) -> Result<(), StoreError> {
    let problem = match text.len() {
        0 => "is empty".to_owned(),
        len if len > max => format!("has {len} bytes; the limit is {max}"),
        _ if text.contains('\0') => "has a NUL character".to_owned(),
        _ => return Ok(()),
    };
    let message = format!("the {what} {problem}: no message can be remembered under it");
    Err(StoreError::new(StoreErrorKind::InvalidMessage, message))
}
