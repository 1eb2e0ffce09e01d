//! How claims end.

use super::super::StoreFixture;
use super::super::scene::{
    ACK_TIMEOUT, APPLIED, LEASE, LOST, Scene, TICK, YEAR, confirmed, every_outcome, failed, mail, mails,
    order, retry,
};
use crate::claim::{Claim, ClaimToken, Outcome, RowId, Settled, Settlement};
use crate::clock::later;
use crate::state::Status;

pub async fn confirmed_without_groups_is_completed<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    let claim = scene.put_and_claim(&message).await;
    scene.clock.advance(TICK);
    assert_eq!(scene.settle(claim, confirmed()).await, APPLIED);
    let row = scene.row(&message).await;
    assert_eq!(row.status, Status::Completed);
    assert_eq!((row.sent_at, row.completed_at), (Some(scene.now()), Some(scene.now())));
    assert_eq!((row.lease_until, row.ack_due, row.unsettled_claims), (None, None, 0));
    scene.clock.advance(YEAR);
    scene.nothing_is_claimable().await;
}

pub async fn confirmed_with_groups_is_sent<F: StoreFixture>(scene: &Scene<F>) {
    let message = order();
    scene.put_and_settle(&message, confirmed()).await;
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.received), (Status::Sent, 0));
    assert_eq!(row.ack_due, Some(later(scene.now(), ACK_TIMEOUT)));
    assert_eq!((row.sent_at, row.completed_at, row.lease_until), (Some(scene.now()), None, None));
    scene.clock.advance(YEAR);
    scene.nothing_is_claimable().await;
}

pub async fn groups_of_the_writer_go_before_those_of_the_relay<F: StoreFixture>(scene: &Scene<F>) {
    let of_relay =
        || Outcome::Confirmed { required_groups: vec!["audit".to_owned()], ack_timeout: ACK_TIMEOUT };
    let (mail, order) = (mail(), order());
    scene.put_and_settle(&mail, of_relay()).await;
    scene.put_and_settle(&order, of_relay()).await;
    assert_eq!(scene.row(&mail).await.status, Status::Completed);
    let groups = scene.row(&order).await.required_groups.expect("decided at enqueue");
    assert_eq!(groups, ["inventory", "points"]);
}

pub async fn retry_is_charged_and_waits<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    scene.put_and_settle(&message, retry(LEASE, 3)).await;
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.retry_count, row.unsettled_claims), (Status::Pending, 1, 0));
    assert_eq!((row.next_retry_time, row.lease_until), (later(scene.now(), LEASE), None));
    assert_eq!(row.last_error.as_deref(), Some("no confirmation"));
    scene.clock.advance(LEASE - TICK);
    scene.nothing_is_claimable().await;
    scene.clock.advance(TICK);
    let again = scene.claim_only().await;
    assert_eq!((again.retry_count, again.unsettled_claims, again.message.claim_no()), (1, 1, 2));
}

pub async fn retry_at_the_maximum_is_failed_and_never_claimed<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    scene.put(std::slice::from_ref(&message)).await;
    for attempt in 1..=3 {
        let claimed = scene.claim_only().await;
        assert_eq!(claimed.retry_count, attempt - 1);
        assert_eq!(scene.settle(claimed.claim, retry(LEASE, 3)).await, APPLIED);
        scene.clock.advance(LEASE);
    }
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.retry_count, row.lease_until), (Status::Failed, 3, None));
    assert_eq!(row.last_error.as_deref(), Some("no confirmation"));
    scene.clock.advance(YEAR);
    scene.nothing_is_claimable().await;
}

pub async fn failed_is_final<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    scene.put_and_settle(&message, failed()).await;
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.retry_count, row.lease_until), (Status::Failed, 0, None));
    assert_eq!(row.last_error.as_deref(), Some("too large"));
    scene.clock.advance(YEAR);
    scene.nothing_is_claimable().await;
}

pub async fn released_charges_nothing<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    scene.put(std::slice::from_ref(&message)).await;
    let before = scene.row(&message).await;
    let claimed = scene.claim_only().await;
    assert_eq!(scene.settle(claimed.claim, Outcome::Released).await, APPLIED);
    let row = scene.row(&message).await;
    assert_eq!((row.status, row.retry_count, row.unsettled_claims), (Status::Pending, 0, 0));
    assert_eq!((row.next_retry_time, row.lease_until), (before.next_retry_time, None));
    assert_eq!(scene.claim_only().await.message.claim_no(), 2);
}

