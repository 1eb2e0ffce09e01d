//! Taking rows, and keeping them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::StoreFixture;
use super::super::scene::{LEASE, LOST, SUSPECT_AFTER, Scene, TICK, confirmed, ids, mail, mails, request};
use crate::claim::{Claim, ClaimMode, ClaimRequest, ClaimToken, Claimed, Outcome, RowId};
use crate::clock::later;
use crate::store::OutboxStore;

pub async fn longest_due_is_claimed_first<F: StoreFixture>(scene: &Scene<F>) {
    let due_in = |seconds: u32| mail().with_deliver_after(later(scene.now(), seconds * LEASE));
    let [second, third, first] = [due_in(2), due_in(3), due_in(1)];
    scene.put(&[second.clone(), third.clone(), first.clone()]).await;
    scene.clock.advance(4 * LEASE);
    let last = mail();
    scene.put(std::slice::from_ref(&last)).await;
    assert_eq!(claimed_ids(&scene.claim(2).await), ids([&first, &second]));
    assert_eq!(claimed_ids(&scene.claim(2).await), ids([&third, &last]));
}

pub async fn limit_is_kept<F: StoreFixture>(scene: &Scene<F>) {
    let messages = mails(5);
    scene.put(&messages).await;
    assert_eq!(claimed_ids(&scene.claim(2).await), ids(&messages[..2]));
    assert_eq!(claimed_ids(&scene.claim(10).await), ids(&messages[2..]));
    scene.nothing_is_claimable().await;
}

pub async fn claimed_is_not_claimable_before_its_lease_ends<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    scene.put_and_claim(&message).await;
    assert_eq!(scene.row(&message).await.lease_until, Some(later(scene.now(), LEASE)));
    scene.nothing_is_claimable().await;
    scene.clock.advance(LEASE - TICK);
    scene.nothing_is_claimable().await;
    assert_eq!(scene.fixture.other().claim(&request(10)).await.unwrap().len(), 0);
    scene.clock.advance(TICK);
    scene.claim_only().await;
}

pub async fn expired_lease_is_claimed_under_a_new_token<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    let lost = scene.put_and_claim(&message).await;
    scene.clock.advance(LEASE);
    let again = scene.claim_only().await;
    assert_eq!(again.claim.id, lost.id);
    assert_ne!(again.claim.token, lost.token);
    assert_eq!((again.message.claim_no(), again.unsettled_claims, again.retry_count), (2, 2, 0));
    let row = scene.row(&message).await;
    assert_eq!((row.message.claim_no(), row.unsettled_claims, row.retry_count), (2, 2, 0));
}

pub async fn racing_handles_claim_disjointly<F: StoreFixture>(scene: &Scene<F>) {
    const ROWS: usize = 300;
    let messages = mails(ROWS);
    scene.put(&messages).await;
    let handles = [scene.fixture.store(), scene.fixture.other()];
    let racers: Vec<_> = (0..6).map(|n| tokio::spawn(claim_all(Arc::clone(&handles[n % 2])))).collect();
    let mut claimed = Vec::new();
    for racer in racers {
        claimed.extend(racer.await.expect("no claim fails in a race"));
    }
    // A claim passes over rows that another one holds a lock on, so that a few may be left.
    claimed.extend(scene.claim(ROWS).await);
    assert_eq!(claimed.len(), ROWS, "every row is claimed once");
    let unique: BTreeSet<&str> = claimed_ids(&claimed).into_iter().collect();
    assert_eq!(unique, ids(&messages).into_iter().collect());
}

async fn claim_all<S: OutboxStore>(store: Arc<S>) -> Vec<Claimed> {
    let mut all = Vec::new();
    loop {
        let claimed = store.claim(&request(7)).await.unwrap();
        if claimed.is_empty() {
            return all;
        }
        all.extend(claimed);
    }
}

pub async fn only_the_holder_renews<F: StoreFixture>(scene: &Scene<F>) {
    let message = mail();
    let claim = scene.put_and_claim(&message).await;
    let stranger = Claim { token: ClaimToken::random(), ..claim };
    let nowhere = Claim { id: RowId(claim.id.0 + 1_000), ..claim };
    scene.clock.advance(LEASE / 2);
    let held = scene.store().renew(&[stranger, claim, nowhere], LEASE).await.unwrap();
    assert_eq!(held, [claim]);
    assert_eq!(scene.row(&message).await.lease_until, Some(later(scene.now(), LEASE)));
    scene.clock.advance(LEASE - TICK);
    scene.nothing_is_claimable().await;
    scene.clock.advance(TICK);
    let next = scene.claim_only().await.claim;
    let before = scene.row(&message).await;
    assert_eq!(scene.store().renew(&[claim], 2 * LEASE).await.unwrap(), []);
    assert_eq!(scene.row(&message).await, before);
    assert_eq!(scene.store().renew(&[next], LEASE).await.unwrap(), [next]);
    scene.settle(next, confirmed()).await;
    assert_eq!(scene.store().renew(&[next], LEASE).await.unwrap(), []);
}

pub async fn expired_claim_is_renewed_while_nobody_took_it<F: StoreFixture>(scene: &Scene<F>) {
    let claim = scene.put_and_claim(&mail()).await;
    scene.clock.advance(2 * LEASE);
    assert_eq!(scene.store().renew(&[claim], LEASE).await.unwrap(), [claim]);
    scene.nothing_is_claimable().await;
}

pub async fn suspects_are_claimed_only_when_asked_for<F: StoreFixture>(scene: &Scene<F>) {
    let suspect = mail();
    scene.put_and_claim(&suspect).await;
    for _ in 1..SUSPECT_AFTER {
        scene.clock.advance(LEASE);
        scene.claim_only().await;
    }
    scene.clock.advance(LEASE);
    let ordinary = mail();
    scene.put(std::slice::from_ref(&ordinary)).await;
    assert_eq!(scene.claim_only().await.message.msg_id(), ordinary.msg_id());
    let claimed = scene.store().claim(&suspects()).await.unwrap();
    assert_eq!(claimed_ids(&claimed), [suspect.msg_id()]);
    assert_eq!(claimed[0].unsettled_claims, SUSPECT_AFTER + 1);
    assert_eq!(scene.store().claim(&suspects()).await.unwrap().len(), 0, "a suspect's lease holds, too");
    assert_ne!(scene.settle(claimed[0].claim, Outcome::Released).await, LOST);
    assert_eq!(scene.claim_only().await.message.msg_id(), suspect.msg_id());
}

fn suspects() -> ClaimRequest {
    ClaimRequest { mode: ClaimMode::Suspects { suspect_after: SUSPECT_AFTER }, ..request(10) }
}

fn claimed_ids(claimed: &[Claimed]) -> Vec<&str> {
    ids(claimed.iter().map(|claimed| &claimed.message))
}
