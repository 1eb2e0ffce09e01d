//! A fresh table in a real database for each test, dropped at its end.

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{TimeZone, Utc};
use outbox_core::{
    ClaimMode, ClaimRequest, Claimed, Enqueue, Filter, ManualClock, Message, OutboxStore, Outcome, Row,
    RowId, Settled, Settlement,
};
use outbox_sqlx::{SqlDatabase, SqlStore};
use sqlx::mysql::MySqlPoolOptions;
use sqlx::postgres::PgPoolOptions;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions};
use sqlx::{
    AssertSqlSafe, ColumnIndex, Database, Decode, Executor, IntoArguments, MySql, Pool, Postgres, Row as _,
    Sqlite, Transaction,
};

/// A database to test on.
#[async_trait]
pub(crate) trait TestDb: SqlDatabase {
    /// Whether one transaction can write while another one that has written is open.
    const CONCURRENT_WRITERS: bool;

    /// Gives room for a table of that name.
    async fn connect(table: &str) -> Pool<Self>;
    async fn clean(pool: &Pool<Self>, table: &str);
    async fn exec(pool: &Pool<Self>, sql: &str) -> Result<(), sqlx::Error>;
    async fn exec_on(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error>;
    /// The rows of a query whose columns are text.
    async fn texts(pool: &Pool<Self>, sql: &str) -> Vec<Option<String>>;
    /// The sessions that wait for a lock in a statement which begins so; none where the database does not tell.
    async fn waiting(pool: &Pool<Self>, statement: &str) -> Vec<String>;
    /// The article's table, as it would be written for this database.
    fn article_table(table: &str) -> String;
}

/// The name of a table that no other test uses.
pub(crate) fn table_name() -> String {
    format!("t_{}", &uuid::Uuid::new_v4().simple().to_string()[..20])
}

/// One test's store and what it stands on.
#[derive(Debug)]
pub(crate) struct Env<DB: Database> {
    pub(crate) pool: Pool<DB>,
    pub(crate) table: String,
    pub(crate) clock: ManualClock,
}

impl<DB: TestDb> Env<DB> {
    async fn new() -> Self {
        let table = table_name();
        let clock = ManualClock::new(Utc.with_ymd_and_hms(2026, 3, 29, 0, 59, 58).unwrap());
        Self { pool: DB::connect(&table).await, table, clock }
    }

    /// A store on the test's table that follows the test's clock.
    pub(crate) fn store(&self) -> SqlStore<DB> {
        self.real_time_store().with_clock(self.clock.clone())
    }

    /// A store on the test's table that follows the database's clock.
    pub(crate) fn real_time_store(&self) -> SqlStore<DB> {
        SqlStore::new(self.pool.clone()).with_table(&self.table).unwrap()
    }

    pub(crate) async fn migrated(&self) -> SqlStore<DB> {
        let store = self.store();
        store.migrate().await.unwrap();
        store
    }

    pub(crate) async fn begin(&self) -> Transaction<'static, DB> {
        self.pool.begin().await.unwrap()
    }

    /// Runs SQL in which `{t}` is the table.
    pub(crate) async fn exec(&self, sql: &str) -> Result<(), sqlx::Error> {
        DB::exec(&self.pool, &sql.replace("{t}", &self.table)).await
    }

    /// The same, in a transaction.
    pub(crate) async fn exec_on(&self, tx: &mut DB::Connection, sql: &str) -> Result<(), sqlx::Error> {
        DB::exec_on(tx, &sql.replace("{t}", &self.table)).await
    }

    pub(crate) async fn texts(&self, sql: &str) -> Vec<Option<String>> {
        DB::texts(&self.pool, &sql.replace("{t}", &self.table)).await
    }

    pub(crate) async fn text(&self, sql: &str) -> Option<String> {
        self.texts(sql).await.into_iter().next().flatten()
    }

