//! Rows that a constraint or a trigger of the user's does not let the store write.

use std::error::Error;

use std::time::Duration;

use outbox_core::{
    Enqueue, Message, OutboxStore, Policies, Policy, Receipt, Settled, Status, StoreError, StoreErrorKind,
};
use outbox_sqlx::{Refusal, SqlStore};
use sqlx::{Postgres, Sqlite};

use crate::harness::{Env, TestDb, confirmed, failed, ids, message, messages, request, row, run, settle};
use crate::on_every_database;

on_every_database!(
    a_claim_goes_on_past_rows_that_cannot_be_updated,
    a_settlement_goes_on_past_a_row_that_cannot_be_updated,
    a_renewal_goes_on_past_a_row_that_cannot_be_updated,
    receipts_go_on_past_a_row_that_cannot_be_updated,
    a_receipt_that_cannot_be_kept_is_an_error_after_the_others,
    a_refused_update_of_every_row_is_no_endless_error,
    no_error_shows_what_is_in_a_row,
);

/// From now on no write leaves a row for which `condition` holds.
async fn refuse<DB: TestDb>(env: &Env<DB>, condition: &str) {
    refuse_in(env, "{t}", condition).await;
}

async fn refuse_in<DB: TestDb>(env: &Env<DB>, table: &str, condition: &str) {
    let sql = match DB::NAME {
        "SQLite" => ["INSERT", "UPDATE"]
            .map(|event| {
                format!(
                    "CREATE TRIGGER {table}_no_{event} BEFORE {event} ON {table} WHEN NEW.{condition}
                     BEGIN SELECT RAISE(ABORT, 'refused'); END;"
                )
            })
            .concat(),
        "MySQL" => ["INSERT", "UPDATE"]
            .map(|event| {
                format!(
                    "CREATE TRIGGER {table}_no_{event} BEFORE {event} ON {table} FOR EACH ROW
                     IF NEW.{condition} THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'refused'; END IF;"
                )
            })
            .concat(),
        _ => format!("ALTER TABLE {table} ADD CONSTRAINT no CHECK (NOT ({condition})) NOT VALID"),
    };
    env.exec(&sql).await.unwrap();
}

async fn a_claim_goes_on_past_rows_that_cannot_be_updated<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let bad: Vec<Message> = (0..5).map(|n| message(&format!("bad{n}"))).collect();
    env.commit(&store, &bad).await;
    env.commit(&store, &messages(3)).await;
    refuse(&env, "msg_id LIKE 'bad%'").await;
    assert_eq!(ids(&store.claim(&request(2)).await.unwrap()), ["m0", "m1"]);
    assert_eq!(ids(&store.claim(&request(2)).await.unwrap()), ["m2"]);
    let bad = row(&store, "bad0").await;
    assert_eq!((bad.status, bad.unsettled_claims, bad.lease_until), (Status::Pending, 0, None));
}

async fn a_settlement_goes_on_past_a_row_that_cannot_be_updated<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(3)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    refuse(&env, "msg_id = 'm1'").await;
    let settled = settle(&store, &claimed, &confirmed(&["points"])).await;
    assert_eq!(settled, Settled { applied: 2, lost: 1 });
    assert_eq!(row(&store, "m2").await.status, Status::Sent);
    let bad = row(&store, "m1").await;
    assert_eq!((bad.status, bad.unsettled_claims, bad.required_groups), (Status::Pending, 1, None));
    assert_eq!(settle(&store, &claimed[1..2], &failed("x")).await, Settled { applied: 0, lost: 1 });
}

async fn a_renewal_goes_on_past_a_row_that_cannot_be_updated<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(3)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    let before = row(&store, "m1").await.lease_until;
    refuse(&env, "msg_id = 'm1'").await;
    let claims: Vec<_> = claimed.iter().map(|c| c.claim).collect();
    let held = store.renew(&claims, Duration::from_secs(600)).await.unwrap();
    assert_eq!(held, [claims[0], claims[2]]);
    assert_eq!(row(&store, "m1").await.lease_until, before);
    assert!(row(&store, "m2").await.lease_until > before);
    // A claim that is over is not held, whatever else is refused.
    settle(&store, &claimed[..1], &confirmed(&[])).await;
    assert_eq!(store.renew(&claims, Duration::from_secs(600)).await.unwrap(), [claims[2]]);
}

