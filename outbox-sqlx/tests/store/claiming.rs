use std::collections::HashSet;
use std::time::Duration;

use outbox_core::{Claim, ClaimMode, ClaimRequest, ClaimToken, Clock, Enqueue, OutboxStore, RowId};

use crate::harness::{
    Env, LEASE, TestDb, claim_until_empty, confirmed, ids, message, messages, request, row, settle,
};
use crate::on_every_database;

on_every_database!(
    claimed_rows_are_not_claimed_again_while_the_lease_lives,
    longest_due_comes_first,
    racing_claimers_are_disjoint,
    inserted_first_and_committed_last_is_not_skipped,
    suspects_are_claimed_apart,
    renewed_claims_live_longer_and_lost_ones_are_told,
    a_stranger_with_odd_values_harms_nobody,
);

async fn claimed_rows_are_not_claimed_again_while_the_lease_lives<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(3)).await;
    let first = store.claim(&request(2)).await.unwrap();
    assert_eq!(ids(&first), ["m0", "m1"]);
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["m2"]);
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
    assert_eq!(row(&store, "m0").await.lease_until, Some(env.clock.now() + LEASE));

    env.clock.advance(LEASE - Duration::from_micros(1));
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
    env.clock.advance(Duration::from_micros(1));
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

async fn racing_claimers_are_disjoint<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(400)).await;
    let claimers: Vec<_> = (0..8).map(|_| tokio::spawn(claim_until_empty(store.clone(), 13))).collect();
    let mut all = Vec::new();
    for claimer in claimers {
        all.extend(claimer.await.unwrap());
    }
    // What another claimer had locked for a moment is left for the next sweep.
    all.extend(claim_until_empty(store, 400).await);
    assert_eq!(all.len(), 400);
    assert_eq!(all.into_iter().collect::<HashSet<_>>().len(), 400);
}

/// Ids are given at INSERT and appear at COMMIT: a relay that remembered the highest id would miss this row.
async fn inserted_first_and_committed_last_is_not_skipped<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let mut slow = env.begin().await;
    if DB::NAME == "SQLite" {
        // Its one writer at a time cannot interleave: only the claim can come in between.
        assert!(store.claim(&request(9)).await.unwrap().is_empty());
        store.enqueue(&mut slow, &[message("slow")]).await.unwrap();
    } else {
        store.enqueue(&mut slow, &[message("slow")]).await.unwrap();
        env.commit(&store, &[message("fast")]).await;
        let claimed = store.claim(&request(9)).await.unwrap();
        assert_eq!(ids(&claimed), ["fast"]);
        assert_eq!(settle(&store, &claimed, &confirmed(&[])).await.applied, 1);
    }
    slow.commit().await.unwrap();
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["slow"]);
}

async fn suspects_are_claimed_apart<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &[message("killer")]).await;
    for _ in 0..3 {
        assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["killer"]);
        env.clock.advance(LEASE);
    }
    env.commit(&store, &[message("innocent")]).await;
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["innocent"]);
    let suspects = ClaimRequest { mode: ClaimMode::Suspects { suspect_after: 3 }, ..request(9) };
    let claimed = store.claim(&suspects).await.unwrap();
    assert_eq!(ids(&claimed), ["killer"]);
    assert_eq!(claimed[0].unsettled_claims, 4);
}

async fn renewed_claims_live_longer_and_lost_ones_are_told<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(4)).await;
    let first = store.claim(&request(2)).await.unwrap();
    let second = store.claim(&request(2)).await.unwrap();
    settle(&store, &first[..1], &confirmed(&[])).await;
    env.clock.advance(LEASE / 2);
    let claims: Vec<Claim> = [&second[1], &first[0], &first[1], &second[0]].map(|c| c.claim).into();
    let wrong = Claim { token: ClaimToken::random(), ..second[0].claim };
    let nowhere = Claim { id: RowId(987_654), ..second[0].claim };
    let asked = [claims.clone(), vec![wrong, nowhere]].concat();
    let held = store.renew(&asked, LEASE).await.unwrap();
    assert_eq!(held, [claims[0], claims[2], claims[3]]);
    assert!(store.renew(&[], LEASE).await.unwrap().is_empty());

    env.clock.advance(LEASE / 2);
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
    env.clock.advance(LEASE / 2);
    assert_eq!(store.claim(&request(9)).await.unwrap().len(), 3);
    assert!(store.renew(&claims, LEASE).await.unwrap().is_empty());
}

async fn a_stranger_with_odd_values_harms_nobody<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let (infinity, nothing) = match DB::NAME {
        "SQLite" => ("'0000-00-00 99:99:99'", "'null'"),
        "MySQL" => ("'1000-01-01'", "'null'"),
        _ => ("'-infinity'", "'null'"),
    };
    env.exec(&format!(
        "INSERT INTO {{t}} (msg_id, biz_type, biz_id, payload, headers, created_at, next_retry_time, required_groups)
         VALUES ('odd', '', '', {nothing}, '{{\"n\": 1, \"list\": [1, null], \"s\": \"x\"}}', {infinity}, {infinity}, '[7]')"
    ))
    .await
    .unwrap();
    env.commit(&store, &[message("even")]).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    assert_eq!(ids(&claimed), ["odd", "even"]);
    let headers = claimed[0].message.headers();
    assert_eq!((&*headers["n"], &*headers["list"], &*headers["s"]), ("1", "[1,null]", "x"));
    assert_eq!(row(&store, "odd").await.required_groups, Some(vec!["7".to_owned()]));
    assert_eq!(settle(&store, &claimed, &confirmed(&[])).await.applied, 2);
    for wrong in [
        "headers) VALUES ('y', 'a', 'b', '1', '[1]')",
        "payload_bin) VALUES ('y', 'a', 'b', '1', '1')",
        "status) VALUES ('y', 'a', 'b', '1', 5)",
        "required_groups) VALUES ('y', 'a', 'b', '1', '{}')",
    ] {
        let insert = format!("INSERT INTO {{t}} (msg_id, biz_type, biz_id, payload, {wrong}");
        assert!(env.exec(&insert).await.is_err(), "{wrong}");
    }
    assert!(env.exec("INSERT INTO {t} (msg_id, biz_type, biz_id) VALUES ('y', 'a', 'b')").await.is_err());
}
