//! How the databases run the store's statements while a small part of a large table is pending.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_core::{
    Claim, ClaimMode, ClaimRequest, ClaimToken, DedupKey, DedupToken, Outcome, RowId, Settlement,
};
use serde_json::json;
use sqlx::query_builder::QueryBuilder;
use sqlx::{Execute, IntoArguments, MySql, Pool, Postgres, Sqlite};

use crate::driver::{Read, Run};
use crate::sql::Sql;
use crate::store::SqlDatabase;
use crate::{SqlDedup, SqlInbox, SqlStore};

const SECOND: Duration = Duration::from_secs(1);

/// The statements that must not read the table from end to end, by name.
fn statements<DB: SqlDatabase>(store: &SqlStore<DB>) -> Vec<(&'static str, Sql<DB>)> {
    let (ids, token) = ([RowId(30_001), RowId(30_002)], ClaimToken::random());
    let claim = Claim { id: ids[0], token };
    let failed = Settlement { claim, outcome: Outcome::Failed { error: "x".to_owned() } };
    let (groups, msg_ids) = (BTreeSet::from(["a"]), BTreeSet::from(["m1", "m2"]));
    let change = json!({"id": 30_001, "new_status": 2, "received": 1, "error": null});
    vec![
        ("due", store.due(&request(ClaimMode::Ordinary { suspect_after: 3 }))),
        ("suspects", store.due(&request(ClaimMode::Suspects { suspect_after: 3 }))),
        ("prolong", store.prolong(&ids, token, SECOND)),
        ("held", store.held(&ids, token)),
        ("confirm", store.confirm_decided(&ids, token, &groups, SECOND)),
        ("undecided", store.undecided(&ids, token)),
        ("decide", store.decide(&ids, &groups)),
        ("release", store.release(&ids, token)),
        ("charge", store.charge(&[&failed])),
        ("rows_of", store.rows_of(&msg_ids)),
        ("handled", store.handled(&msg_ids)),
        ("write_states", store.write_states(&[change])),
        ("oldest_due", store.oldest_due()),
    ]
}

/// Those of the tables of keys, which are `{table}_inbox` and `{table}_dedup`.
fn key_statements<DB: SqlDatabase>(
    inbox: &SqlInbox<DB>,
    dedup: &SqlDedup<DB>,
) -> Vec<(&'static str, Sql<DB>)> {
    let (key, token) = (DedupKey::new("points", "m7"), DedupToken::random());
    let ids = (0..50).map(|n| format!("m{n}")).collect();
    vec![
        ("marker", inbox.marker(&key)),
        ("old", inbox.keys.old(SECOND, 100)),
        ("delete", inbox.keys.delete("points".to_owned(), ids)),
        ("take_over", dedup.take_over(&key, token, SECOND)),
        ("live", dedup.live(&key)),
        ("expired", dedup.keys.old(Duration::ZERO, 100)),
    ]
}

fn keyed<DB: SqlDatabase>(pool: &Pool<DB>, table: &str) -> (SqlInbox<DB>, SqlDedup<DB>) {
    let inbox = SqlInbox::new(pool.clone()).with_table(&format!("{table}_inbox")).unwrap();
    (inbox, SqlDedup::new(pool.clone()).with_table(&format!("{table}_dedup")).unwrap())
}

fn request(mode: ClaimMode) -> ClaimRequest {
    ClaimRequest { limit: 100, lease: SECOND, mode }
}

/// The plan, a line for each step.
async fn explain<DB>(pool: &Pool<DB>, prefix: &str, column: usize, sql: Sql<DB>) -> String
where
    DB: SqlDatabase,
    DB::Arguments: IntoArguments<DB>,
{
    let mut builder = sql.into_builder();
    let mut query = builder.build();
    let arguments = query.take_arguments().unwrap().unwrap();
    let text = format!("{prefix} {}", query.sql().as_str());
    let mut conn = pool.acquire().await.unwrap();
    let rows = DB::fetch(&mut conn, QueryBuilder::with_arguments(text, arguments)).await.unwrap();
    rows.iter().map(|row| <DB as Read>::text(row, column).unwrap()).collect::<Vec<_>>().join("\n")
}

async fn script<DB: SqlDatabase>(pool: &Pool<DB>, sql: &str) {
    DB::script(&mut *pool.acquire().await.unwrap(), sql.to_owned()).await.unwrap();
}

