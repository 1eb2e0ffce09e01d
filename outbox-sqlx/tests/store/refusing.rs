//! Rows that a constraint or a trigger of the user's does not let the store write.

use std::error::Error;

use outbox_core::{Enqueue, Message, OutboxStore, Settled, Status, StoreError, StoreErrorKind};
use outbox_sqlx::Refusal;

use crate::harness::{Env, TestDb, confirmed, failed, ids, message, messages, request, row, settle};
use crate::on_every_database;

on_every_database!(
    a_claim_goes_on_past_rows_that_cannot_be_updated,
    a_settlement_goes_on_past_a_row_that_cannot_be_updated,
    a_refused_update_of_every_row_is_no_endless_error,
    rows_that_an_update_leaves_out_are_not_claimed,
    no_error_shows_what_is_in_a_row,
);

/// From now on no write leaves a row for which `condition` holds.
async fn refuse<DB: TestDb>(env: &Env<DB>, condition: &str) {
    let sql = match DB::NAME {
        "SQLite" => ["INSERT", "UPDATE"]
            .map(|event| {
                format!(
                    "CREATE TRIGGER {{t}}_no_{event} BEFORE {event} ON {{t}} WHEN NEW.{condition}
                     BEGIN SELECT RAISE(ABORT, 'refused'); END;"
                )
            })
            .concat(),
        _ => format!("ALTER TABLE {{t}} ADD CONSTRAINT no CHECK (NOT ({condition})) NOT VALID"),
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
    let code = if DB::NAME == "SQLite" { "1811" } else { "23514" };
    assert_eq!(refusal.code(), Some(code));
    // Told once, so that a log or a row's last error does not repeat it.
    assert!(!error.to_string().contains(&refusal.to_string()));
}
