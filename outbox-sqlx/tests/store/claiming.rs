use std::collections::HashSet;
use std::time::Duration;

use outbox_core::{Claim, ClaimMode, ClaimRequest, ClaimToken, Clock, Enqueue, OutboxStore, Outcome, Status};

use crate::harness::{
    Env, LEASE, TestDb, confirmed, failed, ids, message, messages, request, retry, row, settle,
};
use crate::on_every_database;

on_every_database!(
    claimed_rows_are_not_claimed_again_while_the_lease_lives,
    longest_due_comes_first,
    confirmed_rows_are_completed_where_nothing_is_required,
    racing_claimers_are_disjoint,
);

async fn claimed_rows_are_not_claimed_again_while_the_lease_lives<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(3)).await;
    let first = store.claim(&request(2)).await.unwrap();
    assert_eq!(ids(&first), ["m0", "m1"]);
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["m2"]);
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
    assert_eq!(row(&store, "m0").await.lease_until, Some(env.clock.now() + LEASE));

    env.clock.advance(LEASE);
    let again = store.claim(&request(9)).await.unwrap();
    assert_eq!(ids(&again), ["m0", "m1", "m2"]);
    assert_eq!((again[0].message.claim_no(), again[0].unsettled_claims), (2, 2));
    assert_ne!(again[0].claim.token, first[0].claim.token);
    assert!(store.claim(&request(0)).await.unwrap().is_empty());
}

async fn longest_due_comes_first<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let at = |seconds| env.clock.now() + chrono::TimeDelta::seconds(seconds);
    let delayed = |id, seconds| message(id).with_deliver_after(at(seconds));
    env.commit(&store, &[delayed("c", 3), delayed("a", 1), delayed("b1", 2), delayed("b2", 2)]).await;
    env.clock.advance(Duration::from_secs(10));
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["a", "b1", "b2", "c"]);
}

async fn confirmed_rows_are_completed_where_nothing_is_required<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(2)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    let settled = settle(&store, &claimed, &confirmed(&[])).await;
    assert_eq!((settled.applied, settled.lost), (2, 0));
    let row = row(&store, "m1").await;
    assert_eq!((row.status, row.lease_until, row.unsettled_claims), (Status::Completed, None, 0));
    assert_eq!((row.sent_at, row.completed_at), (Some(env.clock.now()), Some(env.clock.now())));
    assert_eq!(settle(&store, &claimed, &confirmed(&[])).await.lost, 2);
}

async fn racing_claimers_are_disjoint<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(400)).await;
    let claimers: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut taken = Vec::new();
                loop {
                    let claimed = store.claim(&request(13)).await.unwrap();
                    if claimed.is_empty() {
                        return taken;
                    }
                    taken.extend(claimed.into_iter().map(|c| c.claim.id));
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for claimer in claimers {
        all.extend(claimer.await.unwrap());
    }
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    // What another claimer had locked for a moment is left for the next sweep.
    all.extend(store.claim(&request(400)).await.unwrap().into_iter().map(|c| c.claim.id));
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 400);
    assert_eq!(all.len(), 400);
}