pub async fn expired_claim_settles_while_nobody_took_it<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    let claim = scene.put_and_claim(&message).await;
    scene.clock.advance(2 * LEASE);
    assert_eq!(scene.settle(claim, confirmed()).await, APPLIED);
    assert_eq!(scene.row(&message).await.status, Status::Completed);
}

pub async fn settlement_of_a_lost_claim_changes_nothing<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    let lost = scene.put_and_claim(&message).await;
    scene.clock.advance(LEASE);
    let holder = scene.claim_only().await.claim;
    let before = scene.row(&message).await;
    for outcome in every_outcome() {
        assert_eq!(scene.settle(lost, outcome.clone()).await, LOST, "{outcome:?}");
        assert_eq!(scene.row(&message).await, before, "{outcome:?}");
    }
    assert_eq!(scene.settle(holder, confirmed()).await, APPLIED, "the holder still holds it");
}

pub async fn settlement_of_a_claim_that_never_was_changes_nothing<F: StoreFixture>(scene: &Scene<F>) {
    let (claimed, free) = (mail(), mail());
    let claim = scene.put_and_claim(&claimed).await;
    scene.put(std::slice::from_ref(&free)).await;
    let free_id = scene.row(&free).await.id;
    let before = scene.rows().await;
    let never = [
        Claim { token: ClaimToken::random(), ..claim },
        Claim { id: free_id, ..claim },
        Claim { id: free_id, token: ClaimToken::random() },
        Claim { id: RowId(free_id.0 + 1_000), ..claim },
    ];
    for outcome in every_outcome() {
        for claim in never {
            assert_eq!(scene.settle(claim, outcome.clone()).await, LOST, "{claim:?} {outcome:?}");
        }
    }
    assert_eq!(scene.rows().await, before);
}

pub async fn settling_twice_counts_once<F: StoreFixture>(scene: &Scene<F>) {
    for first in every_outcome() {
        let message = order();
        let claim = scene.put_and_settle(&message, first.clone()).await;
        let before = scene.row(&message).await;
        for second in every_outcome() {
            assert_eq!(scene.settle(claim, second.clone()).await, LOST, "{first:?}, then {second:?}");
            assert_eq!(scene.row(&message).await, before, "{first:?}, then {second:?}");
        }
        if before.status == Status::Pending {
            scene.clock.advance(LEASE);
            let again = scene.claim_only().await.claim;
            scene.settle(again, failed()).await;
        }
    }
}

pub async fn mixed_batch_is_settled_row_by_row<F: StoreFixture>(scene: &Scene<F>) {
    let messages = mails(6);
    scene.put(&messages).await;
    let claimed = scene.claim(messages.len()).await;
    let mut claims: Vec<Claim> = claimed.iter().map(|claimed| claimed.claim).collect();
    claims[5].token = ClaimToken::random();
    let outcomes = every_outcome().into_iter().chain([failed()]);
    let settlements: Vec<_> =
        claims.into_iter().zip(outcomes).map(|(claim, outcome)| Settlement { claim, outcome }).collect();
    assert_eq!(scene.settle_all(&settlements).await, Settled { applied: 5, lost: 1 });
    let rows = scene.rows().await;
    let now: Vec<_> = rows.iter().map(|r| (r.status, r.retry_count, r.lease_until.is_some())).collect();
    let expected = [
        (Status::Completed, 0, false),
        (Status::Pending, 1, false),
        (Status::Failed, 1, false),
        (Status::Failed, 0, false),
        (Status::Pending, 0, false),
        (Status::Pending, 0, true),
    ];
    assert_eq!(now, expected);
}

/// Brokers answer with whatever they like; a text that the database does not take must not keep the row from
/// being settled. It may be shortened.
pub async fn any_error_text_is_settled<F: StoreFixture>(scene: &Scene<F>) {
    for error in ["", "é🦀'\"\\\n", "a\0b", &"é".repeat(100_000)] {
        let message = mail();
        scene.put_and_settle(&message, Outcome::Failed { error: error.to_owned() }).await;
        let row = scene.row(&message).await;
        let start: String = error.chars().take(1).collect();
        assert_eq!(row.status, Status::Failed);
        assert!(row.last_error.is_some_and(|kept| kept.starts_with(&start)), "the text is kept");
    }
}
