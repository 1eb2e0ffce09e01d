//! What consumer groups say, in any order and any number of times.

use std::sync::Arc;

use super::super::StoreFixture;
use super::super::scene::{
    ACK_TIMEOUT, APPLIED, LOST, Scene, TICK, confirmed, every_outcome, failed, handled, mail, order, request,
};
use crate::claim::{Outcome, Settlement};
use crate::message::Message;
use crate::receipt::{Receipt, ReceiptReport};
use crate::state::Status;
use crate::store::OutboxStore;

fn recorded(recorded: usize) -> ReceiptReport {
    ReceiptReport { recorded, ..ReceiptReport::default() }
}

fn stale(stale: usize) -> ReceiptReport {
    ReceiptReport { stale, ..ReceiptReport::default() }
}

fn completing(recorded: usize) -> ReceiptReport {
    ReceiptReport { recorded, completed: 1, ..ReceiptReport::default() }
}

pub async fn last_required_receipt_completes<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    scene.put_and_settle(&message, confirmed()).await;
    let sent_at = scene.now();
    scene.clock.advance(TICK);
    assert_eq!(scene.receive(&[handled(&message, "points")]).await, recorded(1));
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.received, row.completed_at), (Status::Sent, 1, None));
    assert_eq!(scene.receive(&[handled(&message, "inventory")]).await, completing(1));
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.received, row.ack_due), (Status::Completed, 2, None));
    assert_eq!((row.sent_at, row.completed_at), (Some(sent_at), Some(scene.now())));
}

/// A row can be pending although it is published, for example after a requeue.
pub async fn early_receipts_complete_a_pending_row<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    scene.put(std::slice::from_ref(&message)).await;
    let receipts = [handled(&message, "inventory"), handled(&message, "points")];
    assert_eq!(scene.receive(&receipts).await, completing(2));
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.sent_at, row.completed_at), (Status::Completed, None, Some(scene.now())));
    scene.nothing_is_claimable().await;
}

pub async fn early_receipts_end_a_claim<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    let claim = scene.put_and_claim(&message).await;
    scene.receive(&[handled(&message, "inventory")]).await;
    assert_eq!(scene.receive(&[handled(&message, "points")]).await, completing(1));
    let before = scene.row(&message).await;
    assert_eq!((before.status, before.lease_until), (Status::Completed, None));
    for outcome in every_outcome() {
        assert_eq!(scene.settle(claim, outcome).await, LOST);
    }
    assert_eq!(scene.row(&message).await, before);
}

pub async fn late_receipts_complete_a_failed_row<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    scene.put_and_settle(&message, failed()).await;
    scene.receive(&[handled(&message, "points")]).await;
    assert_eq!(scene.row(&message).await.status, Status::Failed);
    assert_eq!(scene.receive(&[handled(&message, "inventory")]).await, completing(1));
    assert_eq!(scene.row(&message).await.status, Status::Completed);
}

pub async fn receipt_counts_once<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    scene.put_and_settle(&message, confirmed()).await;
    let points = [handled(&message, "points")];
    assert_eq!(scene.receive(&points).await, recorded(1));
    for _ in 0..3 {
        assert_eq!(scene.receive(&points).await, stale(1));
    }
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.received), (Status::Sent, 1));
    assert_eq!(scene.receive(&[handled(&message, "inventory")]).await, completing(1));
    assert_eq!(scene.receive(&points).await, stale(1));
}

pub async fn receipts_of_one_batch_count_once_each<F: StoreFixture>(scene: &Scene<F>) {
    let (done, half) = (order(), order());
    scene.put_and_settle(&done, confirmed()).await;
    scene.put_and_settle(&half, confirmed()).await;
    let of = |message: &Message, group| handled(message, group);
    let batch = [
        of(&half, "points"),
        of(&done, "points"),
        of(&half, "points"),
        of(&done, "inventory"),
        of(&done, "inventory"),
    ];
    let report = ReceiptReport { recorded: 3, stale: 2, completed: 1, unknown: 0 };
    assert_eq!(scene.receive(&batch).await, report);
    assert_eq!(scene.row(&done).await.status, Status::Completed);
    assert_eq!((scene.row(&half).await.status, scene.row(&half).await.received), (Status::Sent, 1));
}

