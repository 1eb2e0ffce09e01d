//! Two handles at the same row at the same time, some rounds of each race.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::slice;
use std::task::Poll;
use std::time::Duration;

use super::super::StoreFixture;
use super::super::scene::{
    LEASE, LOST, Scene, confirmed, every_outcome, failed, handled, mail, mails, order, request, retry,
};
use crate::claim::{Claimed, Settlement};
use crate::state::Status;
use crate::store::{OutboxStore, Requeued};

const ROUNDS: usize = 20;

/// Either the old holder's outcome counts or a new claim begins; never both, never neither.
pub async fn settle_races_reclaim<F: StoreFixture>(scene: &Scene<F>) {
    for round in 0..ROUNDS {
        let outcome = [confirmed(), failed(), retry(LEASE, 1)][round % 3].clone();
        let message = mail();
        let claim = scene.put_and_claim(&message).await;
        scene.clock.advance(LEASE);
        let (one, other) = (scene.fixture.store(), scene.fixture.other());
        let settling =
            tokio::spawn(async move { one.settle(&[Settlement { claim, outcome }]).await.unwrap() });
        let claiming = tokio::spawn(async move { other.claim(&request(1)).await.unwrap() });
        let (settled, mut claimed) = (settling.await.unwrap(), claiming.await.unwrap());
        assert_eq!(settled.applied + claimed.len(), 1, "{settled:?}, {} claimed", claimed.len());
        if let Some(Claimed { claim, .. }) = claimed.pop() {
            assert_eq!(scene.row(&message).await.status, Status::Pending);
            scene.settle(claim, failed()).await;
        }
    }
}

pub async fn settle_races_settle<F: StoreFixture>(scene: &Scene<F>) {
    for round in 0..ROUNDS {
        let message = mail();
        let claim = scene.put_and_claim(&message).await;
        let outcomes = [every_outcome()[round % 5].clone(), failed()];
        let racers: Vec<_> = [scene.fixture.store(), scene.fixture.other()]
            .into_iter()
            .zip(outcomes)
            .map(|(store, outcome)| (store, Settlement { claim, outcome }))
            .map(|(store, settlement)| {
                tokio::spawn(async move { store.settle(&[settlement]).await.unwrap() })
            })
            .collect();
        let mut applied = 0;
        for racer in racers {
            applied += racer.await.unwrap().applied;
        }
        assert_eq!(applied, 1);
        let row = scene.row(&message).await;
        assert_eq!(row.lease_until, None);
        if row.status == Status::Pending {
            scene.clock.advance(LEASE);
            let again = scene.claim_only().await.claim;
            scene.settle(again, failed()).await;
        }
    }
}

/// Whichever comes first, the row ends completed.
pub async fn confirm_races_last_receipt<F: StoreFixture>(scene: &Scene<F>) {
    for _ in 0..ROUNDS {
        let message = order();
        let claim = scene.put_and_claim(&message).await;
        let receipts = ["inventory", "points"].map(|group| handled(&message, group));
        scene.receive(&receipts[..1]).await;
        let (one, other) = (scene.fixture.store(), scene.fixture.other());
        let settlement = Settlement { claim, outcome: confirmed() };
        let settling = tokio::spawn(async move { one.settle(&[settlement]).await.unwrap() });
        let receiving = tokio::spawn(async move { other.record_receipts(&receipts[1..]).await.unwrap() });
        let (_, report) = (settling.await.unwrap(), receiving.await.unwrap());
        assert_eq!((report.recorded, report.completed), (1, 1));
        let row = scene.row(&message).await;
        assert_eq!((row.status, row.received, row.lease_until), (Status::Completed, 2, None));
    }
}

pub async fn requeue_races_requeue<F: StoreFixture>(scene: &Scene<F>) {
    for _ in 0..ROUNDS {
        let message = mail();
        let id = scene.put_and_settle(&message, failed()).await.id;
        let racers = [scene.fixture.store(), scene.fixture.other()]
            .map(|store| tokio::spawn(async move { store.requeue(id, 1).await.unwrap() }));
        let mut done = 0;
        for racer in racers {
            done += usize::from(racer.await.unwrap() == Requeued::Done);
        }
        assert_eq!(done, 1);
        assert_eq!(scene.row(&message).await.message.claim_no(), 2);
        let again = scene.claim_only().await.claim;
        scene.settle(again, confirmed()).await;
    }
}

/// A call that is dropped while it is under way may still have its effect, even a little later.
pub async fn abandoned_calls_leave_rows_as_before_or_after<F: StoreFixture>(scene: &Scene<F>) {
    for polls in 0..ROUNDS {
        let message = mail();
        scene.put(slice::from_ref(&message)).await;
        abandoned_after(polls, scene.store().claim(&request(10))).await;
        let claimed = claim_patiently(scene).await;
        assert_eq!(claimed.message.msg_id(), message.msg_id());
        assert!(matches!(claimed.message.claim_no(), 1 | 2));
        let settlement = Settlement { claim: claimed.claim, outcome: confirmed() };
        abandoned_after(polls, scene.store().settle(slice::from_ref(&settlement))).await;
        let before = scene.row(&message).await;
        let settled = scene.settle_all(slice::from_ref(&settlement)).await;
        assert_eq!(settled.applied + settled.lost, 1);
        assert!(before.status != Status::Completed || settled == LOST, "it was settled twice");
        assert_eq!(scene.row(&message).await.status, Status::Completed);
    }
}

async fn abandoned_after<T>(polls: usize, call: impl Future<Output = T>) {
    let (mut call, mut left) = (pin!(call), polls);
    poll_fn(|context| {
        let ended = left == 0 || call.as_mut().poll(context).is_ready();
        left = left.saturating_sub(1);
        if ended { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The only row, as soon as no abandoned call holds it any more.
async fn claim_patiently<F: StoreFixture>(scene: &Scene<F>) -> Claimed {
    for _ in 0..1_000 {
        scene.clock.advance(LEASE);
        if let Some(claimed) = scene.claim(10).await.pop() {
            return claimed;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the row stays locked");
}

/// Nothing that is committed while others claim is skipped for good, or claimed twice.
pub async fn enqueue_races_claim<F: StoreFixture>(scene: &Scene<F>) {
    let other = scene.fixture.other();
    let claiming = tokio::spawn(async move {
        let mut claimed = 0;
        while claimed < ROUNDS * 5 {
            let rows = other.claim(&request(3)).await.unwrap();
            claimed += rows.len();
            let settle = |row: Claimed| Settlement { claim: row.claim, outcome: confirmed() };
            let settlements: Vec<_> = rows.into_iter().map(settle).collect();
            assert_eq!(other.settle(&settlements).await.unwrap().lost, 0);
            tokio::task::yield_now().await;
        }
    });
    for _ in 0..ROUNDS {
        scene.put(&mails(5)).await;
    }
    claiming.await.expect("everything is claimed once");
    assert_eq!(scene.store().stats().await.unwrap().count(Status::Completed), ROUNDS as u64 * 5);
    scene.nothing_is_claimable().await;
}