#[tokio::test]
async fn sqlite_finds_rows_by_index() {
    let pool = Pool::<Sqlite>::connect("sqlite::memory:").await.unwrap();
    let store = SqlStore::new(pool.clone());
    store.migrate().await.unwrap();
    script(
        &pool,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30200)
         INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload, status, required_groups)
         SELECT 'm' || i, 't', 'b', '1', CASE WHEN i > 30000 THEN 0 ELSE 2 END, '[]' FROM n",
    )
    .await;
    for analyzed in ["", "ANALYZE"] {
        script(&pool, analyzed).await;
        for (name, sql) in statements(&store) {
            let plan = explain(&pool, "EXPLAIN QUERY PLAN", 3, sql).await;
            assert!(!plan.contains("SCAN biz_outbox") && !plan.contains("SCAN t\n"), "{name}:\n{plan}");
            let by_due = matches!(name, "due" | "suspects" | "oldest_due");
            assert_eq!(plan.contains("biz_outbox_due"), by_due, "{name}:\n{plan}");
            assert!(!by_due || !plan.contains("B-TREE"), "{name}:\n{plan}");
        }
    }
}

#[tokio::test]
async fn sqlite_finds_keys_by_index() {
    let pool = Pool::<Sqlite>::connect("sqlite::memory:").await.unwrap();
    let (inbox, dedup) = keyed(&pool, "t");
    inbox.migrate().await.unwrap();
    dedup.migrate().await.unwrap();
    for (name, sql) in key_statements(&inbox, &dedup) {
        let plan = explain(&pool, "EXPLAIN QUERY PLAN", 3, sql).await;
        assert!(plan.contains("SEARCH t_") && !plan.contains("SCAN t_"), "{name}:\n{plan}");
        assert!(!plan.contains("B-TREE"), "{name}:\n{plan}");
    }
}

#[tokio::test]
#[ignore = "needs PostgreSQL: run scripts/test.sh"]
async fn postgres_finds_rows_by_index() {
    let table = format!("t_{}", &uuid::Uuid::new_v4().simple().to_string()[..20]);
    let url = std::env::var("OUTBOX_PG_URL").expect("OUTBOX_PG_URL names the PostgreSQL to test on");
    let pool = Pool::<Postgres>::connect(&url).await.unwrap();
    let checked = tokio::spawn({
        let (pool, table) = (pool.clone(), table.clone());
        async move {
            check_postgres(pool.clone(), table.clone()).await;
            check_keys_of_postgres(pool, table).await;
        }
    })
    .await;
    script(&pool, &format!("DROP TABLE IF EXISTS {table}, {table}_receipts, {table}_inbox, {table}_dedup"))
        .await;
    checked.unwrap();
}

/// With the article's index beside ours, which an adopted table keeps.
async fn check_postgres(pool: Pool<Postgres>, table: String) {
    let store = SqlStore::new(pool.clone()).with_table(&table).unwrap();
    store.migrate().await.unwrap();
    script(
        &pool,
        &format!(
            "CREATE INDEX ON {table} (status, next_retry_time);
             INSERT INTO {table} (msg_id, biz_type, biz_id, payload, status, required_groups)
             SELECT 'm' || i, 't', 'b', '1', CASE WHEN i > 30000 THEN 0 ELSE 2 END, '[]'
             FROM generate_series(1, 30200) AS i;
             INSERT INTO {table}_receipts SELECT 'm' || i, 'a', 1, 'handled' FROM generate_series(1, 30000) AS i;
             ANALYZE {table}, {table}_receipts"
        ),
    )
    .await;
    for pending in ["few", "all"] {
        for (name, sql) in statements(&store) {
            let plan = explain(&pool, "EXPLAIN", 0, sql).await;
            assert!(!plan.contains("Seq Scan"), "{name}, {pending} pending:\n{plan}");
            let by_due = plan.contains(&format!("{table}_due"));
            match name {
                "due" => assert!(by_due && !plan.contains("Sort"), "{name}, {pending} pending:\n{plan}"),
                // They read the head of the queue only, for which the article's index serves as well.
                "suspects" => {}
                "oldest_due" => assert!(!plan.contains("Sort"), "{name}, {pending} pending:\n{plan}"),
                _ => assert!(pending == "few" || !by_due, "{name}, {pending} pending:\n{plan}"),
            }
        }
        script(&pool, &format!("UPDATE {table} SET status = 0; ANALYZE {table}")).await;
    }
}

async fn check_keys_of_postgres(pool: Pool<Postgres>, table: String) {
    let (inbox, dedup) = keyed(&pool, &table);
    inbox.migrate().await.unwrap();
    dedup.migrate().await.unwrap();
    script(
        &pool,
        &format!(
            "INSERT INTO {table}_inbox SELECT 'points', 'm' || i, now() - i * interval '1 s' FROM generate_series(1, 30000) AS i;
             INSERT INTO {table}_dedup SELECT 'points', 'm' || i, NULL, now() - i * interval '1 s' FROM generate_series(1, 30000) AS i;
             ANALYZE {table}_inbox, {table}_dedup"
        ),
    )
    .await;
    for (name, sql) in key_statements(&inbox, &dedup) {
        let plan = explain(&pool, "EXPLAIN", 0, sql).await;
        assert!(!plan.contains("Seq Scan") && !plan.contains("Sort"), "{name}:\n{plan}");
    }
}

