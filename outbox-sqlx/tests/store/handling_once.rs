//! The inbox: who is the first, also with two at once.

use std::time::Duration;

use outbox_core::{StoreError, StoreErrorKind};
use outbox_sqlx::{SqlInbox, SqliteInbox};
use sqlx::sqlite::SqlitePoolOptions;
use sqlx::{Connection, Executor, Postgres, Sqlite};
use tokio::task::JoinHandle;

use crate::harness::{Env, TestDb, sqlite_file, sqlite_options, until};
use crate::{on_every_database, on_postgres};

on_every_database!(
    the_first_time_is_once_for_each_group,
    a_rolled_back_marker_was_never_there,
    a_rolled_back_savepoint_takes_its_marker_along,
    a_connection_outside_a_transaction_is_refused,
    once_commits_the_effect_with_the_marker,
    once_rolls_back_what_fails,
    a_panic_in_the_effect_leaves_nothing,
    the_second_waits_and_is_not_the_first,
    the_second_is_the_first_after_a_rollback,
    of_many_at_once_one_runs,
);

on_postgres!(
    above_read_committed_the_second_is_told_to_run_again,
    two_transactions_that_wait_for_each_other_are_a_conflict,
    other_messages_do_not_wait,
    a_lost_connection_leaves_no_marker,
);

impl<DB: TestDb> Env<DB> {
    pub(crate) async fn inbox(&self) -> SqlInbox<DB> {
        self.exec("CREATE TABLE {t}_effects (msg_id TEXT)").await.unwrap();
        let inbox = SqlInbox::new(self.pool.clone()).with_table(&format!("{}_inbox", self.table)).unwrap();
        inbox.migrate().await.unwrap();
        inbox
    }

    pub(crate) async fn effect(&self, tx: &mut DB::Connection, msg_id: &str) -> Result<(), sqlx::Error> {
        self.exec_on(tx, &format!("INSERT INTO {{t}}_effects VALUES ('{msg_id}')")).await
    }

    pub(crate) async fn effects(&self, msg_id: &str) -> usize {
        self.count("{t}_effects", &format!("msg_id = '{msg_id}'")).await
    }
}

/// In a transaction of its own.
async fn first_time<DB: TestDb>(inbox: &SqlInbox<DB>, group: &str, msg_id: &str) -> bool {
    let mut tx = inbox.pool().begin().await.unwrap();
    let first = inbox.first_time(&mut tx, group, msg_id).await.unwrap();
    tx.commit().await.unwrap();
    first
}

async fn the_first_time_is_once_for_each_group<DB: TestDb>(env: Env<DB>) {
    let inbox = env.inbox().await;
    for (group, msg_id) in
        [("points", "m1"), ("points", "m2"), ("stock", "m1"), ("Points", "m1"), ("points", "m1 ")]
    {
        assert!(!inbox.is_done(group, msg_id).await.unwrap());
        assert!(first_time(&inbox, group, msg_id).await, "{group} {msg_id}");
        assert!(!first_time(&inbox, group, msg_id).await, "{group} {msg_id}");
        assert!(inbox.is_done(group, msg_id).await.unwrap());
    }
}

async fn a_rolled_back_marker_was_never_there<DB: TestDb>(env: Env<DB>) {
    let inbox = env.inbox().await;
    for _ in 0..2 {
        let mut tx = env.begin().await;
        assert!(inbox.first_time(&mut tx, "points", "m").await.unwrap());
        assert!(!inbox.first_time(&mut tx, "points", "m").await.unwrap(), "the same transaction");
        assert!(!inbox.is_done("points", "m").await.unwrap(), "not committed");
        tx.rollback().await.unwrap();
    }
    assert!(first_time(&inbox, "points", "m").await);
}

async fn a_rolled_back_savepoint_takes_its_marker_along<DB: TestDb>(env: Env<DB>) {
    let inbox = env.inbox().await;
    let mut tx = env.begin().await;
    let mut savepoint = tx.begin().await.unwrap();
    assert!(inbox.first_time(&mut savepoint, "points", "m").await.unwrap());
    savepoint.rollback().await.unwrap();
    assert!(inbox.first_time(&mut tx, "points", "m").await.unwrap());
    tx.commit().await.unwrap();
    assert!(inbox.is_done("points", "m").await.unwrap());
}

