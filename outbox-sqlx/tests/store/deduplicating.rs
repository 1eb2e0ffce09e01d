//! The table dedup store.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{TimeZone, Utc};
use outbox_core::conformance::DedupFixture;
use outbox_core::{
    Begin, DedupError, DedupKey, DedupStore, DedupToken, ManualClock, StoreError, StoreErrorKind,
};
use outbox_sqlx::{PgDedup, SqlDedup, SqliteDedup};
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, Executor, MySql, PgConnection, Postgres, Sqlite};

use crate::harness::{Env, TestDb, postgres_url, run, table_name, until};
use crate::postgres_only::{options, pool_after, shift_the_server};
use crate::{on_every_database, on_postgres};

outbox_core::dedup_suite!(sqlite_suite, Fixture::<Sqlite>::manual);
outbox_core::dedup_suite!(sqlite_suite_in_real_time, Fixture::<Sqlite>::real);
outbox_core::dedup_suite!(
    #[ignore = "needs PostgreSQL: run scripts/test.sh"]
    postgres_suite,
    Fixture::<Postgres>::manual
);
outbox_core::dedup_suite!(
    #[ignore = "needs PostgreSQL: run scripts/test.sh"]
    postgres_suite_in_real_time,
    Fixture::<Postgres>::real
);
outbox_core::dedup_suite!(
    #[ignore = "needs MariaDB or MySQL: run scripts/test.sh"]
    mysql_suite,
    Fixture::<MySql>::manual
);
outbox_core::dedup_suite!(
    #[ignore = "needs MariaDB or MySQL: run scripts/test.sh"]
    mysql_suite_in_real_time,
    Fixture::<MySql>::real
);

on_every_database!(
    two_pools_that_take_over_one_key_acquire_it_once,
    what_a_stale_holder_does_leaves_the_row_as_it_was,
    dropped_calls_leave_the_key_as_before_or_after,
    begins_among_failures_and_clean_ups_run_one_at_a_time,
    a_closed_pool_is_reported_as_unavailable,
);

on_postgres!(
    an_hour_of_skew_between_host_and_server_does_not_matter,
    stricter_isolation_as_the_default_does_not_matter,
    a_deadlock_is_retried_inside,
    without_prepared_statements,
);

const LONG: Duration = Duration::from_secs(600);

struct Fixture<DB: TestDb> {
    env: Env<DB>,
    store: Arc<SqlDedup<DB>>,
    other: Arc<SqlDedup<DB>>,
    real: bool,
}

impl<DB: TestDb> Fixture<DB> {
    async fn manual() -> Self {
        Self::new(false).await
    }

    async fn real() -> Self {
        Self::new(true).await
    }

    async fn new(real: bool) -> Self {
        let table = table_name();
        let clock = ManualClock::new(Utc.with_ymd_and_hms(2026, 3, 29, 0, 59, 58).unwrap());
        let env = Env { pool: DB::connect(&table).await, table, clock };
        let store = |pool| {
            let store = SqlDedup::new(pool).with_table(&format!("{}_dedup", env.table)).unwrap();
            let store = store.with_retention(Duration::from_millis(1500));
            Arc::new(if real { store } else { store.with_clock(env.clock.clone()) })
        };
        let (store, other) = (store(env.pool.clone()), store(DB::connect(&env.table).await));
        store.migrate().await.unwrap();
        Self { env, store, other, real }
    }
}

impl<DB: TestDb> DedupFixture for Fixture<DB> {
    type Store = SqlDedup<DB>;

    fn store(&self) -> Arc<SqlDedup<DB>> {
        self.store.clone()
    }

    fn other(&self) -> Arc<SqlDedup<DB>> {
        self.other.clone()
    }

    fn short_lease(&self) -> Duration {
        Duration::from_millis(500)
    }

    async fn pass(&self, time: Duration) {
        if self.real {
            tokio::time::sleep(time + Duration::from_millis(20)).await;
        } else {
            self.env.clock.advance(time);
        }
    }

