use async_trait::async_trait;
use outbox_core::{StoreError, StoreErrorKind, Timestamp};
use sqlx::database::HasStatementCache;
use sqlx::error::DatabaseError;
use sqlx::{Database, Transaction};
use uuid::Uuid;

use crate::driver::{Bind, Read, Run};
use crate::enqueue::NewRow;
use crate::keys::Layout;
use crate::names::{Names, TableName};
use crate::sql::Sql;
use crate::time::{Amount, Now, Time};

/// What truly differs from database to database. Everything else is one body of code.
#[async_trait]
pub trait Dialect:
    Database
    + HasStatementCache
    + Run
    + Read
    + Bind<i64>
    + Bind<String>
    + Bind<Option<String>>
    + Bind<Option<Vec<u8>>>
{
    /// Opens a transaction that writes, in the isolation that the store's statements are made for.
    const BEGIN_WRITE: &'static str;
    /// Opens a transaction that only reads.
    const BEGIN_READ: &'static str;
    /// The end of a SELECT whose rows are to be updated.
    const FOR_UPDATE: &'static str;
    /// The same, leaving out rows that somebody else has locked.
    const FOR_UPDATE_SKIP_LOCKED: &'static str;
    /// Makes JSON of the text before it.
    const AS_JSON: &'static str;
    /// The type to which a cast makes text.
    const TEXT: &'static str;
    /// What stands before and after a name.
    const QUOTE: char;
    /// Rows that one INSERT takes at most.
    const ROWS_PER_INSERT: usize;
    /// Bytes of payload that one INSERT takes at most; one message may be larger.
    const BYTES_PER_INSERT: usize = 32 * 1024 * 1024;

    /// The clock of a store that was given none.
    fn time() -> Time;

    /// After a table's name: makes the planner use the index of this suffix.
    fn by_index(table: &TableName, suffix: &str) -> String;
    /// After a table's name: makes the planner use the primary key.
    const BY_KEY: &'static str;

    fn push_token(sql: Sql<Self>, token: Uuid) -> Sql<Self>;
    fn push_time(sql: Sql<Self>, at: Timestamp) -> Sql<Self>;
    fn push_now(sql: Sql<Self>, now: Now) -> Sql<Self>;
    fn push_later(sql: Sql<Self>, now: Now, by: Amount) -> Sql<Self>;

    /// What begins and ends an INSERT that leaves out the rows whose `key` is there, and does not count them. It
    /// waits for the end of a transaction that is writing the same key.
    fn unless_there(key: &str) -> (&'static str, String);
    /// Whether such an INSERT has failed because a key is there, where the database cannot leave rows out without
    /// leaving out others too. The transaction goes on, and none of the statement's rows is written.
    fn is_there(_error: &dyn DatabaseError) -> bool {
        false
    }

    /// What an INSERT of receipts has after its table's name, and at its end: a key that is there is written anew
    /// if its verdict is `replaced`.
    fn or_replace(_table: &str, key: &str, replaced: &str) -> (&'static str, String) {
        let update = "verdict = excluded.verdict, claim_no = excluded.claim_no, reason = excluded.reason, \
             received_at = excluded.received_at";
        let end =
            format!(" WHERE true ON CONFLICT ({key}) DO UPDATE SET {update} WHERE r.verdict = '{replaced}'");
        (" AS r", end)
    }

    /// A condition after a column: it is one of these.
    fn push_among_ids(sql: Sql<Self>, ids: Vec<i64>) -> Sql<Self>;
    fn push_among_texts(sql: Sql<Self>, texts: Vec<String>) -> Sql<Self>;

    /// A table expression over a JSON array of objects with these members.
    fn push_json_rows(sql: Sql<Self>, rows: String, members: &[Member]) -> Sql<Self>;

    /// An UPDATE of the rows of `table`, which is `t`, for which there is one in `source`, which is `s`. What `set`
    /// assigns last is the only column that others may read: MySQL shows them what was assigned before.
    fn push_update(sql: Sql<Self>, table: &str, update: &Update<'_, Self>) -> Sql<Self> {
        let Update { set, source, condition } = update;
        let sql = set(sql.text(format!("UPDATE {table} AS t{} SET ", Self::BY_KEY)));
        source(sql.text(" FROM ")).text(format!(" WHERE {condition}"))
    }

    /// The rows of an INSERT, after its list of columns.
    fn push_new_rows(sql: Sql<Self>, rows: Vec<NewRow>, receipts: &str) -> Sql<Self> {
        crate::enqueue::push_values(sql, rows, receipts)
    }

    fn read_time(row: &Self::Row, column: usize) -> Option<Timestamp>;
    fn affected(result: &Self::QueryResult) -> u64;

    fn error_kind(error: &dyn DatabaseError) -> StoreErrorKind;
    /// What to do, where the kind alone does not say it.
    fn advice(_error: &dyn DatabaseError) -> Option<&'static str> {
        None
    }
    /// Whether a constraint, a trigger or a value of a row made the database refuse.
    fn blames_a_row(error: &dyn DatabaseError) -> bool;
    /// Whether a prepared statement no longer fits a table that has been altered.
    fn is_stale_plan(_error: &dyn DatabaseError) -> bool {
        false
    }
    /// The `msg_id` that a unique violation is about, where the database tells it.
    fn duplicate_id(error: &dyn DatabaseError) -> Option<String>;

    /// Creates or adopts the tables, inside `tx`.
    async fn migrate(tx: &mut Transaction<'static, Self>, names: &Names) -> Result<(), StoreError>;
    /// Creates what is missing of a table of keys and its index, inside `tx`.
    async fn migrate_keys(
        tx: &mut Transaction<'static, Self>,
        table: &TableName,
        layout: &Layout,
    ) -> Result<(), StoreError>;
}

/// The parts of an UPDATE of one table from another.
pub struct Update<'a, DB: Dialect> {
    pub(crate) set: &'a dyn Fn(Sql<DB>) -> Sql<DB>,
    pub(crate) source: &'a dyn Fn(Sql<DB>) -> Sql<DB>,
    pub(crate) condition: &'static str,
}

/// A member of a JSON object and its type.
#[derive(Debug, Clone, Copy)]
pub enum Member {
    Int(&'static str),
    Text(&'static str),
    Token(&'static str),
}
