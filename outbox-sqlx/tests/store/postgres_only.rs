//! What only a server can do to a store: time zones, isolation levels, poolers, deadlocks, restarts.

use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use outbox_core::{Enqueue, OutboxStore, Settled, Status, StoreErrorKind};
use outbox_sqlx::PgStore;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection, PgPool, Postgres};

use crate::harness::{
    Env, TestDb, claim_until_empty, confirmed, ids, message, messages, postgres_url, request, retry, row,
    settle, until,
};
use crate::on_postgres;

on_postgres!(
    a_process_that_only_enqueues_follows_the_servers_clock_too,
    refused_logins_say_what_to_check,
    a_closed_pool_and_an_idle_timeout_are_reported_as_unavailable,
    session_time_zone_does_not_matter,
    server_an_hour_ahead_of_this_host_decides,
    repeatable_read_as_the_default_does_not_fail_claims,
    without_prepared_statements,
    a_table_in_a_schema,
    a_deadlock_is_retried_inside,
    a_killed_connection_is_reported_as_unavailable,
    two_indexes_of_the_same_name_in_two_schemas,
    a_column_altered_under_a_running_store_stops_nothing,
    a_row_too_large_to_be_read_fails_and_stops_nobody,
    dropped_calls_leave_no_transaction_open,
);

pub(crate) fn options() -> PgConnectOptions {
    postgres_url().parse().unwrap()
}

/// A store on the test's table over other connections.
async fn over(env: &Env<Postgres>, options: PgConnectOptions) -> PgStore {
    let pool = PgPoolOptions::new().max_connections(4).connect_with(options).await.unwrap();
    PgStore::new(pool).with_table(&env.table).unwrap()
}

async fn after(env: &Env<Postgres>, setup: String) -> PgStore {
    PgStore::new(pool_after(setup).await).with_table(&env.table).unwrap()
}

/// Each connection begins with `setup`.
pub(crate) async fn pool_after(setup: String) -> PgPool {
    let pool = PgPoolOptions::new().max_connections(4).after_connect(move |conn, _| {
        let setup = setup.clone();
        Box::pin(async move { conn.execute(sqlx::AssertSqlSafe(setup)).await.map(|_| ()) })
    });
    pool.connect_with(options()).await.unwrap()
}

async fn begin(store: &PgStore) -> sqlx::Transaction<'static, Postgres> {
    store.pool().begin().await.unwrap()
}

async fn enqueue(store: &PgStore, id: &str) {
    let mut tx = begin(store).await;
    store.enqueue(&mut tx, &[message(id)]).await.unwrap();
    tx.commit().await.unwrap();
}

/// Enqueue, claim, retry, claim again, confirm: nothing may be due too early or too late.
async fn whole_life(store: &PgStore, id: &str) {
    enqueue(store, id).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    assert_eq!(ids(&claimed), [id]);
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
    let lease = row(store, id).await.lease_until.unwrap() - store.clock().now();
    assert!((lease - TimeDelta::seconds(30)).abs() < TimeDelta::seconds(10), "{lease}");
    settle(store, &claimed, &retry("no")).await;
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
    let wait = row(store, id).await.next_retry_time - store.clock().now();
    assert!((wait - TimeDelta::seconds(60)).abs() < TimeDelta::seconds(10), "{wait}");
    let due = format!("UPDATE {{t}} SET next_retry_time = now() WHERE msg_id = '{id}'");
    store.pool().execute(sqlx::AssertSqlSafe(due.replace("{t}", &table_of(store)))).await.unwrap();
    let claimed = store.claim(&request(9)).await.unwrap();
    assert_eq!(settle(store, &claimed, &confirmed(&[])).await, Settled { applied: 1, lost: 0 });
    let row = row(store, id).await;
    let age = store.clock().now() - row.sent_at.unwrap();
    assert!(row.status == Status::Completed && age.abs() < TimeDelta::seconds(10), "{age}");
}

/// From the store's `Debug`, which prints it quoted and escaped.
fn table_of(store: &PgStore) -> String {
    let debug = format!("{store:?}");
    let (_, table) = debug.split_once("table: \"").unwrap();
    table.trim_end_matches("\" }").replace('\\', "")
}

