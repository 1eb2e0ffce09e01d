//! The clean-up of markers and leases.

use std::time::Duration;

use outbox_core::{Begin, DedupKey, DedupStore, StoreError};
use outbox_sqlx::{PgInbox, SqlInbox};
use sqlx::Postgres;

use crate::harness::{Env, TestDb};
use crate::{on_every_database, on_postgres};

on_every_database!(
    old_markers_go_and_young_ones_stay,
    several_at_once_remove_each_marker_once,
    a_dropped_clean_up_goes_on_later,
    what_expired_goes_and_what_lives_stays,
);

on_postgres!(a_marker_that_is_being_removed_keeps_nobody_waiting, age_is_by_the_servers_clock);

const HOUR: Duration = Duration::from_secs(3600);

async fn marked<DB: TestDb>(inbox: &SqlInbox<DB>, prefix: &str, count: usize) {
    for n in 0..count {
        inbox.once("points", &format!("{prefix}{n}"), async |_| Ok::<_, StoreError>(())).await.unwrap();
    }
}

async fn old_markers_go_and_young_ones_stay<DB: TestDb>(env: Env<DB>) {
    let (inbox, _) = env.both();
    inbox.migrate().await.unwrap();
    marked(&inbox, "old", 25).await;
    env.clock.advance(HOUR);
    marked(&inbox, "young", 3).await;
    assert_eq!(inbox.forget_older_than(2 * HOUR, 10).await.unwrap(), 0);
    assert_eq!(inbox.forget_older_than(Duration::MAX, 10).await.unwrap(), 0);
    assert_eq!(inbox.forget_older_than(HOUR, 10).await.unwrap(), 25);
    assert_eq!(inbox.forget_older_than(HOUR, 0).await.unwrap(), 0);
    assert!(!inbox.is_done("points", "old7").await.unwrap());
    assert!(inbox.is_done("points", "young2").await.unwrap());
    marked(&inbox, "old", 1).await;
    assert!(inbox.is_done("points", "old0").await.unwrap());
}

async fn several_at_once_remove_each_marker_once<DB: TestDb>(env: Env<DB>) {
    let (inbox, _) = env.both();
    inbox.migrate().await.unwrap();
    marked(&inbox, "m", 120).await;
    env.clock.advance(HOUR);
    let cleaners: Vec<_> = (0..4)
        .map(|_| {
            let inbox = inbox.clone();
            tokio::spawn(async move { inbox.forget_older_than(HOUR, 7).await.unwrap() })
        })
        .collect();
    let mut removed = 0;
    for cleaner in cleaners {
        removed += cleaner.await.unwrap();
    }
    removed += inbox.forget_older_than(HOUR, 7).await.unwrap();
    assert_eq!((removed, env.count("{t}_inbox", "true").await), (120, 0));
}

async fn a_dropped_clean_up_goes_on_later<DB: TestDb>(env: Env<DB>) {
    let (inbox, _) = env.both();
    inbox.migrate().await.unwrap();
    marked(&inbox, "m", 60).await;
    env.clock.advance(HOUR);
    for n in 0..20_u64 {
        let patience = Duration::from_micros(n * n * 20);
        let _ = tokio::time::timeout(patience, inbox.forget_older_than(HOUR, 1)).await;
    }
    inbox.forget_older_than(HOUR, 1).await.unwrap();
    assert_eq!(env.count("{t}_inbox", "true").await, 0);
}

async fn what_expired_goes_and_what_lives_stays<DB: TestDb>(env: Env<DB>) {
    let (_, dedup) = env.both();
    let dedup = dedup.with_retention(24 * HOUR);
    dedup.migrate().await.unwrap();
    let key = |n: usize| DedupKey::new("points", format!("m{n}"));
    for n in 0..12 {
        let Begin::Acquired(token) = dedup.begin(&key(n), HOUR).await.unwrap() else { panic!("not free") };
        if n % 2 == 0 {
            assert!(dedup.finish(&key(n), token).await.unwrap());
        }
    }
    assert_eq!(dedup.forget_expired(5).await.unwrap(), 0);
    env.clock.advance(HOUR);
    assert_eq!(dedup.forget_expired(5).await.unwrap(), 6, "the leases");
    assert!(dedup.is_done(&key(0)).await.unwrap());
    env.clock.advance(23 * HOUR);
    assert_eq!(dedup.forget_expired(5).await.unwrap(), 6, "the done markers");
    assert_eq!(env.count("{t}_dedup", "true").await, 0);
}

async fn a_marker_that_is_being_removed_keeps_nobody_waiting(env: Env<Postgres>) {
    let (inbox, _) = env.both();
    inbox.migrate().await.unwrap();
    marked(&inbox, "m", 3).await;
    env.clock.advance(HOUR);
    let mut tx = env.begin().await;
    env.exec_on(&mut tx, "SELECT 1 FROM {t}_inbox WHERE msg_id = 'm1' FOR UPDATE").await.unwrap();
    assert_eq!(inbox.forget_older_than(HOUR, 10).await.unwrap(), 2);
    tx.rollback().await.unwrap();
    assert_eq!(inbox.forget_older_than(HOUR, 10).await.unwrap(), 1);
}

async fn age_is_by_the_servers_clock(env: Env<Postgres>) {
    let inbox = PgInbox::new(env.pool.clone()).with_table(&format!("{}_inbox", env.table)).unwrap();
    inbox.migrate().await.unwrap();
    marked(&inbox, "m", 2).await;
    env.exec("UPDATE {t}_inbox SET handled_at = now() - interval '61 minutes' WHERE msg_id = 'm0'")
        .await
        .unwrap();
    assert_eq!(inbox.forget_older_than(HOUR, 10).await.unwrap(), 1);
    assert!(inbox.is_done("points", "m1").await.unwrap());
}
