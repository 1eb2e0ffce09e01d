use std::time::Duration;

use chrono::TimeDelta;
use outbox_core::{
    Clock, Filter, OutboxStore, Outcome, Policies, Policy, Receipt, Requeued, Settled, Settlement, Status,
};

use crate::harness::{
    Env, LEASE, TestDb, confirmed, failed, ids, message, messages, request, retry, row, settle,
};
use crate::on_every_database;

on_every_database!(
    confirmed_rows_are_completed_where_nothing_is_required,
    confirmed_rows_wait_for_their_groups,
    undecided_rows_are_decided_at_confirm,
    each_retry_has_its_own_delay_and_error,
    the_last_attempt_fails,
    released_rows_are_charged_nothing,
    a_stale_outcome_changes_nothing,
    mixed_batch_of_several_claims_in_one_call,
    the_first_outcome_of_a_claim_counts,
    errors_of_any_text_can_be_stored,
    requeue_is_fenced_by_the_claim_number,
);

async fn confirmed_rows_are_completed_where_nothing_is_required<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await.with_policies(Policies::default());
    env.commit(&store, &messages(2)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    // What was decided at enqueue holds, whatever the relay's policy says by now.
    let settled = settle(&store, &claimed, &confirmed(&["late"])).await;
    assert_eq!(settled, Settled { applied: 2, lost: 0 });
    let row = row(&store, "m1").await;
    assert_eq!((row.status, row.lease_until, row.unsettled_claims), (Status::Completed, None, 0));
    assert_eq!((row.sent_at, row.completed_at), (Some(env.clock.now()), Some(env.clock.now())));
    assert_eq!((row.required_groups, row.ack_due), (Some(Vec::new()), None));
    assert!(store.settle(&[]).await.unwrap() == Settled::default());
}

async fn confirmed_rows_wait_for_their_groups<DB: TestDb>(env: Env<DB>) {
    let policy = Policy::default().with_required_groups(["points", "inventory"]);
    let store = env.migrated().await.with_policies(Policies::default().with_rule("order.*", policy));
    env.commit(&store, &messages(2)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    let report = store
        .record_receipts(&["inventory", "points"].map(|group| Receipt::handled("m0", group, 1))[..1])
        .await
        .unwrap();
    assert_eq!((report.recorded, report.completed), (1, 0));
    settle(&store, &claimed, &confirmed(&[])).await;
    let row = row(&store, "m0").await;
    assert_eq!((row.status, row.received, row.completed_at), (Status::Sent, 1, None));
    assert_eq!(row.required_groups.unwrap(), ["inventory", "points"]);
    assert_eq!(
        (row.sent_at, row.ack_due),
        (Some(env.clock.now()), Some(env.clock.now() + TimeDelta::hours(1)))
    );
}

async fn undecided_rows_are_decided_at_confirm<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(3)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    let all = ["a", "b"].map(|group| Receipt::handled("m0", group, 1));
    store.record_receipts(&all).await.unwrap();
    store.record_receipts(&[Receipt::handled("m1", "b", 1), Receipt::handled("m1", "c", 1)]).await.unwrap();
    assert_eq!(row(&store, "m0").await.status, Status::Pending);

    let settled = settle(&store, &claimed, &confirmed(&["b", "a", "b"])).await;
    assert_eq!(settled, Settled { applied: 3, lost: 0 });
    let (m0, m1, m2) = (row(&store, "m0").await, row(&store, "m1").await, row(&store, "m2").await);
    assert_eq!((m0.status, m0.received), (Status::Completed, 2));
    assert_eq!((m1.status, m1.received), (Status::Sent, 1));
    assert_eq!((m2.status, m2.received), (Status::Sent, 0));
    assert_eq!(m2.required_groups.unwrap(), ["a", "b"]);
    store.record_receipts(&[Receipt::handled("m1", "a", 1)]).await.unwrap();
    assert_eq!(row(&store, "m1").await.status, Status::Completed);
}

async fn each_retry_has_its_own_delay_and_error<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(50)).await;
    let claimed = store.claim(&request(50)).await.unwrap();
    let outcome = |n: usize| Outcome::Retry {
        delay: Duration::new(60, 1_000 * u32::try_from(n).unwrap() + 999_999),
        max_attempts: 5,
        error: format!("nacked {n}"),
    };
    let settlements: Vec<Settlement> =
        claimed.iter().enumerate().map(|(n, c)| Settlement { claim: c.claim, outcome: outcome(n) }).collect();
    assert_eq!(store.settle(&settlements).await.unwrap().applied, 50);
    for n in [0, 7, 49_i64] {
        let row = row(&store, &format!("m{n}")).await;
        let delay = TimeDelta::seconds(60) + TimeDelta::microseconds(999 + n);
        assert_eq!(row.next_retry_time, env.clock.now() + delay);
        assert_eq!((row.status, row.retry_count, row.lease_until), (Status::Pending, 1, None));
        assert_eq!(row.last_error, Some(format!("nacked {n}")));
    }
    env.clock.advance(Duration::from_secs(60));
    assert!(store.claim(&request(9)).await.unwrap().is_empty());
    env.clock.advance(Duration::from_micros(1_000));
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["m0", "m1"]);
}