async fn a_connection_outside_a_transaction_is_refused<DB: TestDb>(env: Env<DB>) {
    let inbox = env.inbox().await;
    let mut connection = env.pool.acquire().await.unwrap();
    let error = inbox.first_time(&mut connection, "points", "m").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::NotInTransaction);
    assert!(error.to_string().contains("call begin()"), "{error}");
    assert!(!inbox.is_done("points", "m").await.unwrap());
}

/// What most handlers do.
async fn handle<DB: TestDb>(env: &Env<DB>, inbox: &SqlInbox<DB>, msg_id: &str) -> Result<bool, StoreError> {
    let effect = async |tx: &mut DB::Connection| {
        env.effect(tx, msg_id).await.unwrap();
        Ok(())
    };
    inbox.once("points", msg_id, effect).await.map(|done| done.is_some())
}

async fn once_commits_the_effect_with_the_marker<DB: TestDb>(env: Env<DB>) {
    let inbox = env.inbox().await;
    assert!(handle(&env, &inbox, "m").await.unwrap());
    assert!(!handle(&env, &inbox, "m").await.unwrap());
    assert_eq!((env.effects("m").await, inbox.is_done("points", "m").await.unwrap()), (1, true));
    let answer = inbox.once("points", "n", async |_| Ok::<_, StoreError>(42)).await.unwrap();
    assert_eq!(answer, Some(42));
}

async fn once_rolls_back_what_fails<DB: TestDb>(env: Env<DB>) {
    let inbox = env.inbox().await;
    let failing = async |tx: &mut DB::Connection| {
        env.effect(tx, "m").await.unwrap();
        Err::<(), _>(StoreError::new(StoreErrorKind::Other, "no such customer"))
    };
    let error = inbox.once("points", "m", failing).await.unwrap_err();
    assert_eq!(error.to_string(), "no such customer");
    assert_eq!((env.effects("m").await, inbox.is_done("points", "m").await.unwrap()), (0, false));
    assert!(handle(&env, &inbox, "m").await.unwrap());
    assert_eq!(env.effects("m").await, 1);
}

async fn a_panic_in_the_effect_leaves_nothing<DB: TestDb>(env: Env<DB>) {
    let inbox = env.inbox().await;
    let panicking = tokio::spawn({
        let inbox = inbox.clone();
        async move { inbox.once("points", "m", async |_| -> Result<(), StoreError> { panic!("a bug") }).await }
    });
    assert!(panicking.await.unwrap_err().is_panic());
    assert!(handle(&env, &inbox, "m").await.unwrap());
}

/// Asks in a transaction of its own, while that of the test is open.
fn second<DB: TestDb>(inbox: &SqlInbox<DB>) -> JoinHandle<bool> {
    let inbox = inbox.clone();
    tokio::spawn(async move { first_time(&inbox, "points", "m").await })
}

/// Until the other one waits for a lock; SQLite does not tell, so it is given a while.
async fn until_it_waits<DB: TestDb>(env: &Env<DB>, other: &JoinHandle<bool>) {
    if DB::CONCURRENT_WRITERS {
        let quote = if DB::NAME == "MySQL" { '`' } else { '"' };
        let insert = format!("INSERT INTO {quote}{}_inbox{quote}", env.table);
        until(|| async { DB::waiting(&env.pool, &insert).await.len() == 1 }).await;
    } else {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert!(!other.is_finished());
}

async fn the_second_waits_and_is_not_the_first<DB: TestDb>(env: Env<DB>) {
    let inbox = env.inbox().await;
    let mut tx = env.begin().await;
    assert!(inbox.first_time(&mut tx, "points", "m").await.unwrap());
    let second = second(&inbox);
    until_it_waits(&env, &second).await;
    tx.commit().await.unwrap();
    assert!(!second.await.unwrap());
}

async fn the_second_is_the_first_after_a_rollback<DB: TestDb>(env: Env<DB>) {
    let inbox = env.inbox().await;
    let mut tx = env.begin().await;
    assert!(inbox.first_time(&mut tx, "points", "m").await.unwrap());
    let second = second(&inbox);
    until_it_waits(&env, &second).await;
    tx.rollback().await.unwrap();
    assert!(second.await.unwrap());
    assert!(!first_time(&inbox, "points", "m").await);
}

async fn of_many_at_once_one_runs<DB: TestDb>(env: Env<DB>) {
    let inbox = env.inbox().await;
    let env = std::sync::Arc::new(env);
    let consumers: Vec<_> = (0..6)
        .map(|_| {
            let (env, inbox) = (env.clone(), inbox.clone());
            tokio::spawn(async move {
                let mut ran = 0;
                for n in 0..25 {
                    ran += usize::from(handle(&env, &inbox, &format!("m{n}")).await.unwrap());
                }
                ran
            })
        })
        .collect();
    let mut ran = 0;
    for consumer in consumers {
        ran += consumer.await.unwrap();
    }
    assert_eq!(ran, 25);
    assert_eq!(env.count("{t}_effects", "true").await, 25);
    assert_eq!(env.count("(SELECT DISTINCT msg_id FROM {t}_effects) AS e", "true").await, 25);
}

async fn above_read_committed_the_second_is_told_to_run_again(env: Env<Postgres>) {
    let inbox = env.inbox().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let mut tx = env.begin().await;
        env.exec_on(&mut tx, &format!("SET TRANSACTION ISOLATION LEVEL {level}")).await.unwrap();
        tx.execute("SELECT 1 FROM pg_class LIMIT 1").await.unwrap();
        assert!(first_time(&inbox, "points", level).await);
        let error = inbox.first_time(&mut tx, "points", level).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error:?}");
        tx.rollback().await.unwrap();
        assert!(!first_time(&inbox, "points", level).await);
    }
}