pub async fn receipt_of_a_group_that_is_not_required_completes_nothing<F: StoreFixture>(scene: &Scene<F>) {
    let (order, mail) = (order(), mail());
    scene.put(std::slice::from_ref(&mail)).await;
    assert_eq!(scene.receive(&[handled(&mail, "points")]).await, recorded(1));
    assert_eq!(scene.row(&mail).await.status, Status::Pending);
    let claim = scene.claim_only().await.claim;
    assert_eq!(scene.settle(claim, failed()).await, APPLIED);
    scene.put_and_settle(&order, confirmed()).await;
    let others = ["audit", "Points", "points ", "inventory2"].map(|group| handled(&order, group));
    assert_eq!(scene.receive(&others).await, recorded(4));
    let row = scene.row(&order).await;
    assert_eq!((row.status, row.received), (Status::Sent, 0));
}

pub async fn receipt_for_an_unknown_message_is_no_error<F: StoreFixture>(scene: &Scene<F>) {
    let (known, unknown) = (order(), order());
    scene.put(std::slice::from_ref(&known)).await;
    let batch = [
        handled(&unknown, "points"),
        handled(&known, "points"),
        Receipt::rejected(unknown.msg_id(), "inventory", 1, "no such article"),
    ];
    assert_eq!(scene.receive(&batch).await, ReceiptReport { unknown: 2, recorded: 1, ..Default::default() });
    assert_eq!(scene.find(&unknown).await, None);
    assert_eq!(scene.row(&known).await.received, 1);
}

/// "Insert the receipt, then complete if enough are there" leaves rows at 1 for ever when both groups do it
/// at the same time; and both writing the same rows in different orders invites a deadlock.
pub async fn groups_racing_complete_every_row<F: StoreFixture>(scene: &Scene<F>) {
    const ROWS: usize = 60;
    let messages: Vec<Message> = (0..ROWS).map(|_| order()).collect();
    scene.put(&messages).await;
    let claimed = scene.store().claim(&request(ROWS)).await.unwrap();
    let settle = |claim| Settlement { claim, outcome: confirmed() };
    scene.settle_all(&claimed.iter().map(|c| settle(c.claim)).collect::<Vec<_>>()).await;
    let points: Vec<Receipt> = messages.iter().map(|message| handled(message, "points")).collect();
    let inventory: Vec<Receipt> =
        messages.iter().rev().map(|message| handled(message, "inventory")).collect();
    let racers: Vec<_> = [(points, scene.fixture.store()), (inventory, scene.fixture.other())]
        .into_iter()
        .flat_map(|(receipts, store)| [(receipts.clone(), Arc::clone(&store)), (receipts, store)])
        .map(|(receipts, store)| tokio::spawn(record_in_chunks(store, receipts)))
        .collect();
    let mut completed = 0;
    for racer in racers {
        completed += racer.await.expect("no recording fails in a race");
    }
    assert_eq!(completed, ROWS);
    assert!(scene.rows().await.iter().all(|row| (row.status, row.received) == (Status::Completed, 2)));
}

async fn record_in_chunks<S: OutboxStore>(store: Arc<S>, receipts: Vec<Receipt>) -> usize {
    let mut completed = 0;
    for chunk in receipts.chunks(20) {
        completed += store.record_receipts(chunk).await.unwrap().completed;
    }
    completed
}

pub async fn undecided_row_is_decided_at_confirm<F: StoreFixture>(scene: &Scene<F>) {
    let (open, nobody) = (order(), mail());
    scene.put_undecided(&open).await;
    let claim = scene.claim_only().await.claim;
    assert_eq!(scene.settle(claim, confirmed_for(&["inventory", "points"])).await, APPLIED);
    let row = scene.row(&open).await;
    assert_eq!(row.required_groups, Some(vec!["inventory".to_owned(), "points".to_owned()]));
    assert_eq!((row.status, row.received), (Status::Sent, 0));
    scene.put_undecided(&nobody).await;
    let claim = scene.claim_only().await.claim;
    assert_eq!(scene.settle(claim, confirmed_for(&[])).await, APPLIED);
    assert_eq!(scene.row(&nobody).await.status, Status::Completed);
}

