//! Writing in the application's transaction.

use std::slice;
use std::time::Duration;

use super::super::StoreFixture;
use super::super::scene::{LEASE, MAX_PAYLOAD, Scene, TICK, confirmed, ids, mail, mails, order, request};
use crate::claim::{Settled, Settlement};
use crate::clock::later;
use crate::message::{InvalidMessage, Message};
use crate::state::Status;
use crate::store::{Enqueue, Filter, OutboxStore, StoreError, StoreErrorKind};

pub async fn committed_rows_are_visible<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    scene.put(slice::from_ref(&message)).await;
    let row = scene.row(&message).await;
    assert_eq!(row.status, Status::Pending);
    assert_eq!((row.message.created_at(), row.next_retry_time), (Some(scene.now()), scene.now()));
    assert_eq!((row.retry_count, row.unsettled_claims, row.message.claim_no()), (0, 0, 0));
    assert_eq!((row.lease_until, row.sent_at, row.completed_at, row.ack_due), (None, None, None, None));
    assert_eq!(scene.claim_only().await.message.msg_id(), message.msg_id());
}

pub async fn rolled_back_rows_are_gone<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    let mut tx = scene.fixture.begin().await;
    scene.store().enqueue(&mut tx, slice::from_ref(&message)).await.unwrap();
    scene.fixture.rollback(tx).await;
    assert_eq!(scene.find(&message).await, None);
    scene.nothing_is_claimable().await;
    scene.put(slice::from_ref(&message)).await;
}

pub async fn uncommitted_rows_are_invisible<F: StoreFixture>(scene: &Scene<F>) {
    let mut tx = scene.fixture.begin().await;
    scene.store().enqueue(&mut tx, &[mail()]).await.unwrap();
    assert_eq!(scene.rows().await, []);
    assert_eq!(scene.store().stats().await.unwrap().count(Status::Pending), 0);
    if F::CONCURRENT_WRITERS {
        scene.nothing_is_claimable().await;
    }
    scene.fixture.commit(tx).await.unwrap();
    scene.claim_only().await;
}

/// Ids are given at enqueue, so that the order of ids is not the order of commits.
pub async fn inserted_first_committed_last_is_not_skipped<F: StoreFixture>(scene: &Scene<F>) {
    if !F::CONCURRENT_WRITERS {
        return;
    }
    let (slow, quick) = (mail(), mail());
    let mut slow_tx = scene.fixture.begin().await;
    scene.store().enqueue(&mut slow_tx, slice::from_ref(&slow)).await.unwrap();
    scene.put_and_settle(&quick, confirmed()).await;
    scene.fixture.commit(slow_tx).await.unwrap();
    assert_eq!(scene.claim_only().await.message.msg_id(), slow.msg_id());
}

pub async fn outside_a_transaction_is_refused<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    if let Some(answer) = scene.fixture.enqueue_outside(&message).await {
        assert_eq!(kind_of(answer), Some(StoreErrorKind::NotInTransaction));
    }
    assert_eq!(scene.find(&message).await, None);
}

pub async fn duplicate_is_refused_with_its_batch<F: StoreFixture>(scene: &Scene<F>) {
    let first = mail();
    scene.put(slice::from_ref(&first)).await;
    let again = order().with_msg_id(first.msg_id()).unwrap();
    let mut tx = scene.fixture.begin().await;
    let answer = scene.store().enqueue(&mut tx, &[mail(), again, mail()]).await;
    assert_eq!(kind_of(answer), Some(StoreErrorKind::Duplicate));
    // Committing all the same is a mistake that must not write a part of the batch.
    _ = scene.fixture.commit(tx).await;
    assert_eq!(ids(scene.rows().await.iter().map(|row| &row.message)), [first.msg_id()]);
    assert_eq!(scene.row(&first).await.message.biz_type(), first.biz_type());
}

pub async fn duplicate_within_a_batch_is_refused<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    let answer = scene.try_put(&[message.clone(), mail(), message]).await;
    assert_eq!(kind_of(answer), Some(StoreErrorKind::Duplicate));
    assert_eq!(scene.rows().await, []);
}

pub async fn duplicate_of_a_committing_transaction_is_refused<F: StoreFixture>(scene: &Scene<F>) {
    let (message, answer) = enqueue_while_another_ends(scene, true).await;
    // A database may also choose a victim, who then finds the duplicate when it tries again.
    let kind = kind_of(answer).expect("the id is taken");
    assert!(matches!(kind, StoreErrorKind::Duplicate | StoreErrorKind::Conflict), "{kind:?}");
    assert_eq!(kind_of(scene.try_put(slice::from_ref(&message)).await), Some(StoreErrorKind::Duplicate));
    assert_eq!(scene.rows().await.len(), 1);
}

pub async fn duplicate_of_a_rolled_back_transaction_is_not_refused<F: StoreFixture>(scene: &Scene<F>) {
    let (message, answer) = enqueue_while_another_ends(scene, false).await;
    let kind = kind_of(answer);
    assert!(matches!(kind, None | Some(StoreErrorKind::Conflict)), "{kind:?}");
    if kind.is_some() {
        scene.put(slice::from_ref(&message)).await;
    }
    assert_eq!(scene.rows().await.len(), 1);
}