    /// How many rows of a table fit `condition`.
    pub(crate) async fn count(&self, table: &str, condition: &str) -> usize {
        let sql = format!("SELECT CAST(count(*) AS TEXT) FROM {table} WHERE {condition}");
        self.text(&sql).await.unwrap().parse().unwrap()
    }

    /// Enqueues in a transaction of its own.
    pub(crate) async fn commit(&self, store: &SqlStore<DB>, messages: &[Message]) {
        let mut tx = self.begin().await;
        store.enqueue(&mut tx, messages).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// Runs `body`, then drops its table whatever became of it.
pub(crate) async fn run<DB: TestDb, F>(body: fn(Env<DB>) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let env = Env::<DB>::new().await;
    let (pool, table) = (env.pool.clone(), env.table.clone());
    let outcome = tokio::spawn(body(env)).await;
    DB::clean(&pool, &table).await;
    if let Err(error) = outcome {
        resume_unwind(error.into_panic());
    }
}

pub(crate) async fn until<F: Future<Output = bool>>(condition: impl Fn() -> F) {
    for _ in 0..600 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the condition never came true");
}

pub(crate) fn message(msg_id: &str) -> Message {
    Message::json("order.created", "A-1", &serde_json::json!({"n": 1})).unwrap().with_msg_id(msg_id).unwrap()
}

pub(crate) fn messages(count: usize) -> Vec<Message> {
    (0..count).map(|n| message(&format!("m{n}"))).collect()
}

pub(crate) const LEASE: Duration = Duration::from_secs(30);

pub(crate) fn request(limit: usize) -> ClaimRequest {
    ClaimRequest { limit, lease: LEASE, mode: ClaimMode::Ordinary { suspect_after: 3 } }
}

pub(crate) fn confirmed(groups: &[&str]) -> Outcome {
    Outcome::Confirmed {
        required_groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ack_timeout: Duration::from_secs(3600),
    }
}

pub(crate) fn retry(error: &str) -> Outcome {
    Outcome::Retry { delay: Duration::from_secs(60), max_attempts: 5, error: error.to_owned() }
}

pub(crate) fn failed(error: &str) -> Outcome {
    Outcome::Failed { error: error.to_owned() }
}

pub(crate) async fn settle<S: OutboxStore>(store: &S, claimed: &[Claimed], outcome: &Outcome) -> Settled {
    let settlement = |c: &Claimed| Settlement { claim: c.claim, outcome: outcome.clone() };
    store.settle(&claimed.iter().map(settlement).collect::<Vec<_>>()).await.unwrap()
}

pub(crate) async fn row<S: OutboxStore>(store: &S, msg_id: &str) -> Row {
    let rows = store.find(&Filter::default().with_msg_id(msg_id)).await.unwrap();
    assert_eq!(rows.len(), 1, "rows of {msg_id}");
    rows.into_iter().next().unwrap()
}

/// Claims batch after batch until nothing is left.
pub(crate) async fn claim_until_empty<S: OutboxStore>(store: S, batch: usize) -> Vec<RowId> {
    let mut taken = Vec::new();
    loop {
        let claimed = store.claim(&request(batch)).await.unwrap();
        if claimed.is_empty() {
            return taken;
        }
        taken.extend(claimed.into_iter().map(|c| c.claim.id));
    }
}

pub(crate) fn ids(claimed: &[Claimed]) -> Vec<&str> {
    claimed.iter().map(|c| c.message.msg_id()).collect()
}

pub(crate) fn postgres_url() -> String {
    std::env::var("OUTBOX_PG_URL")
        .expect("OUTBOX_PG_URL names the PostgreSQL to test on; scripts/test.sh sets it")
}

pub(crate) fn mysql_url() -> String {
    std::env::var("OUTBOX_MYSQL_URL")
        .expect("OUTBOX_MYSQL_URL names the MariaDB or MySQL to test on; scripts/test.sh sets it")
}

pub(crate) fn sqlite_file(table: &str) -> PathBuf {
    std::env::temp_dir().join(format!("outbox-{table}.db"))
}

pub(crate) fn sqlite_options(path: &Path) -> SqliteConnectOptions {
    let options = SqliteConnectOptions::new().filename(path).create_if_missing(true);
    options.journal_mode(SqliteJournalMode::Wal).busy_timeout(Duration::from_secs(20))
}

async fn exec_raw<DB: Database>(conn: &mut DB::Connection, sql: &str) -> Result<(), sqlx::Error>
where
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(|_| ())
}

async fn fetch_texts<DB: Database>(pool: &Pool<DB>, sql: &str) -> Vec<Option<String>>
where
    DB::Arguments: IntoArguments<DB>,
    usize: ColumnIndex<DB::Row>,
    for<'r> String: Decode<'r, DB>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    let mut conn = pool.acquire().await.unwrap();
    let rows = sqlx::query(AssertSqlSafe(sql)).fetch_all(&mut *conn).await.unwrap();
    rows.iter().map(|row| row.get_unchecked(0)).collect()
}