/// Three sent rows that wait for their points.
async fn sent<DB: TestDb>(env: &Env<DB>) -> SqlStore<DB> {
    let policy = Policy::default().with_required_groups(["points"]);
    let store = env.migrated().await.with_policies(Policies::default().with_rule("order.*", policy));
    env.commit(&store, &messages(3)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    settle(&store, &claimed, &confirmed(&["points"])).await;
    store
}

fn receipts() -> Vec<Receipt> {
    ["m0", "m1", "m2", "unknown"].map(|id| Receipt::handled(id, "points", 1)).to_vec()
}

async fn receipts_go_on_past_a_row_that_cannot_be_updated<DB: TestDb>(env: Env<DB>) {
    let store = sent(&env).await;
    refuse(&env, "msg_id = 'm1'").await;
    let report = store.record_receipts(&receipts()).await.unwrap();
    assert_eq!((report.recorded, report.completed, report.unknown), (3, 2, 1));
    assert_eq!(row(&store, "m0").await.status, Status::Completed);
    assert_eq!(row(&store, "m2").await.status, Status::Completed);
    let bad = row(&store, "m1").await;
    assert_eq!((bad.status, bad.received), (Status::Sent, 0));
    // What was said is not lost.
    assert_eq!(env.count("{t}_receipts", "msg_id = 'm1'").await, 1);
}

async fn a_receipt_that_cannot_be_kept_is_an_error_after_the_others<DB: TestDb>(env: Env<DB>) {
    let store = sent(&env).await;
    refuse_in(&env, "{t}_receipts", "msg_id = 'm1'").await;
    let error = store.record_receipts(&receipts()).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Other);
    assert_eq!(row(&store, "m0").await.status, Status::Completed);
    assert_eq!(row(&store, "m2").await.status, Status::Completed);
    let bad = row(&store, "m1").await;
    assert_eq!((bad.status, bad.received), (Status::Sent, 0), "no receipt, no effect of it");
    assert_eq!(env.count("{t}_receipts", "true").await, 3);
}

async fn a_refused_update_of_every_row_is_no_endless_error<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(3)).await;
    refuse(&env, "msg_id LIKE 'm%'").await;
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
}

/// From now on updates pass over the rows for which `condition` holds, without an error.
async fn leave_out<DB: TestDb>(env: &Env<DB>, condition: &str) {
    let sql = match DB::NAME {
        "SQLite" => format!(
            "CREATE TRIGGER {{t}}_skip BEFORE UPDATE ON {{t}} WHEN OLD.{condition} BEGIN SELECT RAISE(IGNORE); END;"
        ),
        _ => format!("CREATE RULE skip AS ON UPDATE TO {{t}} WHERE OLD.{condition} DO INSTEAD NOTHING"),
    };
    env.exec(&sql).await.unwrap();
}

/// MySQL has nothing that leaves rows out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_an_update_leaves_out_are_not_claimed_on_sqlite() {
    run::<Sqlite, _>(rows_that_an_update_leaves_out_are_not_claimed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL: run scripts/test.sh"]
async fn rows_that_an_update_leaves_out_are_not_claimed_on_postgres() {
    run::<Postgres, _>(rows_that_an_update_leaves_out_are_not_claimed).await;
}

async fn rows_that_an_update_leaves_out_are_not_claimed<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(3)).await;
    leave_out(&env, "msg_id = 'm0'").await;
    assert_eq!(ids(&store.claim(&request(1)).await.unwrap()), ["m1"]);
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["m2"]);
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
}

fn everything(error: &StoreError) -> String {
    let mut text = format!("{error} {error:?} {error:#?}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(" {error} {error:?}");
        cause = error.source();
    }
    text
}

async fn no_error_shows_what_is_in_a_row<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    refuse(&env, "biz_id = 'A-1'").await;
    let secret = Message::json("card.added", "A-1", &"4111-1111").unwrap();
    let mut tx = env.begin().await;
    let error = store.enqueue(&mut tx, &[secret]).await.unwrap_err();
    let text = everything(&error);
    assert!(!text.contains("4111") && !text.contains("Failing row"), "{text}");
    assert_eq!(error.kind(), StoreErrorKind::Other);
    let refusal = error.source().unwrap().downcast_ref::<Refusal>().unwrap();
    let code = match DB::NAME {
        "SQLite" => "1811",
        "MySQL" => "45000",
        _ => "23514",
    };
    assert_eq!(refusal.code(), Some(code));
    // Told once, so that a log or a row's last error does not repeat it.
    assert!(!error.to_string().contains(&refusal.to_string()));
}