    async fn cleanup(self) {
        self.other.pool().close().await;
        DB::clean(&self.env.pool, &self.env.table).await;
    }
}

fn key() -> DedupKey {
    DedupKey::new("points", "m")
}

async fn acquire<DB: TestDb>(dedup: &SqlDedup<DB>, key: &DedupKey) -> DedupToken {
    match dedup.begin(key, LONG).await.unwrap() {
        Begin::Acquired(token) => token,
        other => panic!("the key is free, but begin says {other:?}"),
    }
}

async fn two_pools_that_take_over_one_key_acquire_it_once<DB: TestDb>(env: Env<DB>) {
    let (_, dedup) = env.both();
    dedup.migrate().await.unwrap();
    let pool = DB::connect(&env.table).await;
    let other = SqlDedup::new(pool).with_table(&format!("{}_dedup", env.table)).unwrap();
    let handles = [dedup, other.with_clock(env.clock.clone())];
    for round in 0..10 {
        let racers: Vec<_> = (0..6)
            .map(|n| handles[n % 2].clone())
            .map(|dedup| tokio::spawn(async move { dedup.begin(&key(), LONG).await.unwrap() }))
            .collect();
        let mut acquired = 0;
        for racer in racers {
            acquired += usize::from(matches!(racer.await.unwrap(), Begin::Acquired(_)));
        }
        assert_eq!(acquired, 1, "round {round}");
        env.clock.advance(LONG);
    }
    handles[1].pool().close().await;
}

async fn what_a_stale_holder_does_leaves_the_row_as_it_was<DB: TestDb>(env: Env<DB>) {
    let (_, dedup) = env.both();
    dedup.migrate().await.unwrap();
    let stale = acquire(&dedup, &key()).await;
    env.clock.advance(LONG);
    let holder = acquire(&dedup, &key()).await;
    let state = match DB::NAME {
        "MySQL" => "SELECT CONCAT(HEX(token), ' ', expires_at) FROM {t}_dedup",
        _ => "SELECT CAST(token AS TEXT) || ' ' || CAST(expires_at AS TEXT) FROM {t}_dedup",
    };
    let before = env.text(state).await;
    assert!(before.is_some());
    env.clock.advance(Duration::from_secs(1));
    assert!(!dedup.finish(&key(), stale).await.unwrap());
    assert!(!dedup.renew(&key(), stale, LONG).await.unwrap());
    assert!(!dedup.abandon(&key(), stale).await.unwrap());
    assert_eq!(env.text(state).await, before);
    assert!(dedup.renew(&key(), holder, LONG).await.unwrap());
    assert_ne!(env.text(state).await, before);
}

async fn dropped_calls_leave_the_key_as_before_or_after<DB: TestDb>(env: Env<DB>) {
    let (_, dedup) = env.both();
    dedup.migrate().await.unwrap();
    for n in 0..50_u64 {
        let (key, patience) = (DedupKey::new("points", format!("m{n}")), Duration::from_micros(n * n * 4));
        let _ = tokio::time::timeout(patience, dedup.begin(&key, LONG)).await;
        env.clock.advance(LONG);
        let token = acquire(&dedup, &key).await;
        let _ = tokio::time::timeout(patience, dedup.finish(&key, token)).await;
        // Either of the two did it.
        dedup.finish(&key, token).await.unwrap();
        assert_eq!(dedup.begin(&key, LONG).await.unwrap(), Begin::Done);
    }
}

/// Rows come and go all the time, and still no two hold the key at once.
async fn begins_among_failures_and_clean_ups_run_one_at_a_time<DB: TestDb>(env: Env<DB>) {
    let (_, dedup) = env.both();
    dedup.migrate().await.unwrap();
    let running = Arc::new(tokio::sync::Mutex::new(()));
    let racers: Vec<_> = (0..4)
        .map(|_| {
            let (dedup, running) = (dedup.clone(), running.clone());
            tokio::spawn(async move {
                for _ in 0..40 {
                    if let Begin::Acquired(token) = dedup.begin(&key(), LONG).await.unwrap() {
                        let alone = running.try_lock().expect("another run holds the key");
                        tokio::task::yield_now().await;
                        drop(alone);
                        assert!(dedup.abandon(&key(), token).await.unwrap());
                    }
                    dedup.forget_expired(10).await.unwrap();
                }
            })
        })
        .collect();
    for racer in racers {
        racer.await.unwrap();
    }
}