#[async_trait]
impl TestDb for Postgres {
    const CONCURRENT_WRITERS: bool = true;

    async fn connect(_table: &str) -> Pool<Self> {
        PgPoolOptions::new().max_connections(10).connect(&postgres_url()).await.unwrap()
    }

    async fn clean(pool: &Pool<Self>, table: &str) {
        let sql = format!(
            "DROP TABLE IF EXISTS {table}, {table}_receipts, {table}_inbox, {table}_dedup, {table}_effects CASCADE"
        );
        Self::exec(pool, &sql).await.unwrap();
    }

    async fn exec(pool: &Pool<Self>, sql: &str) -> Result<(), sqlx::Error> {
        Self::exec_on(&mut *pool.acquire().await?, sql).await
    }

    async fn exec_on(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error> {
        exec_raw::<Self>(conn, sql).await
    }

    async fn texts(pool: &Pool<Self>, sql: &str) -> Vec<Option<String>> {
        fetch_texts(pool, sql).await
    }

    async fn waiting(pool: &Pool<Self>, statement: &str) -> Vec<String> {
        let sessions = "SELECT pid::text FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
        let pids = Self::texts(pool, &format!("{sessions} AND starts_with(query, '{statement}')")).await;
        pids.into_iter().flatten().collect()
    }

    fn article_table(table: &str) -> String {
        format!(
            "CREATE TABLE {table} (
                id             BIGSERIAL PRIMARY KEY,
                msg_id         VARCHAR(64)  NOT NULL UNIQUE,
                biz_type       VARCHAR(32)  NOT NULL,
                biz_id         VARCHAR(64)  NOT NULL,
                payload        JSONB        NOT NULL,
                status         SMALLINT     NOT NULL DEFAULT 0,
                retry_count    INT          NOT NULL DEFAULT 0,
                next_retry_time TIMESTAMP   NOT NULL DEFAULT now(),
                created_at     TIMESTAMP    NOT NULL DEFAULT now(),
                sent_at        TIMESTAMP
            );
            CREATE INDEX {table}_status_time ON {table} (status, next_retry_time);"
        )
    }
}

/// The session's, which stands in its transaction's description.
fn thread_id(transaction: &str) -> Option<String> {
    let (_, rest) = transaction.split_once("thread id ")?;
    Some(rest.split(',').next()?.to_owned())
}

#[async_trait]
impl TestDb for MySql {
    const CONCURRENT_WRITERS: bool = true;

    async fn connect(_table: &str) -> Pool<Self> {
        MySqlPoolOptions::new().max_connections(10).connect(&mysql_url()).await.unwrap()
    }

    async fn clean(pool: &Pool<Self>, table: &str) {
        let sql = format!(
            "DROP TABLE IF EXISTS {table}, {table}_receipts, {table}_inbox, {table}_dedup, {table}_effects"
        );
        Self::exec(pool, &sql).await.unwrap();
    }

    async fn exec(pool: &Pool<Self>, sql: &str) -> Result<(), sqlx::Error> {
        Self::exec_on(&mut *pool.acquire().await?, sql).await
    }