async fn session_time_zone_does_not_matter(env: Env<Postgres>) {
    let east = after(&env, "SET TIME ZONE 'Pacific/Kiritimati'".to_owned()).await;
    let west = after(&env, "SET TIME ZONE 'America/St_Johns'".to_owned()).await;
    east.migrate().await.unwrap();
    whole_life(&east, "east").await;
    whole_life(&west, "west").await;
    let insert =
        format!("INSERT INTO {} (msg_id, biz_type, biz_id, payload) VALUES ('x', 'a', 'b', '1')", env.table);
    west.pool().execute(sqlx::AssertSqlSafe(insert)).await.unwrap();
    let claimed = east.claim(&request(9)).await.unwrap();
    assert_eq!(ids(&claimed), ["x"]);
    let age = Utc::now() - claimed[0].message.created_at().unwrap();
    assert!(age.abs() < TimeDelta::minutes(1), "{age}");
    east.pool().close().await;
    west.pool().close().await;
}

/// The server's clock is moved by functions that are found before the built-in ones.
pub(crate) async fn shift_the_server(env: &Env<Postgres>, schema: &str, by: &str) {
    let shifted = |name: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION {schema}.{name}() RETURNS timestamptz STABLE LANGUAGE sql
             AS $$ SELECT pg_catalog.{name}() + interval '{by}' $$;"
        )
    };
    env.exec(&format!(
        "CREATE SCHEMA IF NOT EXISTS {schema}; {} {}",
        shifted("now"),
        shifted("statement_timestamp")
    ))
    .await
    .unwrap();
}

async fn server_an_hour_ahead_of_this_host_decides(env: Env<Postgres>) {
    let schema = format!("{}_ahead", env.table);
    shift_the_server(&env, &schema, "1 hour").await;
    let path = format!("SET search_path = {schema}, pg_catalog, public");
    let store = after(&env, path).await.with_table(&format!("public.{}", env.table)).unwrap();
    store.migrate().await.unwrap();
    whole_life(&store, "m").await;
    let ahead = store.clock().now() - Utc::now();
    assert!((ahead - TimeDelta::hours(1)).abs() < TimeDelta::minutes(1), "{ahead}");
    let written: Option<DateTime<Utc>> = row(&store, "m").await.message.created_at();
    assert!(written.unwrap() - Utc::now() > TimeDelta::minutes(59));
    store.pool().close().await;
    env.exec(&format!("DROP TABLE {{t}}, {{t}}_receipts; DROP SCHEMA {schema} CASCADE")).await.unwrap();
}

/// It asks once: a later enqueue costs no query more.
async fn a_process_that_only_enqueues_follows_the_servers_clock_too(env: Env<Postgres>) {
    env.migrated().await;
    let schema = format!("{}_ahead", env.table);
    shift_the_server(&env, &schema, "1 hour").await;
    let path = format!("SET search_path = {schema}, pg_catalog, public");
    let store = after(&env, path).await;
    for id in ["first", "second"] {
        enqueue(&store, id).await;
        let ahead = store.clock().now() - Utc::now();
        assert!((ahead - TimeDelta::hours(1)).abs() < TimeDelta::minutes(1), "{ahead}");
        shift_the_server(&env, &schema, "5 hours").await;
    }
    store.pool().close().await;
    env.exec(&format!("DROP TABLE {{t}}, {{t}}_receipts; DROP SCHEMA {schema} CASCADE")).await.unwrap();
}

async fn refused_logins_say_what_to_check(env: Env<Postgres>) {
    for options in [options().database(&env.table), options().username(&env.table)] {
        let store = PgStore::new(PgPoolOptions::new().connect_lazy_with(options));
        let error = store.claim(&request(1)).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
        assert!(error.to_string().contains("check user, password"), "{error:?}");
    }
}

