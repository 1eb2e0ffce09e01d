//! The tables of the inbox and of the dedup store: how they come to be, and what fits into them.

use std::error::Error;
use std::time::Duration;

use outbox_core::{DedupKey, DedupStore, StoreError, StoreErrorKind};
use outbox_sqlx::{SqlDedup, SqlInbox};

use crate::harness::{Env, TestDb};
use crate::on_every_database;

on_every_database!(
    migrating_again_changes_nothing,
    eight_migrations_at_once,
    a_table_of_something_else_is_refused,
    a_table_without_the_key_is_refused,
    a_missing_index_is_made,
    without_a_table_the_error_says_what_to_do,
    keys_that_do_not_fit_are_refused_before_the_database_is_asked,
);

impl<DB: TestDb> Env<DB> {
    /// Not migrated.
    pub(crate) fn both(&self) -> (SqlInbox<DB>, SqlDedup<DB>) {
        let inbox = SqlInbox::new(self.pool.clone()).with_table(&format!("{}_inbox", self.table)).unwrap();
        let dedup = SqlDedup::new(self.pool.clone()).with_table(&format!("{}_dedup", self.table)).unwrap();
        (inbox.with_clock(self.clock.clone()), dedup.with_clock(self.clock.clone()))
    }
}

async fn migrating_again_changes_nothing<DB: TestDb>(env: Env<DB>) {
    let (inbox, dedup) = env.both();
    for _ in 0..3 {
        inbox.migrate().await.unwrap();
        dedup.migrate().await.unwrap();
        inbox.once("points", "m", async |_| Ok::<_, StoreError>(())).await.unwrap();
    }
    assert_eq!(env.count("{t}_inbox", "true").await, 1);
    assert_eq!(env.count("{t}_dedup", "true").await, 0);
}

async fn eight_migrations_at_once<DB: TestDb>(env: Env<DB>) {
    let migrations: Vec<_> = (0..8)
        .map(|_| {
            let (inbox, dedup) = env.both();
            tokio::spawn(async move { tokio::try_join!(inbox.migrate(), dedup.migrate()) })
        })
        .collect();
    for migration in migrations {
        migration.await.unwrap().unwrap();
    }
}

async fn a_table_of_something_else_is_refused<DB: TestDb>(env: Env<DB>) {
    env.exec("CREATE TABLE {t}_inbox (mail TEXT); CREATE TABLE {t}_dedup (mail TEXT)").await.unwrap();
    let (inbox, dedup) = env.both();
    for error in [inbox.migrate().await.unwrap_err(), dedup.migrate().await.unwrap_err()] {
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{error:?}");
        assert!(error.to_string().contains("choose another name"), "{error}");
        assert!(error.source().is_some());
    }
}

/// Without it everybody would be the first.
async fn a_table_without_the_key_is_refused<DB: TestDb>(env: Env<DB>) {
    let columns = "consumer_group VARCHAR(255) NOT NULL, msg_id VARCHAR(255) NOT NULL, handled_at TIMESTAMP";
    env.exec(&format!("CREATE TABLE {{t}}_inbox ({columns})")).await.unwrap();
    let (inbox, _) = env.both();
    let error = inbox.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error:?}");
    assert!(error.to_string().contains("key (consumer_group, msg_id)"), "{error}");
    // MySQL has no INSERT that would notice.
    if DB::NAME != "MySQL" {
        let error = inbox.once("points", "m", async |_| Ok::<_, StoreError>(())).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{error:?}");
    }
}

async fn a_missing_index_is_made<DB: TestDb>(env: Env<DB>) {
    let (inbox, _) = env.both();
    inbox.migrate().await.unwrap();
    let of = if DB::NAME == "MySQL" { " ON {t}_inbox" } else { "" };
    let drop = format!("DROP INDEX {{t}}_inbox_handled_at{of}");
    env.exec(&drop).await.unwrap();
    inbox.migrate().await.unwrap();
    env.exec(&drop).await.unwrap();
}

async fn without_a_table_the_error_says_what_to_do<DB: TestDb>(env: Env<DB>) {
    let (inbox, dedup) = env.both();
    let error = inbox.is_done("points", "m").await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
    assert!(error.to_string().contains("migrate()"), "{error}");
    let error = dedup.begin(&DedupKey::new("points", "m"), Duration::from_secs(1)).await.unwrap_err();
    assert!(error.to_string().contains("migrate()"), "{error}");
}

async fn keys_that_do_not_fit_are_refused_before_the_database_is_asked<DB: TestDb>(env: Env<DB>) {
    let (inbox, dedup) = env.both();
    let (fits, long) = ("é".repeat(127) + "e", "é".repeat(128));
    for (group, msg_id) in [("", "m"), ("points", ""), (&long, "m"), ("points", &long), ("points", "a\0b")] {
        let error = inbox.is_done(group, msg_id).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidMessage, "{error}");
        let mut tx = env.begin().await;
        let error = inbox.first_time(&mut tx, group, msg_id).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::InvalidMessage, "{error}");
        let error = dedup.begin(&DedupKey::new(group, msg_id), Duration::from_secs(1)).await.unwrap_err();
        assert!(error.to_string().contains("no message can be remembered"), "{error}");
    }
    inbox.migrate().await.unwrap();
    inbox.once(&fits, &fits, async |_| Ok::<_, StoreError>(())).await.unwrap();
    assert!(inbox.is_done(&fits, &fits).await.unwrap());
}
