//! The invariants of a row's life, each on random lives.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod walk;

use std::collections::BTreeMap;
use std::time::Duration;

use outbox_core::state::{Event, Next, RowState, Stale, apply};
use outbox_core::{ClaimToken, Outcome, Status, Timestamp};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use walk::{MAX_ATTEMPTS, MAX_REDELIVERIES, Transition, lives};

/// Every row that a life passes through.
fn rows(life: &[Transition]) -> impl Iterator<Item = &RowState> {
    life.iter().map(|transition| &transition.before).chain(life.last().and_then(Transition::after))
}

/// Every change of a row that stays in the table.
fn changes(life: &[Transition]) -> impl Iterator<Item = (&RowState, &Event, &RowState, Timestamp)> {
    life.iter().filter_map(|t| Some((&t.before, &t.event, t.after()?, t.now)))
}

fn all_received(row: &RowState) -> bool {
    row.required_groups.as_ref().is_some_and(|groups| groups.is_subset(&row.receipts))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn completed_stays_as_it_is_until_archived(life in lives()) {
        for t in life.iter().filter(|t| t.before.status == Status::Completed) {
            let more_receipts = |row: &RowState| RowState { receipts: row.receipts.clone(), ..t.before.clone() };
            match &t.end {
                Ok(Next::Row(after)) => {
                    let is_receipt = matches!(t.event, Event::Receipt { .. });
                    prop_assert!(is_receipt);
                    prop_assert_eq!(after, &more_receipts(after));
                }
                Ok(end) => prop_assert_eq!(end, &Next::Archived),
                Err(Stale) => {}
            }
        }
    }

    #[test]
    fn each_change_of_status_has_its_events(life in lives()) {
        use Status::{Completed, Failed, Pending, Sent};
        for (before, event, after, _) in changes(&life).filter(|(before, _, after, _)| before.status != after.status) {
            let right = match (before.status, after.status) {
                (Pending, Sent) => matches!(event, Event::Settle { outcome: Outcome::Confirmed { .. }, .. }),
                (Pending, Completed) => {
                    matches!(event, Event::Settle { outcome: Outcome::Confirmed { .. }, .. } | Event::Receipt { .. })
                }
                (Pending, Failed) => matches!(event, Event::Settle { .. } | Event::Reject { .. }),
                (Sent, Pending) => matches!(event, Event::Redeliver { .. }),
                (Sent, Failed) => matches!(event, Event::Reject { .. }),
                (Failed, Pending) => matches!(event, Event::Requeue { .. }),
                (Sent | Failed, Completed) => matches!(event, Event::Receipt { .. }),
                _ => false,
            };
            prop_assert!(right, "{} to {} by {event:?}", before.status, after.status);
        }
    }

    #[test]
    fn claim_numbers_grow_by_claim_requeue_and_redelivery_only(life in lives()) {
        for (before, event, after, _) in changes(&life) {
            let counts = matches!(event, Event::Claim { .. } | Event::Requeue { .. } | Event::Redeliver { .. });
            prop_assert_eq!(after.claim_no, before.claim_no + u64::from(counts));
        }
    }

    #[test]
    fn attempts_grow_by_retry_only_and_stop_at_the_maximum(life in lives()) {
        for (before, event, after, _) in changes(&life) {
            let expected = match event {
                Event::Settle { outcome: Outcome::Retry { .. }, .. } => before.retry_count + 1,
                Event::Requeue { .. } | Event::Redeliver { .. } => 0,
                _ => before.retry_count,
            };
            prop_assert_eq!(after.retry_count, expected);
            prop_assert!(after.retry_count <= MAX_ATTEMPTS);
            prop_assert!(after.status != Status::Pending || after.retry_count < MAX_ATTEMPTS);
        }
    }

    #[test]
    fn only_a_pending_row_is_held(life in lives()) {
        for row in rows(&life) {
            prop_assert_eq!(row.claim_token.is_some(), row.lease_until.is_some());
            prop_assert!(row.claim_token.is_none() || row.status == Status::Pending);
            prop_assert!(row.claim_token.is_none() || row.unsettled_claims > 0);
        }
    }

    #[test]
    fn a_claim_takes_what_is_due_and_free_and_nothing_else(life in lives()) {
        for t in &life {
            let Event::Claim { token, lease } = &t.event else { continue };
            let before = &t.before;
            let free = before.lease_until.is_none_or(|until| until <= t.now);
            let due = before.status == Status::Pending && before.next_retry_time <= t.now;
            prop_assert_eq!(t.end.is_ok(), free && due);
            let Some(after) = t.after() else { continue };
            prop_assert_eq!(after, &RowState {
                claim_token: Some(*token),
                lease_until: Some(t.now + *lease),
                claim_no: before.claim_no + 1,
                unsettled_claims: before.unsettled_claims + 1,
                ..before.clone()
            });
        }
    }

    #[test]
    fn renewing_and_settling_need_the_token(life in lives()) {
        for t in &life {
            if let Event::Renew { token, .. } | Event::Settle { token, .. } = &t.event {
                let holds = t.before.status == Status::Pending && t.before.claim_token == Some(*token);
                prop_assert_eq!(t.end.is_ok(), holds);
            }
        }
    }

    #[test]
    fn renewing_moves_the_end_of_the_lease_only(life in lives()) {
        for (before, event, after, now) in changes(&life) {
            let Event::Renew { lease, .. } = event else { continue };
            prop_assert_eq!(after, &RowState { lease_until: Some(now + *lease), ..before.clone() });
        }
    }

    #[test]
    fn every_outcome_ends_the_claim_and_does_what_it_says(life in lives()) {
        for (before, event, after, now) in changes(&life) {
            let Event::Settle { outcome, .. } = event else { continue };
            let free = RowState { claim_token: None, lease_until: None, unsettled_claims: 0, ..before.clone() };
            let expected = match outcome {
                Outcome::Released => free,
                Outcome::Failed { error } => {
                    RowState { status: Status::Failed, last_error: Some(error.clone()), ..free }
                }
                Outcome::Retry { delay, error, .. } => {
                    let retry_count = before.retry_count + 1;
                    let failed = RowState { last_error: Some(error.clone()), retry_count, ..free };
                    match retry_count < MAX_ATTEMPTS {
                        true => RowState { next_retry_time: now + *delay, ..failed },
                        false => RowState { status: Status::Failed, ..failed },
                    }
                }
                Outcome::Confirmed { required_groups, ack_timeout } => {
                    let asked = || required_groups.iter().cloned().collect();
                    let groups = before.required_groups.clone().unwrap_or_else(asked);
                    let sent = RowState { required_groups: Some(groups), sent_at: Some(now), ..free };
                    match all_received(&sent) {
                        true => RowState { status: Status::Completed, completed_at: Some(now), ..sent },
                        false => RowState { status: Status::Sent, ack_due: Some(now + *ack_timeout), ..sent },
                    }
                }
            };
            prop_assert_eq!(after, &expected);
        }
    }

    #[test]
    fn a_receipt_counts_once_and_the_last_required_one_completes(life in lives()) {
        for t in &life {
            let Event::Receipt { group } = &t.event else { continue };
            prop_assert_eq!(t.end.is_ok(), !t.before.receipts.contains(group));
            let Some(after) = t.after() else { continue };
            let mut receipts = t.before.receipts.clone();
            receipts.insert(group.clone());
            prop_assert_eq!(&after.receipts, &receipts);
            let someone = after.required_groups.as_ref().is_some_and(|groups| !groups.is_empty());
            let completes = someone && all_received(after);
            let status = if completes { Status::Completed } else { t.before.status };
            prop_assert_eq!(after.status, status);
        }
    }

    #[test]
    fn only_receipts_change_receipts(life in lives()) {
        for (before, event, after, _) in changes(&life) {
            let is_receipt = matches!(event, Event::Receipt { .. });
            prop_assert!(is_receipt || after.receipts == before.receipts);
        }
    }

    #[test]
    fn sent_and_completed_mean_what_they_say(life in lives()) {
        for row in rows(&life) {
            prop_assert_eq!(row.ack_due.is_some(), row.status == Status::Sent);
            prop_assert_eq!(row.completed_at.is_some(), row.status == Status::Completed);
            prop_assert!(row.status != Status::Completed || all_received(row));
            prop_assert!(row.status != Status::Sent || (row.sent_at.is_some() && !all_received(row)));
            prop_assert!(row.status != Status::Failed || row.last_error.is_some());
        }
    }

    #[test]
    fn who_must_acknowledge_is_decided_once(life in lives()) {
        for (before, event, after, _) in changes(&life) {
            let decides = matches!(event, Event::Settle { outcome: Outcome::Confirmed { .. }, .. });
            let was_open = before.required_groups.is_none();
            prop_assert!(before.required_groups == after.required_groups || (was_open && decides));
        }
    }

    #[test]
    fn rejection_requeue_and_discard_are_fenced_by_the_claim_number(life in lives()) {
        for t in &life {
            let (claim_no, statuses): (_, &[Status]) = match &t.event {
                Event::Reject { claim_no, .. } => (claim_no, &[Status::Pending, Status::Sent]),
                Event::Requeue { claim_no } | Event::Discard { claim_no } => (claim_no, &[Status::Failed]),
                _ => continue,
            };
            let repeats = matches!(&t.event, Event::Reject { group, .. } if t.before.receipts.contains(group));
            let right = *claim_no == t.before.claim_no && statuses.contains(&t.before.status) && !repeats;
            prop_assert_eq!(t.end.is_ok(), right);
        }
    }

    #[test]
    fn starting_over_clears_what_belongs_to_the_try_before(life in lives()) {
        for (before, event, after, now) in changes(&life) {
            let redeliveries = match event {
                Event::Requeue { .. } => before.redeliveries,
                Event::Redeliver { .. } => before.redeliveries + 1,
                _ => continue,
            };
            prop_assert_eq!(after, &RowState {
                status: Status::Pending,
                retry_count: 0,
                next_retry_time: now,
                claim_no: before.claim_no + 1,
                unsettled_claims: 0,
                ack_due: None,
                redeliveries,
                ..before.clone()
            });
        }
    }

    #[test]
    fn redelivery_is_for_overdue_rows_and_bounded(life in lives()) {
        for t in life.iter().filter(|t| matches!(t.event, Event::Redeliver { .. })) {
            let overdue = t.before.ack_due.is_some_and(|due| due <= t.now);
            let right = t.before.status == Status::Sent && overdue && t.before.redeliveries < MAX_REDELIVERIES;
            prop_assert_eq!(t.end.is_ok(), right);
        }
    }

    #[test]
    fn the_archive_takes_what_was_completed_before_the_cut_off(life in lives()) {
        for t in &life {
            let Event::Archive { before } = &t.event else { continue };
            prop_assert_eq!(t.end.is_ok(), t.before.completed_at.is_some_and(|at| at < *before));
        }
    }

    #[test]
    fn no_duration_panics(seconds in any::<u64>(), nanos in any::<u32>()) {
        let long = Duration::from_secs(seconds).saturating_add(Duration::from_nanos(u64::from(nanos)));
        let now = Timestamp::UNIX_EPOCH;
        let claim = Event::Claim { token: ClaimToken::random(), lease: long };
        let Ok(Next::Row(row)) = apply(&RowState::new(now, None), &claim, now) else { panic!("it is due") };
        prop_assert!(row.lease_until >= Some(now));
        let token = row.claim_token.unwrap();
        let confirmed = Outcome::Confirmed { required_groups: vec!["points".to_owned()], ack_timeout: long };
        let retry = Outcome::Retry { delay: long, max_attempts: 2, error: String::new() };
        for outcome in [confirmed, retry] {
            let settled = apply(&row, &Event::Settle { token, outcome }, now);
            prop_assert!(settled.is_ok());
        }
        let renewed = apply(&row, &Event::Renew { token, lease: long }, now);
        prop_assert!(renewed.is_ok());
    }
}

/// The lives above are worth something: each event happens in them and is refused in them.
#[test]
fn lives_contain_every_event_both_ways() {
    let mut runner = TestRunner::deterministic();
    let mut seen = BTreeMap::new();
    for _ in 0..500 {
        for t in lives().new_tree(&mut runner).unwrap().current() {
            let name = format!("{:?}", t.event);
            let name = name.split([' ', '{']).next().unwrap_or_default().to_owned();
            *seen.entry((name, t.end.is_ok())).or_insert(0) += 1;
        }
    }
    assert_eq!(seen.len(), 2 * 9, "{seen:?}");
    assert!(seen.values().all(|times| *times >= 10), "{seen:?}");
}
