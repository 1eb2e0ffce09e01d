//! What people ask for.

use std::slice;
use std::time::Duration;

use super::super::StoreFixture;
use super::super::scene::{
    APPLIED, LEASE, LOST, Scene, TICK, confirmed, every_outcome, failed, handled, ids, mail, mails, order,
    retry,
};
use crate::claim::RowId;
use crate::clock::later;
use crate::message::Message;
use crate::state::Status;
use crate::store::{Filter, OutboxStore, Requeued};

pub async fn requeue_starts_over<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    scene.put_and_settle(&message, retry(LEASE, 1)).await;
    scene.receive(&[handled(&message, "points")]).await;
    scene.clock.advance(LEASE);
    let id = scene.row(&message).await.id;
    assert_eq!(scene.store().requeue(id, 1).await.unwrap(), Requeued::Done);
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.retry_count, row.unsettled_claims), (Status::Pending, 0, 0));
    assert_eq!((row.next_retry_time, row.message.claim_no()), (scene.now(), 2));
    assert_eq!(row.received, 1, "what a group has done stays done");
    let again = scene.claim_only().await;
    assert_eq!((again.message.claim_no(), again.retry_count, again.unsettled_claims), (3, 0, 1));
    assert_eq!(scene.settle(again.claim, confirmed()).await, APPLIED);
    assert_eq!(scene.row(&message).await.status, Status::Sent);
}

pub async fn requeue_is_fenced_by_claim_no<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    scene.put_and_settle(&message, failed()).await;
    let before = scene.row(&message).await;
    for claim_no in [0, 2, u64::MAX >> 1] {
        assert_eq!(scene.store().requeue(before.id, claim_no).await.unwrap(), Requeued::Stale);
    }
    assert_eq!(scene.row(&message).await, before);
    assert_eq!(scene.store().requeue(before.id, 1).await.unwrap(), Requeued::Done);
    assert_eq!(scene.store().requeue(before.id, 1).await.unwrap(), Requeued::Stale);
}

pub async fn requeue_of_what_has_not_failed_changes_nothing<F: StoreFixture>(scene: &Scene<F>) {
    scene.put_and_settle(&mail(), confirmed()).await;
    scene.put_and_settle(&order(), confirmed()).await;
    scene.put_and_claim(&mail()).await;
    scene.put(&[mail()]).await;
    let before = scene.rows().await;
    for row in &before {
        let answer = scene.store().requeue(row.id, row.message.claim_no()).await.unwrap();
        assert_eq!(answer, Requeued::Stale, "{}", row.status);
    }
    let nowhere = RowId(before[3].id.0 + 1_000);
    assert_eq!(scene.store().requeue(nowhere, 0).await.unwrap(), Requeued::Stale);
    assert_eq!(scene.rows().await, before);
}

pub async fn settlement_from_before_a_requeue_changes_nothing<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    let claim = scene.put_and_settle(&message, failed()).await;
    assert_eq!(scene.store().requeue(claim.id, 1).await.unwrap(), Requeued::Done);
    let before = scene.row(&message).await;
    for outcome in every_outcome() {
        assert_eq!(scene.settle(claim, outcome).await, LOST);
    }
    assert_eq!(scene.store().renew(&[claim], LEASE).await.unwrap(), []);
    assert_eq!(scene.row(&message).await, before);
}

pub async fn find_filters<F: StoreFixture>(scene: &Scene<F>) {
    let of = |biz_type: &str, biz_id: &str| Message::json(biz_type, biz_id, &1).unwrap();
    let messages = [of("mail.a", "1"), of("mail.a", "2"), of("mail.b", "1"), of("mail.b", "2")];
    scene.put(&messages).await;
    let first = scene.claim(1).await.remove(0);
    scene.settle(first.claim, failed()).await;
    let a = || Filter::default().with_biz_type("mail.a");
    let one = || Filter::default().with_biz_id("1");
    let cases = [
        (Filter::default(), vec![0, 1, 2, 3]),
        (a(), vec![0, 1]),
        (one(), vec![0, 2]),
        (a().with_biz_id("1"), vec![0]),
        (Filter::default().with_status(Status::Failed), vec![0]),
        (Filter::default().with_status(Status::Pending), vec![1, 2, 3]),
        (one().with_status(Status::Pending), vec![2]),
        (Filter::default().with_status(Status::Sent), vec![]),
        (a().with_msg_id(messages[1].msg_id()), vec![1]),
        (a().with_msg_id(messages[2].msg_id()), vec![]),
        (Filter::default().with_biz_type("mail.%"), vec![]),
        (Filter::default().with_biz_type("mail"), vec![]),
    ];
    for (filter, expected) in cases {
        let rows = scene.store().find(&filter).await.unwrap();
        let expected = ids(expected.into_iter().map(|index: usize| &messages[index]));
        assert_eq!(ids(rows.iter().map(|row| &row.message)), expected, "{filter:?}");
    }
}

pub async fn find_pages_in_order<F: StoreFixture>(scene: &Scene<F>) {
    let messages = mails(105);
    scene.put(&messages).await;
    assert_eq!(scene.store().find(&Filter::default()).await.unwrap().len(), 100, "the default limit");
    let mut filter = Filter::default().with_limit(10).with_status(Status::Pending);
    let mut found = Vec::new();
    while found.len() <= messages.len() {
        let page = scene.store().find(&filter).await.unwrap();
        assert!(page.len() <= 10);
        let Some(last) = page.last() else { break };
        filter = filter.with_after(last.id);
        found.extend(page.into_iter().map(|row| row.message));
    }
    assert_eq!(ids(&found), ids(&messages));
}

pub async fn stats_count_by_status_and_find_the_longest_due<F: StoreFixture>(scene: &Scene<F>) {
    let stats = async || scene.store().stats().await.unwrap();
    assert_eq!(stats().await.oldest_due, None);
    scene.put_and_settle(&mail(), failed()).await;
    scene.put_and_settle(&mail(), confirmed()).await;
    scene.put_and_settle(&order(), confirmed()).await;
    scene.put(&[mail().with_deliver_after(later(scene.now(), LEASE))]).await;
    scene.clock.advance(LEASE - TICK);
    assert_eq!(stats().await.oldest_due, None, "nothing is due");
    scene.clock.advance(TICK);
    assert_eq!(stats().await.oldest_due, Some(Duration::ZERO));
    scene.clock.advance(LEASE);
    scene.put(slice::from_ref(&mail())).await;
    let stats = stats().await;
    assert_eq!(stats.oldest_due, Some(LEASE));
    let counts = Status::ALL.map(|status| (status, stats.count(status)));
    let expected = [(Status::Pending, 2), (Status::Sent, 1), (Status::Completed, 1), (Status::Failed, 1)];
    assert_eq!(counts, expected);
}