async fn a_closed_pool_and_an_idle_timeout_are_reported_as_unavailable(env: Env<Postgres>) {
    env.migrated().await;
    let store = over(&env, options()).await;
    let mut tx = begin(&store).await;
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
    tx.execute("SET idle_in_transaction_session_timeout = '10ms'").await.unwrap();
    let gone = format!("SELECT count(*)::text FROM pg_stat_activity WHERE pid = {pid}");
    until(|| async { env.text(&gone).await.as_deref() == Some("0") }).await;
    let error = store.enqueue(&mut tx, &messages(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    drop(tx);
    store.pool().close().await;
    let error = store.claim(&request(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("closed the pool"), "{error:?}");
}

async fn repeatable_read_as_the_default_does_not_fail_claims(env: Env<Postgres>) {
    for level in ["repeatable read", "serializable"] {
        let store = over(&env, options().options([("default_transaction_isolation", level)])).await;
        store.migrate().await.unwrap();
        let batch: Vec<_> = (0..200).map(|n| message(&format!("{level}{n}"))).collect();
        let mut tx = begin(&store).await;
        store.enqueue(&mut tx, &batch).await.unwrap();
        tx.commit().await.unwrap();
        let claimers: Vec<_> = (0..4).map(|_| tokio::spawn(claim_until_empty(store.clone(), 7))).collect();
        let mut taken = 0;
        for claimer in claimers {
            taken += claimer.await.unwrap().len();
        }
        taken += claim_until_empty(store.clone(), 200).await.len();
        assert_eq!(taken, 200);
        store.pool().close().await;
    }
}

/// As behind a pooler in transaction mode.
async fn without_prepared_statements(env: Env<Postgres>) {
    let store = over(&env, options().statement_cache_capacity(0)).await;
    store.migrate().await.unwrap();
    whole_life(&store, "m").await;
    store.migrate().await.unwrap();
    whole_life(&store, "n").await;
    store.pool().close().await;
}

async fn a_table_in_a_schema(env: Env<Postgres>) {
    let schema = format!("{}_Shop", env.table);
    env.exec(&format!("CREATE SCHEMA \"{schema}\"")).await.unwrap();
    let store = env.real_time_store().with_table(&format!("{schema}.Order")).unwrap();
    store.migrate().await.unwrap();
    store.migrate().await.unwrap();
    whole_life(&store, "m").await;
    env.exec(&format!("DROP SCHEMA \"{schema}\" CASCADE")).await.unwrap();
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
}

async fn two_indexes_of_the_same_name_in_two_schemas(env: Env<Postgres>) {
    env.migrated().await;
    let schema = format!("{}_b", env.table);
    env.exec(&format!("CREATE SCHEMA {schema}")).await.unwrap();
    let store = env.real_time_store().with_table(&format!("{schema}.{}", env.table)).unwrap();
    store.migrate().await.unwrap();
    let indexes = format!("SELECT count(*)::text FROM pg_indexes WHERE schemaname = '{schema}'");
    let count = env.text(&indexes).await;
    env.exec(&format!("DROP SCHEMA {schema} CASCADE")).await.unwrap();
    assert_eq!(count.as_deref(), Some("6"));
}

async fn a_deadlock_is_retried_inside(env: Env<Postgres>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(2)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    let lock = |id: &str| format!("SELECT 1 FROM {} WHERE msg_id = '{id}' FOR UPDATE", env.table);

    let mut rival = PgConnection::connect(&postgres_url()).await.unwrap();
    // Long, so that the store is the victim.
    rival.execute("SET deadlock_timeout = '60s'").await.unwrap();
    rival.execute("BEGIN").await.unwrap();
    rival.execute(sqlx::AssertSqlSafe(lock("m1"))).await.unwrap();
    let relay = tokio::spawn({
        let (store, claimed) = (store.clone(), claimed.clone());
        async move { settle(&store, &claimed, &confirmed(&[])).await }
    });
    let waiting = format!(
        "SELECT count(*)::text FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'UPDATE \"{}\"%'",
        env.table
    );
    until(|| async { env.text(&waiting).await.as_deref() == Some("1") }).await;
    let asked = Instant::now();
    rival.execute(sqlx::AssertSqlSafe(lock("m0"))).await.unwrap();
    assert!(asked.elapsed() > Duration::from_millis(200), "nobody held the other row: this was no deadlock");
    rival.execute("COMMIT").await.unwrap();
    rival.close().await.unwrap();
    assert_eq!(relay.await.unwrap(), Settled { applied: 2, lost: 0 });
}

async fn a_killed_connection_is_reported_as_unavailable(env: Env<Postgres>) {
    env.migrated().await;
    let name = format!("killed {}", env.table);
    let store = over(&env, options().application_name(&name)).await.with_clock(env.clock.clone());
    env.commit(&store, &messages(1)).await;
    let blocker = lock_table(&env).await;
    let claim = tokio::spawn({
        let store = store.clone();
        async move { store.claim(&request(9)).await }
    });
    let kill = format!(
        "SELECT pg_terminate_backend(pid)::text FROM pg_stat_activity \
         WHERE application_name = '{name}' AND wait_event_type = 'Lock'"
    );
    until(|| async { env.text(&kill).await.as_deref() == Some("true") }).await;
    let error = claim.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    blocker.rollback().await.unwrap();
    assert_eq!(store.claim(&request(9)).await.unwrap().len(), 1);
    store.pool().close().await;
}

async fn lock_table(env: &Env<Postgres>) -> sqlx::Transaction<'static, Postgres> {
    let mut tx = env.begin().await;
    tx.execute(sqlx::AssertSqlSafe(format!("LOCK TABLE {}", env.table))).await.unwrap();
    tx
}

#[tokio::test]
async fn postgres_that_is_not_there_is_unavailable() {
    let options = PgPoolOptions::new().acquire_timeout(Duration::from_millis(300));
    let pool = options.connect_lazy("postgres://nobody@127.0.0.1:1/nothing").unwrap();
    let error = PgStore::new(pool).claim(&request(1)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.is_transient());
}

/// A database of its own, whose defaults are as bad as they can be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run scripts/test.sh"]
async fn postgres_time_zone_of_the_database_is_that_of_adopted_rows() {
    let name = format!("outbox_{}", &uuid::Uuid::new_v4().simple().to_string()[..12]);
    let mut admin = PgConnection::connect(&postgres_url()).await.unwrap();
    let create = format!("CREATE DATABASE {name}");
    admin.execute(sqlx::AssertSqlSafe(create)).await.unwrap();
    let setup = format!(
        "ALTER DATABASE {name} SET timezone = 'Asia/Shanghai';
         ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"
    );
    admin.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(setup))).await.unwrap();
    let pool = PgPool::connect_with(options().database(&name)).await.unwrap();
    let outcome = tokio::spawn(adopt_shanghai(pool.clone())).await;
    pool.close().await;
    admin.execute(sqlx::AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await.unwrap();
    if let Err(error) = outcome {
        resume_unwind(error.into_panic());
    }
}

async fn adopt_shanghai(pool: PgPool) {
    let mut old = pool.acquire().await.unwrap().detach();
    let rows = format!(
        "SET TIME ZONE 'Asia/Shanghai'; {}
         INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload) VALUES ('new', 'a', 'b', '1');
         INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload, next_retry_time)
            VALUES ('waiting', 'a', 'b', '1', now() + interval '5 minutes')",
        Postgres::article_table("biz_outbox")
    );
    old.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(rows))).await.unwrap();
    let store = PgStore::new(pool);
    store.migrate().await.unwrap();
    let claimed = store.claim(&request(9)).await.unwrap();
    assert_eq!(ids(&claimed), ["new", "waiting"]);
    for c in &claimed {
        let age = Utc::now() - c.message.created_at().unwrap();
        assert!(age.abs() < TimeDelta::minutes(1), "{age}");
    }
    // The old writer goes on, on a connection from before.
    let insert = "INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload) VALUES ('old', 'a', 'b', '1')";
    old.execute(insert).await.unwrap();
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["old"]);
}

