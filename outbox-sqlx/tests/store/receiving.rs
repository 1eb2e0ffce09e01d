use outbox_core::{Clock, Filter, OutboxStore, Policies, Policy, Receipt, ReceiptReport, Requeued, Status};
use outbox_sqlx::SqlStore;

use crate::harness::{Env, TestDb, confirmed, failed, message, messages, request, row, settle};
use crate::on_every_database;

on_every_database!(
    the_last_required_receipt_completes_a_pending_a_sent_and_a_failed_row,
    a_receipt_counts_once,
    groups_nobody_asked_complete_nothing,
    receipts_for_unknown_messages_are_kept,
    receipts_that_nothing_can_match_harm_nobody,
    rejection_is_fenced_by_the_claim_number,
    a_group_that_rejected_may_yet_handle,
    a_batch_is_taken_in_order,
    concurrent_receipts_of_two_groups_complete_every_row,
    a_receipt_during_the_confirm_of_an_undecided_row_counts,
);

async fn with_groups<DB: TestDb>(env: &Env<DB>, groups: &[&str]) -> SqlStore<DB> {
    let policy = Policy::default().with_required_groups(groups.iter().copied());
    env.migrated().await.with_policies(Policies::new(policy))
}

fn report(recorded: usize, stale: usize, unknown: usize, completed: usize) -> ReceiptReport {
    ReceiptReport { recorded, stale, unknown, completed }
}

