//! What is peculiar to MariaDB and MySQL: their sessions, their locks, their collations, their tables.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use outbox_core::{
    Enqueue, Message, OutboxStore, Policies, Policy, Receipt, Settled, Status, StoreErrorKind,
};
use outbox_sqlx::{MySqlInbox, MySqlStore};
use sqlx::mysql::{MySqlConnectOptions, MySqlPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, MySql, MySqlConnection};

use crate::harness::{
    Env, TestDb, claim_until_empty, confirmed, ids, message, messages, mysql_url, request, retry, row,
    settle, until,
};
use crate::on_mysql;

on_mysql!(
    a_session_in_any_time_zone_sql_mode_and_isolation_does_the_same,
    eight_relays_and_sixteen_producers_get_on_with_each_other,
    a_deadlock_is_retried_inside,
    a_lock_wait_timeout_is_retried_inside,
    a_lock_wait_timeout_of_an_enqueue_is_a_conflict,
    a_killed_connection_is_reported_as_unavailable,
    ids_that_differ_in_case_or_trailing_spaces_are_different,
    what_a_check_refuses_is_not_left_out_silently,
    a_loose_table_is_filled_and_gets_its_defaults,
    a_unique_key_of_another_name_serves_and_a_missing_one_is_made,
    pending_rows_that_violate_a_check_fail_and_the_others_go_on,
);

async fn over(env: &Env<MySql>, setup: &'static str) -> MySqlStore {
    let options: MySqlConnectOptions = mysql_url().parse().unwrap();
    let options = options.timezone(None).pipes_as_concat(false).no_engine_substitution(false);
    let pool = MySqlPoolOptions::new()
        .max_connections(4)
        .after_connect(move |conn, _| Box::pin(async move { conn.execute(setup).await.map(|_| ()) }));
    MySqlStore::new(pool.connect_with(options).await.unwrap()).with_table(&env.table).unwrap()
}

/// Enqueued, tried twice, confirmed, acknowledged.
async fn whole_life(store: &MySqlStore, msg_id: &str) {
    let policy = Policy::default().with_required_groups(["points"]);
    let store = store.clone().with_policies(Policies::default().with_rule("order.*", policy));
    let mut tx = store.pool().begin().await.unwrap();
    store.enqueue(&mut tx, &[message(msg_id)]).await.unwrap();
    assert_eq!(store.enqueue_idempotent(&mut tx, &[message(msg_id)]).await.unwrap(), 0);
    tx.commit().await.unwrap();
    let claimed = store.claim(&request(9)).await.unwrap();
    assert_eq!(ids(&claimed), [msg_id]);
    let age = store.clock().now() - claimed[0].message.created_at().unwrap();
    assert!(age.abs() < TimeDelta::seconds(10), "{age}");
    assert_eq!(store.renew(&[claimed[0].claim], Duration::from_secs(60)).await.unwrap().len(), 1);
    assert_eq!(settle(&store, &claimed, &retry("no")).await.applied, 1);
    let waiting = row(&store, msg_id).await;
    let wait = waiting.next_retry_time - store.clock().now();
    assert!(wait > TimeDelta::seconds(50) && wait < TimeDelta::seconds(61), "{wait}");
    assert_eq!((waiting.retry_count, waiting.last_error.as_deref()), (1, Some("no")));
    let sql = format!("UPDATE {} SET next_retry_time = created_at WHERE status = 0", table(&store));
    store.pool().execute(AssertSqlSafe(sql)).await.unwrap();
    let claimed = store.claim(&request(9)).await.unwrap();
    assert_eq!(settle(&store, &claimed, &confirmed(&["points"])).await.applied, 1);
    let report = store.record_receipts(&[Receipt::handled(msg_id, "points", 2)]).await.unwrap();
    assert_eq!((report.recorded, report.completed), (1, 1));
    assert_eq!(row(&store, msg_id).await.status, Status::Completed);
}

fn table(store: &MySqlStore) -> String {
    let shown = format!("{store:?}");
    shown.split('`').nth(1).unwrap().to_owned()
}

async fn a_session_in_any_time_zone_sql_mode_and_isolation_does_the_same(env: Env<MySql>) {
    for (n, setup) in [
        "SET time_zone = '+05:30', sql_mode = ''",
        "SET time_zone = '-11:00', sql_mode = 'ANSI,TRADITIONAL,NO_BACKSLASH_ESCAPES'; \
         SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "SET autocommit = 1; SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    ]
    .into_iter()
    .enumerate()
    {
        let store = over(&env, setup).await;
        store.migrate().await.unwrap();
        whole_life(&store, &format!("m{n}")).await;
        let mut conn = store.pool().acquire().await.unwrap();
        let zone: String =
            sqlx::query_scalar("SELECT @@SESSION.time_zone").fetch_one(&mut *conn).await.unwrap();
        assert!(n == 2 || zone != "+00:00", "the migration gives the session back as it was");
        drop(conn);
        store.pool().close().await;
    }
}

