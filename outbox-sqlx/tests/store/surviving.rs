use std::collections::HashSet;
use std::time::Duration;

use outbox_core::{Enqueue, Filter, OutboxStore, Settlement, Status, StoreErrorKind};
use outbox_sqlx::SqliteStore;
use sqlx::Sqlite;
use sqlx::sqlite::SqlitePoolOptions;

use crate::harness::{
    Env, LEASE, TestDb, confirmed, message, messages, request, row, run, settle, sqlite_file, sqlite_options,
};
use crate::on_every_database;

on_every_database!(
    dropped_calls_leave_rows_as_before_or_after,
    a_transaction_that_never_ends_hides_its_rows_only
);

/// Calls are dropped at every stage; whatever they did, every row is settled exactly once in the end.
async fn dropped_calls_leave_rows_as_before_or_after<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(60)).await;
    for n in 0..60_u64 {
        let patience = Duration::from_micros(n * n * 4);
        let _ = tokio::time::timeout(patience, store.claim(&request(1))).await;
    }
    let held = store.find(&Filter::default()).await.unwrap();
    for row in &held {
        let claimed = row.lease_until.is_some();
        assert_eq!((row.message.claim_no(), row.unsettled_claims), (u64::from(claimed), u32::from(claimed)));
    }
    env.clock.advance(LEASE);
    let claimed = store.claim(&request(100)).await.unwrap();
    assert_eq!(claimed.iter().map(|c| c.claim.id).collect::<HashSet<_>>().len(), 60);
    let settlements: Vec<Settlement> =
        claimed.iter().map(|c| Settlement { claim: c.claim, outcome: confirmed(&[]) }).collect();
    for (n, settlement) in settlements.iter().enumerate() {
        let patience = Duration::from_micros(u64::try_from(n * n * 4).unwrap());
        let _ = tokio::time::timeout(patience, store.settle(std::slice::from_ref(settlement))).await;
    }
    settle(&store, &claimed, &confirmed(&[])).await;
    assert_eq!(store.stats().await.unwrap().count(Status::Completed), 60);
}

async fn a_transaction_that_never_ends_hides_its_rows_only<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &[message("before")]).await;
    let mut stuck = env.begin().await;
    if DB::NAME != "SQLite" {
        store.enqueue(&mut stuck, &[message("stuck")]).await.unwrap();
    }
    let claimed = store.claim(&request(9)).await.unwrap();
    assert_eq!(settle(&store, &claimed, &confirmed(&[])).await.applied, 1);
    assert_eq!(row(&store, "before").await.status, Status::Completed);
}

/// The driver's busy timeout is off: the store itself tries again for a while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_that_stays_busy_is_a_conflict() {
    run::<Sqlite, _>(busy).await;
}

async fn busy(env: Env<Sqlite>) {
    env.migrated().await;
    let impatient = sqlite_options(&sqlite_file(&env.table)).busy_timeout(Duration::ZERO);
    let pool = SqlitePoolOptions::new().connect_with(impatient).await.unwrap();
    let store = SqliteStore::new(pool).with_table(&env.table).unwrap();
    let mut writer = env.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    store.enqueue(&mut writer, &[message("m")]).await.unwrap();
    let error = store.claim(&request(9)).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Conflict, "{error}");
    assert!(error.is_transient());
    writer.commit().await.unwrap();
    assert_eq!(store.claim(&request(9)).await.unwrap().len(), 1);
    store.pool().close().await;
}