async fn the_last_required_receipt_completes_a_pending_a_sent_and_a_failed_row<DB: TestDb>(env: Env<DB>) {
    let store = with_groups(&env, &["a", "b"]).await;
    env.commit(&store, &messages(3)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    settle(&store, &claimed[1..2], &confirmed(&[])).await;
    settle(&store, &claimed[2..], &failed("x")).await;
    let of = |group| ["m0", "m1", "m2"].map(|id| Receipt::handled(id, group, 1));
    assert_eq!(store.record_receipts(&of("a")).await.unwrap(), report(3, 0, 0, 0));
    assert_eq!(store.record_receipts(&of("b")).await.unwrap(), report(3, 0, 0, 3));
    for n in 0..3 {
        let row = row(&store, &format!("m{n}")).await;
        assert_eq!((row.status, row.received), (Status::Completed, 2), "m{n}");
        assert_eq!((row.completed_at, row.ack_due), (Some(env.clock.now()), None));
        assert_eq!((row.lease_until, row.unsettled_claims), (None, 0));
    }
    // The acknowledgement overtook the confirmation, which is stale now.
    assert_eq!(settle(&store, &claimed[..1], &confirmed(&[])).await.lost, 1);
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
}

async fn a_receipt_counts_once<DB: TestDb>(env: Env<DB>) {
    let store = with_groups(&env, &["a", "b"]).await;
    env.commit(&store, &[message("m")]).await;
    let receipt = Receipt::handled("m", "a", 1);
    assert_eq!(store.record_receipts(&[receipt.clone(), receipt.clone()]).await.unwrap(), report(1, 1, 0, 0));
    assert_eq!(store.record_receipts(&[receipt]).await.unwrap(), report(0, 1, 0, 0));
    assert_eq!(row(&store, "m").await.received, 1);
    store.record_receipts(&[Receipt::handled("m", "b", 1)]).await.unwrap();
    let again = store.record_receipts(&[Receipt::handled("m", "b", 9)]).await.unwrap();
    assert_eq!(again, report(0, 1, 0, 0));
    assert_eq!(store.record_receipts(&[]).await.unwrap(), report(0, 0, 0, 0));
}

async fn groups_nobody_asked_complete_nothing<DB: TestDb>(env: Env<DB>) {
    let store = with_groups(&env, &["a"]).await;
    env.commit(&store, &[message("m")]).await;
    assert_eq!(store.record_receipts(&[Receipt::handled("m", "z", 1)]).await.unwrap(), report(1, 0, 0, 0));
    let row = row(&store, "m").await;
    assert_eq!((row.status, row.received), (Status::Pending, 0));
}

async fn receipts_for_unknown_messages_are_kept<DB: TestDb>(env: Env<DB>) {
    let store = with_groups(&env, &["a"]).await;
    let early = [Receipt::handled("m", "a", 1), Receipt::rejected("n", "a", 1, "why")];
    assert_eq!(store.record_receipts(&early).await.unwrap(), report(0, 0, 2, 0));
    assert_eq!(store.record_receipts(&early[..1]).await.unwrap(), report(0, 0, 1, 0));
    let kept = env.texts("SELECT msg_id FROM {t}_receipts ORDER BY msg_id").await;
    assert_eq!(kept, [Some("m".to_owned()), Some("n".to_owned())]);

    env.commit(&store, &[message("m")]).await;
    assert_eq!(row(&store, "m").await.received, 1);
    let claimed = store.claim(&request(9)).await.unwrap();
    settle(&store, &claimed, &confirmed(&[])).await;
    assert_eq!(row(&store, "m").await.status, Status::Completed);
}

async fn receipts_that_nothing_can_match_harm_nobody<DB: TestDb>(env: Env<DB>) {
    let store = with_groups(&env, &["a"]).await;
    env.commit(&store, &[message("m")]).await;
    let batch = [
        Receipt::handled("x".repeat(65), "a", 1),
        Receipt::handled("m\0", "a", 1),
        Receipt::handled("m", "g".repeat(256), 1),
        Receipt::handled("m", "", 1),
        Receipt::rejected("m", "z", u64::MAX, "a\0b"),
        Receipt::handled("m", "a", 1),
    ];
    assert_eq!(store.record_receipts(&batch).await.unwrap(), report(1, 1, 4, 1));
    assert_eq!(row(&store, "m").await.status, Status::Completed);
}

async fn rejection_is_fenced_by_the_claim_number<DB: TestDb>(env: Env<DB>) {
    let store = with_groups(&env, &["a"]).await;
    env.commit(&store, &messages(2)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    settle(&store, &claimed[1..], &confirmed(&[])).await;
    let reject = |id, claim_no| Receipt::rejected(id, "a", claim_no, "cannot\0parse");
    let stale = [reject("m0", 0), reject("m1", 2)];
    assert_eq!(store.record_receipts(&stale).await.unwrap(), report(0, 2, 0, 0));
    let live = [reject("m0", 1), reject("m1", 1)];
    assert_eq!(store.record_receipts(&live).await.unwrap(), report(2, 0, 0, 0));
    assert_eq!(store.record_receipts(&live).await.unwrap(), report(0, 2, 0, 0));
    for id in ["m0", "m1"] {
        let row = row(&store, id).await;
        assert_eq!((row.status, row.ack_due, row.lease_until), (Status::Failed, None, None));
        assert_eq!(row.last_error.as_deref(), Some("cannot\u{fffd}parse"));
    }
    assert_eq!(settle(&store, &claimed[..1], &confirmed(&[])).await.lost, 1);
}

async fn a_group_that_rejected_may_yet_handle<DB: TestDb>(env: Env<DB>) {
    let store = with_groups(&env, &["a"]).await;
    env.commit(&store, &[message("m")]).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    settle(&store, &claimed, &confirmed(&[])).await;
    store.record_receipts(&[Receipt::rejected("m", "a", 1, "bug")]).await.unwrap();
    assert_eq!(store.requeue(claimed[0].claim.id, 1).await.unwrap(), Requeued::Done);
    assert_eq!(store.record_receipts(&[Receipt::handled("m", "a", 3)]).await.unwrap(), report(1, 0, 0, 1));
    let kept = env.texts("SELECT verdict FROM {t}_receipts").await;
    assert_eq!(kept, [Some("handled".to_owned())]);
}

async fn a_batch_is_taken_in_order<DB: TestDb>(env: Env<DB>) {
    let store = with_groups(&env, &["a", "b"]).await;
    env.commit(&store, &messages(2)).await;
    store.claim(&request(9)).await.unwrap();
    let batch = [
        Receipt::handled("m0", "a", 1),
        Receipt::rejected("m0", "b", 1, "first no"),
        Receipt::rejected("m0", "a", 1, "too late"),
        Receipt::handled("m1", "b", 1),
        Receipt::handled("m0", "b", 1),
        Receipt::rejected("m1", "a", 1, "no"),
    ];
    assert_eq!(store.record_receipts(&batch).await.unwrap(), report(5, 1, 0, 1));
    let (m0, m1) = (row(&store, "m0").await, row(&store, "m1").await);
    assert_eq!((m0.status, m0.received, m0.last_error.as_deref()), (Status::Completed, 2, Some("first no")));
    assert_eq!((m1.status, m1.received, m1.last_error.as_deref()), (Status::Failed, 1, Some("no")));
}

/// "Insert, then count" would leave rows behind at 1: neither sees the other's receipt.
async fn concurrent_receipts_of_two_groups_complete_every_row<DB: TestDb>(env: Env<DB>) {
    let store = with_groups(&env, &["a", "b"]).await;
    env.commit(&store, &messages(200)).await;
    let claimed = store.claim(&request(200)).await.unwrap();
    settle(&store, &claimed, &confirmed(&[])).await;
    let listen = |group: &'static str, backwards: bool| {
        let store = store.clone();
        tokio::spawn(async move {
            let mut receipts: Vec<_> =
                (0..200).map(|n| Receipt::handled(format!("m{n}"), group, 1)).collect();
            if backwards {
                receipts.reverse();
            }
            for batch in receipts.chunks(10) {
                store.record_receipts(batch).await.unwrap();
            }
        })
    };
    // Twice each, and in opposite orders, so that batches overlap.
    let listeners = [listen("a", false), listen("b", false), listen("a", true), listen("b", true)];
    for listener in listeners {
        listener.await.unwrap();
    }
    assert_eq!(store.stats().await.unwrap().count(Status::Completed), 200);
}

async fn a_receipt_during_the_confirm_of_an_undecided_row_counts<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(300)).await;
    let claimed = store.claim(&request(300)).await.unwrap();
    let relay = tokio::spawn({
        let (store, claimed) = (store.clone(), claimed.clone());
        async move {
            for batch in claimed.chunks(3) {
                settle(&store, batch, &confirmed(&["a"])).await;
            }
        }
    });
    for batch in claimed.chunks(3) {
        let receipts: Vec<_> = batch.iter().map(|c| Receipt::handled(c.message.msg_id(), "a", 1)).collect();
        store.record_receipts(&receipts).await.unwrap();
    }
    relay.await.unwrap();
    let unfinished = store.find(&Filter::default().with_status(Status::Sent)).await.unwrap();
    assert_eq!(unfinished, []);
    assert_eq!(store.stats().await.unwrap().count(Status::Completed), 300);
}