async fn eight_relays_and_sixteen_producers_get_on_with_each_other(env: Env<MySql>) {
    const PRODUCERS: usize = 16;
    const EACH: usize = 60;
    let store = Arc::new(env.real_time_store());
    store.migrate().await.unwrap();
    env.exec("INSERT INTO {t} (msg_id, biz_type, biz_id, payload) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 900) SELECT CONCAT('old', i), 'a', 'b', '1' FROM n").await.unwrap();
    let producers: Vec<_> = (0..PRODUCERS)
        .map(|producer| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for n in 0..EACH / 3 {
                    let batch: Vec<Message> =
                        (0..3).map(|i| message(&format!("p{producer}-{n}-{i}"))).collect();
                    let mut tx = store.pool().begin().await.unwrap();
                    // Under the server's default, REPEATABLE READ: no claim keeps it waiting, nothing has to be retried.
                    store.enqueue(&mut tx, &batch).await.unwrap();
                    tx.commit().await.unwrap();
                }
            })
        })
        .collect();
    let total = 900 + PRODUCERS * EACH;
    let taken = Arc::new(std::sync::Mutex::new(HashSet::new()));
    let relays: Vec<_> = (0..8)
        .map(|_| {
            let (store, taken) = (Arc::clone(&store), Arc::clone(&taken));
            tokio::spawn(async move {
                let mut mine = 0;
                while taken.lock().unwrap().len() < total {
                    let claimed = store.claim(&request(20)).await.unwrap();
                    assert_eq!(settle(&*store, &claimed, &confirmed(&[])).await.lost, 0);
                    mine += claimed.len();
                    for one in claimed {
                        assert!(taken.lock().unwrap().insert(one.claim.id), "claimed twice");
                    }
                    tokio::task::yield_now().await;
                }
                mine
            })
        })
        .collect();
    for producer in producers {
        producer.await.unwrap();
    }
    for relay in relays {
        assert!(relay.await.unwrap() > 0, "every relay gets rows");
    }
    assert_eq!(store.stats().await.unwrap().count(Status::Completed), total as u64);
}

async fn until_it_waits(env: &Env<MySql>, query: &str) {
    until(|| async { MySql::waiting(&env.pool, query).await.len() == 1 }).await;
}

/// The rival has written more, so the store is the victim.
async fn a_deadlock_is_retried_inside(env: Env<MySql>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(60)).await;
    let claimed = store.claim(&request(2)).await.unwrap();
    let lock =
        |id: &str| AssertSqlSafe(format!("SELECT 1 FROM {} WHERE msg_id = '{id}' FOR UPDATE", env.table));
    let mut rival = MySqlConnection::connect(&mysql_url()).await.unwrap();
    rival.execute("BEGIN").await.unwrap();
    let heavy = format!("UPDATE {} SET biz_id = 'rival' WHERE id > {}", env.table, claimed[1].claim.id.0);
    rival.execute(AssertSqlSafe(heavy)).await.unwrap();
    rival.execute(lock("m1")).await.unwrap();
    let deadlocks = deadlocks(&env).await;
    let relay = tokio::spawn({
        let (store, claimed) = (store.clone(), claimed.clone());
        async move { settle(&store, &claimed, &confirmed(&[])).await }
    });
    until_it_waits(&env, &format!("UPDATE `{}`", env.table)).await;
    rival.execute(lock("m0")).await.unwrap();
    rival.execute("COMMIT").await.unwrap();
    rival.close().await.unwrap();
    assert_eq!(relay.await.unwrap(), Settled { applied: 2, lost: 0 });
    assert!(deadlocks.is_none() || self::deadlocks(&env).await > deadlocks, "this was no deadlock");
}

/// How many there have been on the server, where it counts them.
async fn deadlocks(env: &Env<MySql>) -> Option<u64> {
    let sql = "SELECT CAST(VARIABLE_VALUE AS CHAR) FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'INNODB_DEADLOCKS'";
    let mut conn = env.pool.acquire().await.unwrap();
    let count: Option<String> = sqlx::query_scalar(sql).fetch_optional(&mut *conn).await.ok()?;
    count?.parse().ok()
}