async fn the_last_attempt_fails<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(2)).await;
    for attempt in 1..=5 {
        let claimed = store.claim(&request(9)).await.unwrap();
        assert_eq!(claimed.len(), 2, "attempt {attempt}");
        let (m0, m1): (Vec<_>, Vec<_>) = claimed.into_iter().partition(|c| c.message.msg_id() == "m0");
        assert_eq!(m0[0].retry_count, attempt - 1);
        settle(&store, &m0, &retry("down")).await;
        settle(&store, &m1, &Outcome::Released).await;
        env.clock.advance(Duration::from_secs(60));
    }
    let given_up = row(&store, "m0").await;
    assert_eq!((given_up.status, given_up.retry_count), (Status::Failed, 5));
    assert_eq!(given_up.last_error.as_deref(), Some("down"));
    assert_eq!((given_up.lease_until, given_up.unsettled_claims), (None, 0));
    env.clock.advance(Duration::from_secs(100_000));
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["m1"]);
}

async fn released_rows_are_charged_nothing<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(1)).await;
    let before = row(&store, "m0").await;
    let claimed = store.claim(&request(9)).await.unwrap();
    settle(&store, &claimed, &Outcome::Released).await;
    let mut after = row(&store, "m0").await;
    assert_eq!(after.message.claim_no(), 1);
    after.message = before.message.clone();
    assert_eq!(after, before);
    assert_eq!(store.claim(&request(9)).await.unwrap()[0].unsettled_claims, 1);
}

async fn a_stale_outcome_changes_nothing<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(2)).await;
    let stalled = store.claim(&request(9)).await.unwrap();
    env.clock.advance(LEASE);
    let live = store.claim(&request(1)).await.unwrap();
    let m1 = store.claim(&request(1)).await.unwrap();
    settle(&store, &m1, &confirmed(&["g"])).await;
    let outcomes = [confirmed(&[]), confirmed(&["g"]), retry("x"), failed("x"), Outcome::Released];
    let before = store.find(&Filter::default()).await.unwrap();
    for outcome in outcomes {
        assert_eq!(settle(&store, &stalled, &outcome).await, Settled { applied: 0, lost: 2 }, "{outcome:?}");
        assert_eq!(store.find(&Filter::default()).await.unwrap(), before, "{outcome:?}");
    }
    assert_eq!(settle(&store, &live, &confirmed(&[])).await.applied, 1);
}

async fn mixed_batch_of_several_claims_in_one_call<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(12)).await;
    let mut claimed = Vec::new();
    for _ in 0..3 {
        claimed.extend(store.claim(&request(4)).await.unwrap());
    }
    let outcomes = [confirmed(&[]), confirmed(&["g"]), retry("r"), failed("f")];
    let settlements: Vec<Settlement> = claimed
        .iter()
        .zip(outcomes.iter().cycle())
        .map(|(c, outcome)| Settlement { claim: c.claim, outcome: outcome.clone() })
        .collect();
    assert_eq!(store.settle(&settlements).await.unwrap(), Settled { applied: 12, lost: 0 });
    for n in 0..12 {
        let row = row(&store, &format!("m{n}")).await;
        let expected = [Status::Completed, Status::Sent, Status::Pending, Status::Failed][n % 4];
        assert_eq!(row.status, expected, "m{n}");
        assert_eq!((row.lease_until, row.unsettled_claims), (None, 0));
    }
}

async fn the_first_outcome_of_a_claim_counts<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(1)).await;
    let claim = store.claim(&request(9)).await.unwrap()[0].claim;
    let both = [failed("first"), confirmed(&[])].map(|outcome| Settlement { claim, outcome });
    assert_eq!(store.settle(&both).await.unwrap(), Settled { applied: 1, lost: 1 });
    assert_eq!(row(&store, "m0").await.last_error.as_deref(), Some("first"));
}

async fn errors_of_any_text_can_be_stored<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(3)).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    let texts = ["a\0b", "\"'\\\u{1F600}\n\u{7f}", &"long ".repeat(100_000)];
    let settlements: Vec<Settlement> = claimed
        .iter()
        .zip(texts)
        .map(|(c, error)| Settlement { claim: c.claim, outcome: failed(error) })
        .collect();
    assert_eq!(store.settle(&settlements).await.unwrap().applied, 3);
    assert_eq!(row(&store, "m0").await.last_error.as_deref(), Some("a\u{fffd}b"));
    assert_eq!(row(&store, "m1").await.last_error.as_deref(), Some(texts[1]));
    assert!(row(&store, "m2").await.last_error.unwrap().starts_with("long long"));
}

async fn requeue_is_fenced_by_the_claim_number<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &[message("a")]).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    let id = claimed[0].claim.id;
    assert_eq!(store.requeue(id, 1).await.unwrap(), Requeued::Stale);
    settle(&store, &claimed, &failed("no")).await;
    env.clock.advance(Duration::from_secs(5));
    assert_eq!(store.requeue(id, 2).await.unwrap(), Requeued::Stale);
    assert_eq!(store.requeue(id, u64::MAX).await.unwrap(), Requeued::Stale);
    assert_eq!(store.requeue(id, 1).await.unwrap(), Requeued::Done);
    assert_eq!(store.requeue(id, 1).await.unwrap(), Requeued::Stale);
    let row = row(&store, "a").await;
    assert_eq!((row.status, row.retry_count, row.message.claim_no()), (Status::Pending, 0, 2));
    assert_eq!(row.next_retry_time, env.clock.now());
    assert_eq!(store.claim(&request(9)).await.unwrap()[0].message.claim_no(), 3);
}