/// As a later version's migration does while this version runs.
async fn a_column_altered_under_a_running_store_stops_nothing(env: Env<Postgres>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(3)).await;
    assert_eq!(ids(&store.claim(&request(1)).await.unwrap()), ["m0"]);
    for (next, width) in [("m1", 300), ("m2", 400)] {
        env.exec(&format!("ALTER TABLE {{t}} ALTER COLUMN biz_id TYPE varchar({width})")).await.unwrap();
        assert_eq!(ids(&store.claim(&request(1)).await.unwrap()), [next]);
    }
}

/// A number takes few bytes in JSONB and many in the text that is sent; this one's text is longer than PostgreSQL can
/// make any.
async fn a_row_too_large_to_be_read_fails_and_stops_nobody(env: Env<Postgres>) {
    let store = env.migrated().await;
    env.exec(
        "INSERT INTO {t} (msg_id, biz_type, biz_id, next_retry_time, payload)
         SELECT 'huge', 't', '1', '2026-01-01', ('[' || string_agg('1e131000', ',') || ']')::jsonb FROM generate_series(1, 9000)",
    )
    .await
    .unwrap();
    env.commit(&store, &messages(1)).await;
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["m0"]);
    let failed = env.text("SELECT status || last_error FROM {t} WHERE msg_id = 'huge'").await.unwrap();
    assert!(failed.starts_with('9') && failed.contains("54000"), "{failed}");
}

/// What the application then wrote outside of a transaction would be in the open one, and be lost with it.
async fn dropped_calls_leave_no_transaction_open(env: Env<Postgres>) {
    let pool = PgPoolOptions::new().max_connections(1).connect_with(options()).await.unwrap();
    let store = PgStore::new(pool.clone()).with_table(&env.table).unwrap();
    store.migrate().await.unwrap();
    for micros in (0..3_000).step_by(10) {
        let _ = tokio::time::timeout(Duration::from_micros(micros), store.claim(&request(1))).await;
        let refused = sqlx::raw_sql("SAVEPOINT s").execute(&mut *pool.acquire().await.unwrap()).await;
        assert!(refused.is_err(), "a claim dropped after {micros} µs left its transaction open");
    }
}