async fn a_lock_wait_timeout_is_retried_inside(env: Env<MySql>) {
    env.migrated().await;
    let store = over(&env, "SET innodb_lock_wait_timeout = 1").await.with_clock(env.clock.clone());
    env.commit(&store, &messages(2)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    let mut rival = env.begin().await;
    env.exec_on(&mut rival, "SELECT 1 FROM {t} WHERE msg_id = 'm1' FOR UPDATE").await.unwrap();
    let relay = tokio::spawn({
        let (store, claimed) = (store.clone(), claimed.clone());
        async move { settle(&store, &claimed, &confirmed(&[])).await }
    });
    let lock = "SELECT 1 FROM {t} WHERE msg_id = 'm0' FOR UPDATE NOWAIT";
    // The first attempt holds m0 while it waits for m1; after its time-out nobody holds it for a moment.
    until_it_waits(&env, &format!("UPDATE `{}`", env.table)).await;
    until(|| async {
        let mut tx = env.begin().await;
        let free = env.exec_on(&mut tx, lock).await.is_ok();
        tx.rollback().await.unwrap();
        free
    })
    .await;
    assert!(!relay.is_finished());
    rival.rollback().await.unwrap();
    assert_eq!(relay.await.unwrap(), Settled { applied: 2, lost: 0 });
    store.pool().close().await;
}

async fn a_lock_wait_timeout_of_an_enqueue_is_a_conflict(env: Env<MySql>) {
    env.migrated().await;
    let store = over(&env, "SET innodb_lock_wait_timeout = 1").await.with_clock(env.clock.clone());
    let mut first = env.begin().await;
    store.enqueue(&mut first, &[message("m")]).await.unwrap();
    let mut second = store.pool().begin().await.unwrap();
    let error = store.enqueue_idempotent(&mut second, &[message("n"), message("m")]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error:?}");
    second.rollback().await.unwrap();
    first.commit().await.unwrap();
    let inbox = MySqlInbox::new(store.pool().clone()).with_table(&format!("{}_inbox", env.table)).unwrap();
    inbox.migrate().await.unwrap();
    let (mut one, mut two) = (store.pool().begin().await.unwrap(), store.pool().begin().await.unwrap());
    assert!(inbox.first_time(&mut one, "points", "m").await.unwrap());
    let error = inbox.first_time(&mut two, "points", "m").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error:?}");
    drop((one, two));
    store.pool().close().await;
}

async fn a_killed_connection_is_reported_as_unavailable(env: Env<MySql>) {
    env.migrated().await;
    let store = over(&env, "SELECT 1").await.with_clock(env.clock.clone());
    env.commit(&store, &messages(1)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    let mut rival = env.begin().await;
    env.exec_on(&mut rival, "SELECT 1 FROM {t} FOR UPDATE").await.unwrap();
    let renew = tokio::spawn({
        let (store, claim) = (store.clone(), claimed[0].claim);
        async move { store.renew(&[claim], Duration::from_secs(60)).await }
    });
    until_it_waits(&env, &format!("UPDATE `{}`", env.table)).await;
    let waiting = MySql::waiting(&env.pool, &format!("UPDATE `{}`", env.table)).await;
    env.exec(&format!("KILL {}", waiting[0])).await.unwrap();
    let error = renew.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    rival.rollback().await.unwrap();
    assert_eq!(store.renew(&[claimed[0].claim], Duration::from_secs(60)).await.unwrap().len(), 1);
    store.pool().close().await;
}

async fn ids_that_differ_in_case_or_trailing_spaces_are_different(env: Env<MySql>) {
    let store = env.migrated().await;
    env.commit(&store, &["m", "M", "m ", "ḿ"].map(message)).await;
    assert_eq!(store.claim(&request(9)).await.unwrap().len(), 4);
    let report = store.record_receipts(&[Receipt::handled("M ", "points", 1)]).await.unwrap();
    assert_eq!(report.unknown, 1);
    let inbox = MySqlInbox::new(env.pool.clone()).with_table(&format!("{}_inbox", env.table)).unwrap();
    inbox.migrate().await.unwrap();
    for group in ["points", "Points", "points "] {
        let mut tx = env.begin().await;
        assert!(inbox.first_time(&mut tx, group, "m").await.unwrap(), "{group:?}");
        tx.commit().await.unwrap();
    }
}

/// INSERT IGNORE would: MariaDB takes JSON of 32 levels at most.
async fn what_a_check_refuses_is_not_left_out_silently(env: Env<MySql>) {
    let store = env.migrated().await;
    let deep: serde_json::Value =
        serde_json::from_str(&format!("{}{}", "[".repeat(101), "]".repeat(101))).unwrap();
    let deep = Message::json("a", "b", &deep).unwrap();
    let mut tx = env.begin().await;
    let error = store.enqueue_idempotent(&mut tx, &[message("m"), deep]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other, "{error:?}");
    tx.commit().await.unwrap();
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
}

/// Nothing is NOT NULL, nothing has a default, nothing is unique.
async fn loose_table(env: &Env<MySql>) {
    env.exec(
        "CREATE TABLE {t} (id BIGINT PRIMARY KEY AUTO_INCREMENT, msg_id VARCHAR(80), biz_type VARCHAR(32),
            biz_id VARCHAR(64), payload JSON, status TINYINT, retry_count INT, next_retry_time DATETIME,
            created_at DATETIME(3), sent_at DATETIME) DEFAULT CHARACTER SET latin1",
    )
    .await
    .unwrap();
}