#[tokio::test]
#[ignore = "needs MariaDB or MySQL: run scripts/test.sh"]
async fn mysql_finds_rows_by_index() {
    let table = format!("t_{}", &uuid::Uuid::new_v4().simple().to_string()[..20]);
    let url =
        std::env::var("OUTBOX_MYSQL_URL").expect("OUTBOX_MYSQL_URL names the MariaDB or MySQL to test on");
    let pool = Pool::<MySql>::connect(&url).await.unwrap();
    let checked = tokio::spawn({
        let (pool, table) = (pool.clone(), table.clone());
        async move {
            check_mysql(pool.clone(), table.clone()).await;
            check_keys_of_mysql(pool, table).await;
        }
    })
    .await;
    script(&pool, &format!("DROP TABLE IF EXISTS {table}, {table}_receipts, {table}_inbox, {table}_dedup"))
        .await;
    checked.unwrap();
}

/// A step of a plan that reads a table of ours: how, and what it says beside it.
async fn steps(pool: &Pool<MySql>, table: &str, sql: Sql<MySql>) -> Vec<(String, String)> {
    let mut builder = sql.into_builder();
    let mut query = builder.build();
    let arguments = query.take_arguments().unwrap().unwrap();
    let text = format!("EXPLAIN {}", query.sql().as_str());
    let mut conn = pool.acquire().await.unwrap();
    let rows = MySql::fetch(&mut conn, QueryBuilder::with_arguments(text, arguments)).await.unwrap();
    let text = |row: &sqlx::mysql::MySqlRow, column: &str| -> String {
        sqlx::Row::try_get_unchecked::<Option<String>, _>(row, column).unwrap().unwrap_or_default()
    };
    let ours = |name: &str| ["t", "r"].contains(&name) || name.starts_with(table);
    // Of a row that was looked up by its key while planning, there is no step with a table.
    let looked_up = |extra: &str| extra.contains("const table");
    rows.iter()
        .filter(|row| ours(&text(row, "table")) || looked_up(&text(row, "Extra")))
        .map(|row| (text(row, "type"), format!("{} {}", text(row, "key"), text(row, "Extra"))))
        .collect()
}

const MYSQL_ROWS: &str = "WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 30200)";

/// With the article's index beside ours, which an adopted table keeps.
async fn check_mysql(pool: Pool<MySql>, table: String) {
    let store = SqlStore::new(pool.clone()).with_table(&table).unwrap();
    store.migrate().await.unwrap();
    script(
        &pool,
        &format!(
            "SET max_recursive_iterations = 100000;
             CREATE INDEX article ON {table} (status, next_retry_time);
             INSERT INTO {table} (msg_id, biz_type, biz_id, payload, status, required_groups)
             {MYSQL_ROWS} SELECT CONCAT('m', i), 't', 'b', '1', CASE WHEN i > 30000 THEN 0 ELSE 2 END, '[]' FROM n;
             INSERT INTO {table}_receipts (msg_id, consumer_group, claim_no, verdict)
             {MYSQL_ROWS} SELECT CONCAT('m', i), 'a', 1, 'handled' FROM n;
             ANALYZE TABLE {table}, {table}_receipts"
        ),
    )
    .await;
    for pending in ["few", "all"] {
        for (name, sql) in statements(&store) {
            let steps = steps(&pool, &table, sql).await;
            assert!(!steps.is_empty(), "{name}");
            for (how, with) in &steps {
                assert!(!["ALL", "index"].contains(&how.as_str()), "{name}, {pending} pending: {steps:?}");
                let by_due = with.contains(&format!("{table}_due"));
                assert_eq!(by_due, matches!(name, "due" | "suspects" | "oldest_due"), "{name}: {steps:?}");
                assert!(!by_due || !with.contains("filesort"), "{name}, {pending} pending: {steps:?}");
            }
        }
        script(&pool, &format!("UPDATE {table} SET status = 0; ANALYZE TABLE {table}")).await;
    }
}

async fn check_keys_of_mysql(pool: Pool<MySql>, table: String) {
    let (inbox, dedup) = keyed(&pool, &table);
    inbox.migrate().await.unwrap();
    dedup.migrate().await.unwrap();
    let ago = "UTC_TIMESTAMP(6) - INTERVAL i SECOND";
    script(
        &pool,
        &format!(
            "SET max_recursive_iterations = 100000;
             INSERT INTO {table}_inbox {MYSQL_ROWS} SELECT 'points', CONCAT('m', i), {ago} FROM n;
             INSERT INTO {table}_dedup {MYSQL_ROWS} SELECT 'points', CONCAT('m', i), NULL, {ago} FROM n;
             ANALYZE TABLE {table}_inbox, {table}_dedup"
        ),
    )
    .await;
    for (name, sql) in key_statements(&inbox, &dedup) {
        let steps = steps(&pool, &table, sql).await;
        let bad = |(how, with): &(String, String)| how == "ALL" || with.contains("filesort");
        assert!(!steps.is_empty() && !steps.iter().any(bad), "{name}: {steps:?}");
    }
}