async fn enqueue_while_another_ends<F: StoreFixture>(
    scene: &Scene<F>,
    commits: bool,
) -> (Message, Result<(), StoreError>) {
    let message = mail();
    let batch = slice::from_ref(&message);
    let mut first = scene.fixture.begin().await;
    scene.store().enqueue(&mut first, batch).await.unwrap();
    let end_first = async {
        // Most databases let the second one wait meanwhile; one that answers at once is right, too.
        tokio::time::sleep(Duration::from_millis(100)).await;
        match commits {
            true => scene.fixture.commit(first).await.unwrap(),
            false => scene.fixture.rollback(first).await,
        }
    };
    let (answer, ()) = tokio::join!(scene.try_put(batch), end_first);
    (message, answer)
}

pub async fn idempotent_leaves_out_what_is_there<F: StoreFixture>(scene: &Scene<F>) {
    let store = scene.store();
    let (first, second, third) = (mail(), mail(), mail());
    scene.put(slice::from_ref(&first)).await;
    let mut tx = scene.fixture.begin().await;
    let batch = [first.clone(), second.clone(), second.clone()];
    assert_eq!(store.enqueue_idempotent(&mut tx, &batch).await.unwrap(), 1);
    assert_eq!(store.enqueue_idempotent(&mut tx, &batch).await.unwrap(), 0);
    store.enqueue(&mut tx, slice::from_ref(&third)).await.expect("the transaction is still good");
    scene.fixture.commit(tx).await.unwrap();
    assert_eq!(ids(scene.rows().await.iter().map(|row| &row.message)), ids([&first, &second, &third]));
}

pub async fn invalid_message_is_refused_before_anything_is_written<F: StoreFixture>(scene: &Scene<F>) {
    let store = scene.store();
    let too_large = Message::binary("mail.welcome", "A-1", vec![0; MAX_PAYLOAD + 1]).unwrap();
    let mut tx = scene.fixture.begin().await;
    for idempotent in [false, true] {
        let batch = [mail(), too_large.clone()];
        let error = match idempotent {
            false => store.enqueue(&mut tx, &batch).await.unwrap_err(),
            true => store.enqueue_idempotent(&mut tx, &batch).await.unwrap_err(),
        };
        assert_eq!(error.kind(), StoreErrorKind::InvalidMessage);
        let source = std::error::Error::source(&error).expect("the error keeps its source");
        assert_eq!(source.downcast_ref::<InvalidMessage>().map(InvalidMessage::field), Some("payload"));
    }
    let message = mail();
    store.enqueue(&mut tx, slice::from_ref(&message)).await.expect("the transaction is still good");
    scene.fixture.commit(tx).await.unwrap();
    assert_eq!(ids(scene.rows().await.iter().map(|row| &row.message)), [message.msg_id()]);
}

pub async fn deliver_after_is_honoured<F: StoreFixture>(scene: &Scene<F>) {
    let due = later(scene.now(), LEASE);
    let message = mail().with_deliver_after(due);
    scene.put(slice::from_ref(&message)).await;
    assert_eq!(scene.row(&message).await.next_retry_time, due);
    scene.clock.advance(LEASE - TICK);
    scene.nothing_is_claimable().await;
    scene.clock.advance(TICK);
    scene.claim_only().await;
}

pub async fn required_groups_are_snapshotted<F: StoreFixture>(scene: &Scene<F>) {
    let (order, mail, open) = (order(), mail(), order());
    scene.put(&[order.clone(), mail.clone()]).await;
    scene.put_undecided(&open).await;
    let groups = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
    assert_eq!(scene.row(&order).await.required_groups, groups(&["inventory", "points"]));
    assert_eq!(scene.row(&mail).await.required_groups, groups(&[]));
    assert_eq!(scene.row(&open).await.required_groups, None);
}

pub async fn empty_calls_do_nothing<F: StoreFixture>(scene: &Scene<F>) {
    let store = scene.store();
    let mut tx = scene.fixture.begin().await;
    store.enqueue(&mut tx, &[]).await.unwrap();
    assert_eq!(store.enqueue_idempotent(&mut tx, &[]).await.unwrap(), 0);
    scene.fixture.commit(tx).await.unwrap();
    scene.put(&[mail()]).await;
    let before = scene.rows().await;
    assert_eq!(scene.claim(0).await.len(), 0);
    assert_eq!(store.renew(&[], LEASE).await.unwrap(), []);
    assert_eq!(scene.settle_all(&[]).await, Settled::default());
    assert_eq!(scene.receive(&[]).await, Default::default());
    assert_eq!(store.find(&Filter::default().with_limit(0)).await.unwrap(), []);
    assert_eq!(scene.rows().await, before);
}

pub async fn large_batch_is_written_claimed_and_settled<F: StoreFixture>(scene: &Scene<F>) {
    const ROWS: usize = 2_000;
    let messages = mails(ROWS);
    scene.put(&messages).await;
    let claimed = scene.store().claim(&request(ROWS)).await.unwrap();
    assert_eq!(ids(claimed.iter().map(|claimed| &claimed.message)), ids(&messages));
    let claims: Vec<_> = claimed.iter().map(|claimed| claimed.claim).collect();
    assert_eq!(scene.store().renew(&claims, LEASE).await.unwrap().len(), ROWS);
    let settle = |claim| Settlement { claim, outcome: confirmed() };
    let settlements: Vec<_> = claims.into_iter().map(settle).collect();
    assert_eq!(scene.settle_all(&settlements).await, Settled { applied: ROWS, lost: 0 });
    assert_eq!(scene.store().stats().await.unwrap().count(Status::Completed), ROWS as u64);
}

fn kind_of(answer: Result<(), StoreError>) -> Option<StoreErrorKind> {
    answer.err().map(|error| error.kind())
}