async fn insert(env: &Env<MySql>, values: &str) {
    let columns = "msg_id, biz_type, biz_id, payload, status, next_retry_time, sent_at";
    env.exec(&format!("INSERT INTO {{t}} ({columns}) VALUES {values}")).await.unwrap();
}

async fn a_loose_table_is_filled_and_gets_its_defaults(env: Env<MySql>) {
    loose_table(&env).await;
    insert(&env, "('bare', 'a', 'b', '1', NULL, NULL, NULL)").await;
    // Written by a session eight hours ahead.
    insert(&env, "('local', 'a', 'b', '1', 0, UTC_TIMESTAMP() + INTERVAL 8 HOUR, NULL)").await;
    let store = env.real_time_store();
    for _ in 0..2 {
        store.migrate().await.unwrap();
    }
    let claimed = store.claim(&request(9)).await.unwrap();
    assert_eq!(ids(&claimed).into_iter().collect::<HashSet<_>>(), HashSet::from(["bare", "local"]));
    settle(&store, &claimed, &confirmed(&[])).await;
    env.exec("INSERT INTO {t} (msg_id, biz_type, biz_id, payload) VALUES ('next', 'a', 'b', '1')")
        .await
        .unwrap();
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["next"]);
    for column in ["status", "retry_count", "next_retry_time", "created_at"] {
        assert!(env.exec(&format!("UPDATE {{t}} SET {column} = NULL")).await.is_err(), "{column}");
    }
    let mut tx = env.begin().await;
    store.enqueue(&mut tx, &[message("日本")]).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(row(&store, "日本").await.status, Status::Pending);
}

async fn a_unique_key_of_another_name_serves_and_a_missing_one_is_made(env: Env<MySql>) {
    let keys = "SELECT CAST(COUNT(*) AS CHAR) FROM information_schema.STATISTICS
         WHERE TABLE_NAME = '{t}' AND NON_UNIQUE = 0 AND INDEX_NAME LIKE '%msg_id'";
    for key in ["CREATE UNIQUE INDEX uk ON {t} (msg_id)", "CREATE UNIQUE INDEX uk ON {t} (msg_id, biz_id)"] {
        loose_table(&env).await;
        env.exec(key).await.unwrap();
        insert(&env, "('m', 'a', 'b', '1', 0, NULL, NULL)").await;
        let store = env.real_time_store();
        store.migrate().await.unwrap();
        assert_eq!(env.text(keys).await.as_deref(), Some("1"));
        let mut tx = env.begin().await;
        assert_eq!(store.enqueue_idempotent(&mut tx, &[message("m"), message("n")]).await.unwrap(), 1);
        tx.commit().await.unwrap();
        env.exec("DROP TABLE {t}, {t}_receipts").await.unwrap();
    }
}

async fn pending_rows_that_violate_a_check_fail_and_the_others_go_on(env: Env<MySql>) {
    loose_table(&env).await;
    insert(&env, "('empty', 'a', 'b', NULL, 0, now(), NULL), ('good', 'a', 'b', '1', 0, now(), NULL)").await;
    insert(&env, "('odd', 'a', 'b', '1', 7, now(), NULL), ('old', 'a', 'b', NULL, 1, now(), now())").await;
    let store = env.real_time_store();
    store.migrate().await.unwrap();
    assert_eq!(ids(&claim_ids(&store).await), ["good"]);
    let empty = row(&store, "empty").await;
    assert_eq!(empty.status, Status::Failed);
    assert!(empty.last_error.is_some_and(|error| error.contains("_one_payload")));
    env.exec("UPDATE {t} SET payload = '2' WHERE payload IS NULL").await.unwrap();
    env.exec("UPDATE {t} SET status = 2 WHERE status = 7").await.unwrap();
    store.requeue(empty.id, 0).await.unwrap();
    store.migrate().await.unwrap();
    assert_eq!(claim_until_empty(store.clone(), 9).await.len(), 1);
    assert!(env.exec("INSERT INTO {t} (msg_id, biz_type, biz_id) VALUES ('y', 'a', 'b')").await.is_err());
}

async fn claim_ids(store: &MySqlStore) -> Vec<outbox_core::Claimed> {
    store.claim(&request(9)).await.unwrap()
}