fn kind_of(error: &DedupError) -> StoreErrorKind {
    error.source().unwrap().downcast_ref::<StoreError>().unwrap().kind()
}

async fn a_closed_pool_is_reported_as_unavailable<DB: TestDb>(env: Env<DB>) {
    let pool = DB::connect(&env.table).await;
    let dedup = SqlDedup::<DB>::new(pool);
    dedup.pool().close().await;
    let error = dedup.begin(&key(), LONG).await.unwrap_err();
    assert_eq!(kind_of(&error), StoreErrorKind::Unavailable, "{error:?}");
    let error = dedup.finish(&key(), DedupToken::random()).await.unwrap_err();
    assert_eq!(kind_of(&error), StoreErrorKind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn postgres_that_is_not_there_is_unavailable_to_a_dedup_store() {
    let options = PgPoolOptions::new().acquire_timeout(Duration::from_millis(300));
    let dedup = PgDedup::new(options.connect_lazy("postgres://nobody@127.0.0.1:1/nothing").unwrap());
    for error in [dedup.begin(&key(), LONG).await.map(drop), dedup.is_done(&key()).await.map(drop)] {
        assert_eq!(kind_of(&error.unwrap_err()), StoreErrorKind::Unavailable);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_that_stays_busy_is_a_conflict_to_a_dedup_store() {
    run::<Sqlite, _>(busy).await;
}

async fn busy(env: Env<Sqlite>) {
    let (_, dedup) = env.both();
    dedup.migrate().await.unwrap();
    let path = crate::harness::sqlite_file(&env.table);
    let impatient = crate::harness::sqlite_options(&path).busy_timeout(Duration::ZERO);
    let pool = sqlx::SqlitePool::connect_with(impatient).await.unwrap();
    let dedup = SqliteDedup::new(pool).with_table(&format!("{}_dedup", env.table)).unwrap();
    let writer = env.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let error = dedup.begin(&key(), LONG).await.unwrap_err();
    assert_eq!(kind_of(&error), StoreErrorKind::Conflict, "{error:?}");
    writer.commit().await.unwrap();
    acquire(&dedup, &key()).await;
    dedup.pool().close().await;
}

/// A dedup store on the test's table that follows the server's clock.
fn over(env: &Env<Postgres>, pool: sqlx::PgPool) -> PgDedup {
    PgDedup::new(pool).with_table(&format!("public.{}_dedup", env.table)).unwrap()
}

async fn an_hour_of_skew_between_host_and_server_does_not_matter(env: Env<Postgres>) {
    let schema = format!("{}_ahead", env.table);
    shift_the_server(&env, &schema, "1 hour").await;
    let dedup = over(&env, pool_after(format!("SET search_path = {schema}, pg_catalog, public")).await);
    dedup.migrate().await.unwrap();
    let token = acquire(&dedup, &key()).await;
    let ahead = "expires_at - now() BETWEEN interval '69 minutes' AND interval '71 minutes'";
    assert_eq!(env.count("{t}_dedup", ahead).await, 1, "an hour, and ten minutes of lease");
    assert_eq!(dedup.begin(&key(), LONG).await.unwrap(), Begin::InProgress);
    assert!(dedup.renew(&key(), token, LONG).await.unwrap());
    assert_eq!(dedup.forget_expired(10).await.unwrap(), 0);
    shift_the_server(&env, &schema, "71 minutes").await;
    assert!(!dedup.finish(&key(), token).await.unwrap());
    let token = acquire(&dedup, &key()).await;
    assert!(dedup.finish(&key(), token).await.unwrap());
    assert!(dedup.is_done(&key()).await.unwrap());
    shift_the_server(&env, &schema, "26 hours").await;
    assert!(!dedup.is_done(&key()).await.unwrap());
    assert_eq!(dedup.forget_expired(10).await.unwrap(), 1);
    dedup.pool().close().await;
    env.exec(&format!("DROP SCHEMA {schema} CASCADE")).await.unwrap();
}

async fn stricter_isolation_as_the_default_does_not_matter(env: Env<Postgres>) {
    for level in ["repeatable read", "serializable"] {
        let pool = PgPoolOptions::new().max_connections(6);
        let options = options().options([("default_transaction_isolation", level)]);
        let dedup = over(&env, pool.connect_with(options).await.unwrap());
        dedup.migrate().await.unwrap();
        let key = DedupKey::new("points", level);
        let racers: Vec<_> = (0..6)
            .map(|_| (dedup.clone(), key.clone()))
            .map(|(dedup, key)| tokio::spawn(async move { dedup.begin(&key, LONG).await.unwrap() }))
            .collect();
        let mut acquired = 0;
        for racer in racers {
            acquired += usize::from(matches!(racer.await.unwrap(), Begin::Acquired(_)));
        }
        assert_eq!(acquired, 1, "{level}");
        dedup.pool().close().await;
    }
}

/// The store waits for a row that its rival has locked, and the rival for a lock that a trigger has made the store take.
async fn a_deadlock_is_retried_inside(env: Env<Postgres>) {
    let dedup = over(&env, env.pool.clone());
    dedup.migrate().await.unwrap();
    let token = acquire(&dedup, &key()).await;
    env.exec(
        "CREATE TABLE {t}_effects (n INT); INSERT INTO {t}_effects VALUES (1);
         CREATE FUNCTION {t}_first() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN PERFORM 1 FROM {t}_effects FOR UPDATE; RETURN NULL; END $$;
         CREATE TRIGGER first BEFORE UPDATE ON {t}_dedup FOR EACH STATEMENT EXECUTE FUNCTION {t}_first()",
    )
    .await
    .unwrap();
    let mut rival = PgConnection::connect(&postgres_url()).await.unwrap();
    // Long, so that the store is the victim.
    rival.execute("SET deadlock_timeout = '60s'").await.unwrap();
    rival.execute("BEGIN").await.unwrap();
    let lock = |table: &str| sqlx::AssertSqlSafe(format!("SELECT 1 FROM {}_{table} FOR UPDATE", env.table));
    rival.execute(lock("dedup")).await.unwrap();
    let finish = tokio::spawn({
        let dedup = dedup.clone();
        async move { dedup.finish(&key(), token).await.unwrap() }
    });
    let waiting =
        format!("wait_event_type = 'Lock' AND query LIKE 'UPDATE \"public\".\"{}_dedup\"%'", env.table);
    until(|| async { env.count("pg_stat_activity", &waiting).await == 1 }).await;
    let asked = Instant::now();
    rival.execute(lock("effects")).await.unwrap();
    assert!(asked.elapsed() > Duration::from_millis(200), "nobody held the other row: this was no deadlock");
    rival.execute("COMMIT").await.unwrap();
    rival.close().await.unwrap();
    assert!(finish.await.unwrap());
    assert!(dedup.is_done(&key()).await.unwrap());
    env.exec("DROP FUNCTION {t}_first() CASCADE").await.unwrap();
}

/// As behind a pooler in transaction mode.
async fn without_prepared_statements(env: Env<Postgres>) {
    let pool = PgPoolOptions::new().connect_with(options().statement_cache_capacity(0)).await.unwrap();
    let dedup = over(&env, pool);
    for msg_id in ["m", "n"] {
        dedup.migrate().await.unwrap();
        let key = DedupKey::new("points", msg_id);
        let token = acquire(&dedup, &key).await;
        assert!(dedup.renew(&key, token, LONG).await.unwrap());
        assert!(dedup.finish(&key, token).await.unwrap());
        assert_eq!(dedup.begin(&key, LONG).await.unwrap(), Begin::Done);
    }
    dedup.pool().close().await;
}