async fn two_transactions_that_wait_for_each_other_are_a_conflict(env: Env<Postgres>) {
    let inbox = env.inbox().await;
    let (mut one, mut two) = (env.begin().await, env.begin().await);
    assert!(inbox.first_time(&mut one, "points", "a").await.unwrap());
    assert!(inbox.first_time(&mut two, "points", "b").await.unwrap());
    let (answer_one, answer_two) = tokio::join!(inbox.first_time(&mut one, "points", "b"), async {
        let answer = inbox.first_time(&mut two, "points", "a").await;
        two.rollback().await.unwrap();
        answer
    });
    let (won, lost) = if answer_one.is_ok() { (answer_one, answer_two) } else { (answer_two, answer_one) };
    assert_eq!(lost.unwrap_err().kind(), StoreErrorKind::Conflict);
    // The winner is told the truth: the loser's marker is gone.
    assert!(won.unwrap());
}

async fn other_messages_do_not_wait(env: Env<Postgres>) {
    let inbox = env.inbox().await;
    let mut tx = env.begin().await;
    assert!(inbox.first_time(&mut tx, "points", "m").await.unwrap());
    assert!(first_time(&inbox, "points", "n").await);
    assert!(first_time(&inbox, "stock", "m").await);
    tx.commit().await.unwrap();
}

async fn a_lost_connection_leaves_no_marker(env: Env<Postgres>) {
    let inbox = env.inbox().await;
    let killed = async |tx: &mut sqlx::PgConnection| {
        env.effect(tx, "m").await.unwrap();
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await.unwrap();
        env.exec(&format!("SELECT pg_terminate_backend({pid})")).await.unwrap();
        Ok::<(), StoreError>(())
    };
    let error = inbox.once("points", "m", killed).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error:?}");
    assert!(handle(&env, &inbox, "m").await.unwrap());
    assert_eq!(env.effects("m").await, 1);
}

/// The driver's busy timeout is off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_that_stays_busy_is_a_conflict_and_nobody_is_first() {
    crate::harness::run::<Sqlite, _>(busy).await;
}

async fn busy(env: Env<Sqlite>) {
    env.inbox().await;
    let impatient = sqlite_options(&sqlite_file(&env.table)).busy_timeout(Duration::ZERO);
    let pool = SqlitePoolOptions::new().connect_with(impatient).await.unwrap();
    let inbox = SqliteInbox::new(pool).with_table(&format!("{}_inbox", env.table)).unwrap();
    let writer = env.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let error = inbox.once("points", "m", async |_| Ok::<_, StoreError>(())).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    let mut tx = inbox.pool().begin().await.unwrap();
    let error = inbox.first_time(&mut tx, "points", "m").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    tx.rollback().await.unwrap();
    writer.commit().await.unwrap();
    assert!(first_time(&inbox, "points", "m").await);
    inbox.pool().close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_transaction_that_read_an_older_state_is_a_conflict() {
    crate::harness::run::<Sqlite, _>(overtaken).await;
}

async fn overtaken(env: Env<Sqlite>) {
    let inbox = env.inbox().await;
    let mut tx = env.begin().await;
    env.exec_on(&mut tx, "SELECT * FROM {t}_effects").await.unwrap();
    assert!(first_time(&inbox, "points", "m").await);
    let error = inbox.first_time(&mut tx, "points", "m").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    tx.rollback().await.unwrap();
    assert!(!first_time(&inbox, "points", "m").await);
}