pub async fn undecided_row_counts_receipts_that_came_before<F: StoreFixture>(scene: &Scene<F>) {
    for (required, status, received) in [
        (vec!["points"], Status::Completed, 1),
        (vec!["inventory", "points"], Status::Sent, 1),
        (vec!["inventory"], Status::Sent, 0),
    ] {
        let message = order();
        scene.put_undecided(&message).await;
        let claim = scene.claim_only().await.claim;
        assert_eq!(scene.receive(&[handled(&message, "points")]).await, recorded(1));
        assert_eq!(scene.row(&message).await.status, Status::Pending, "nobody knows who is required");
        assert_eq!(scene.settle(claim, confirmed_for(&required)).await, APPLIED);
        let row = scene.row(&message).await;
        assert_eq!((row.status, row.received), (status, received), "{required:?}");
    }
}

fn confirmed_for(groups: &[&str]) -> Outcome {
    let required_groups = groups.iter().map(|group| (*group).to_owned()).collect();
    Outcome::Confirmed { required_groups, ack_timeout: ACK_TIMEOUT }
}

fn rejected(message: &Message, claim_no: u64) -> Receipt {
    Receipt::rejected(message.msg_id(), "points", claim_no, "no such article")
}

pub async fn rejection_fails_the_row<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    scene.put_and_settle(&message, confirmed()).await;
    assert_eq!(scene.receive(&[rejected(&message, 1)]).await, recorded(1));
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.received, row.ack_due), (Status::Failed, 0, None));
    assert_eq!(row.last_error.as_deref(), Some("no such article"));
    assert_eq!(scene.receive(&[rejected(&message, 1)]).await, stale(1));
}

pub async fn rejection_ends_a_claim<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    let claim = scene.put_and_claim(&message).await;
    assert_eq!(scene.receive(&[rejected(&message, 1)]).await, recorded(1));
    let before = scene.row(&message).await;
    assert_eq!((before.status, before.lease_until), (Status::Failed, None));
    assert_eq!(scene.settle(claim, confirmed()).await, LOST);
    assert_eq!(scene.row(&message).await, before);
}

pub async fn rejection_of_another_claim_changes_nothing<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    scene.put_and_settle(&message, Outcome::Released).await;
    let again = scene.claim_only().await.claim;
    assert_eq!(scene.settle(again, confirmed()).await, APPLIED);
    let before = scene.row(&message).await;
    let others = [rejected(&message, 1), rejected(&message, 0), rejected(&message, 3)];
    assert_eq!(scene.receive(&others).await, stale(3));
    assert_eq!(scene.row(&message).await, before);
    assert_eq!(scene.receive(&[rejected(&message, 2)]).await, recorded(1));
}

/// The group handled it, forgot that, and cannot handle it again; the other one may still.
pub async fn rejection_by_a_group_that_has_handled_it_changes_nothing<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    scene.put_and_settle(&message, confirmed()).await;
    assert_eq!(scene.receive(&[handled(&message, "points")]).await, recorded(1));
    let before = scene.row(&message).await;
    assert_eq!(scene.receive(&[rejected(&message, 1)]).await, stale(1));
    assert_eq!(scene.row(&message).await, before);
}

pub async fn rejection_of_a_settled_fate_changes_nothing<F: StoreFixture>(scene: &Scene<F>) {
    let (failed_row, completed) = (order(), mail());
    scene.put_and_settle(&failed_row, failed()).await;
    scene.put_and_settle(&completed, confirmed()).await;
    let before = scene.rows().await;
    assert_eq!(scene.receive(&[rejected(&failed_row, 1), rejected(&completed, 1)]).await, stale(2));
    assert_eq!(scene.rows().await, before);
}