    async fn exec_on(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error> {
        exec_raw::<Self>(conn, sql).await
    }

    async fn texts(pool: &Pool<Self>, sql: &str) -> Vec<Option<String>> {
        fetch_texts(pool, &sql.replace(" AS TEXT)", " AS CHAR)")).await
    }

    /// Not by `information_schema.innodb_trx`: that is renewed only when nobody has looked at it for 100 ms.
    async fn waiting(pool: &Pool<Self>, statement: &str) -> Vec<String> {
        let mut conn = pool.acquire().await.unwrap();
        let status = sqlx::raw_sql("SHOW ENGINE INNODB STATUS").fetch_one(&mut *conn).await.unwrap();
        let status: String = status.get_unchecked(2);
        let waits = |transaction: &&str| transaction.contains("LOCK WAIT") && transaction.contains(statement);
        status.split("---TRANSACTION ").filter(waits).filter_map(thread_id).collect()
    }

    fn article_table(table: &str) -> String {
        format!(
            "CREATE TABLE {table} (
                id             BIGINT PRIMARY KEY AUTO_INCREMENT,
                msg_id         VARCHAR(64)  NOT NULL UNIQUE,
                biz_type       VARCHAR(32)  NOT NULL,
                biz_id         VARCHAR(64)  NOT NULL,
                payload        JSON         NOT NULL,
                status         SMALLINT     NOT NULL DEFAULT 0,
                retry_count    INT          NOT NULL DEFAULT 0,
                next_retry_time TIMESTAMP   NOT NULL DEFAULT CURRENT_TIMESTAMP,
                created_at     DATETIME     NOT NULL DEFAULT CURRENT_TIMESTAMP,
                sent_at        TIMESTAMP    NULL
            );
            CREATE INDEX {table}_status_time ON {table} (status, next_retry_time);"
        )
    }
}

#[async_trait]
impl TestDb for Sqlite {
    const CONCURRENT_WRITERS: bool = false;

    async fn connect(table: &str) -> Pool<Self> {
        let options = SqlitePoolOptions::new().max_connections(10);
        options.connect_with(sqlite_options(&sqlite_file(table))).await.unwrap()
    }

    async fn clean(pool: &Pool<Self>, table: &str) {
        pool.close().await;
        for suffix in ["", "-wal", "-shm"] {
            let mut file = sqlite_file(table).into_os_string();
            file.push(suffix);
            let _ = std::fs::remove_file(file);
        }
    }

    async fn exec(pool: &Pool<Self>, sql: &str) -> Result<(), sqlx::Error> {
        Self::exec_on(&mut *pool.acquire().await?, sql).await
    }

    async fn exec_on(conn: &mut Self::Connection, sql: &str) -> Result<(), sqlx::Error> {
        exec_raw::<Self>(conn, sql).await
    }

    async fn texts(pool: &Pool<Self>, sql: &str) -> Vec<Option<String>> {
        fetch_texts(pool, sql).await
    }

    async fn waiting(_: &Pool<Self>, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn article_table(table: &str) -> String {
        format!(
            "CREATE TABLE {table} (
                id             INTEGER PRIMARY KEY,
                msg_id         VARCHAR(64)  NOT NULL UNIQUE,
                biz_type       VARCHAR(32)  NOT NULL,
                biz_id         VARCHAR(64)  NOT NULL,
                payload        JSON         NOT NULL,
                status         SMALLINT     NOT NULL DEFAULT 0,
                retry_count    INT          NOT NULL DEFAULT 0,
                next_retry_time TIMESTAMP   NOT NULL DEFAULT CURRENT_TIMESTAMP,
                created_at     TIMESTAMP    NOT NULL DEFAULT CURRENT_TIMESTAMP,
                sent_at        TIMESTAMP
            );
            CREATE INDEX {table}_status_time ON {table} (status, next_retry_time);"
        )
    }
}
