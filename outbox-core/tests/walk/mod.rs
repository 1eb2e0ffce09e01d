//! Random lives of a row.

use std::collections::BTreeSet;
use std::time::Duration;

use outbox_core::state::{Event, Next, RowState, Stale, apply};
use outbox_core::{ClaimToken, Outcome, Timestamp};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use uuid::Uuid;

pub(crate) const MAX_ATTEMPTS: u32 = 3;
pub(crate) const MAX_REDELIVERIES: u32 = 2;

/// One event of a life.
#[derive(Debug, Clone)]
pub(crate) struct Transition {
    pub(crate) before: RowState,
    pub(crate) event: Event,
    pub(crate) now: Timestamp,
    pub(crate) end: Result<Next, Stale>,
}

impl Transition {
    /// The row afterwards, if it changed and is still in the table.
    pub(crate) fn after(&self) -> Option<&RowState> {
        match &self.end {
            Ok(Next::Row(row)) => Some(row),
            _ => None,
        }
    }
}

/// An event whose tokens and numbers depend on the life so far.
#[derive(Debug, Clone)]
enum Chance {
    Claim(Duration),
    Renew(usize, Duration),
    Settle(usize, Outcome),
    Receipt(String),
    Reject(String, u64),
    Redeliver,
    Requeue(u64),
    Discard(u64),
    Archive(Duration),
    Pass(Duration),
}

pub(crate) fn lives() -> impl Strategy<Value = Vec<Transition>> {
    let required = prop::option::of(btree_set(group(), 0..4));
    (required, short(), vec(chance(), 1..40))
        .prop_map(|(required, delay, chances)| live(required, delay, &chances))
}

fn live(required: Option<BTreeSet<String>>, delay: Duration, chances: &[Chance]) -> Vec<Transition> {
    let mut now = Timestamp::UNIX_EPOCH;
    let mut row = RowState::new(now + delay, required);
    let mut tokens = Vec::new();
    let mut life = Vec::new();
    for chance in chances {
        let Some(event) = event(chance, &row, &tokens, &mut now) else { continue };
        let end = apply(&row, &event, now);
        life.push(Transition { before: row.clone(), event, now, end: end.clone() });
        match end {
            Ok(Next::Row(next)) => {
                tokens.extend(next.claim_token.filter(|token| tokens.last() != Some(token)));
                row = next;
            }
            Ok(Next::Archived | Next::Discarded) => break,
            Err(Stale) => {}
        }
    }
    life
}

fn event(chance: &Chance, row: &RowState, tokens: &[ClaimToken], now: &mut Timestamp) -> Option<Event> {
    let newest = |back: usize| tokens.iter().rev().nth(back).copied();
    let seen = |off: u64| (row.claim_no + 1).saturating_sub(off);
    Some(match chance.clone() {
        Chance::Claim(lease) => {
            Event::Claim { token: ClaimToken(Uuid::from_u128(tokens.len() as u128)), lease }
        }
        Chance::Renew(back, lease) => Event::Renew { token: newest(back)?, lease },
        Chance::Settle(back, outcome) => Event::Settle { token: newest(back)?, outcome },
        Chance::Receipt(group) => Event::Receipt { group },
        Chance::Reject(group, off) => {
            Event::Reject { group, claim_no: seen(off), reason: "no such article".to_owned() }
        }
        Chance::Redeliver => Event::Redeliver { max_redeliveries: MAX_REDELIVERIES },
        Chance::Requeue(off) => Event::Requeue { claim_no: seen(off) },
        Chance::Discard(off) => Event::Discard { claim_no: seen(off) },
        Chance::Archive(age) => Event::Archive { before: *now - age },
        Chance::Pass(time) => {
            *now += time;
            return None;
        }
    })
}

fn chance() -> impl Strategy<Value = Chance> {
    // Off by one both ways; 1 is right.
    let off = || prop_oneof![1 => Just(0), 4 => Just(1), 1 => Just(2)];
    let back = || prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(2)];
    prop_oneof![
        6 => short().prop_map(Chance::Claim),
        2 => (back(), short()).prop_map(|(back, lease)| Chance::Renew(back, lease)),
        6 => (back(), outcome()).prop_map(|(back, outcome)| Chance::Settle(back, outcome)),
        2 => group().prop_map(Chance::Receipt),
        1 => (group(), prop_oneof![2 => Just(0), 1 => Just(1)]).prop_map(|(group, off)| Chance::Reject(group, off)),
        3 => Just(Chance::Redeliver),
        2 => off().prop_map(Chance::Requeue),
        1 => prop_oneof![1 => Just(0), 2 => Just(1)].prop_map(Chance::Discard),
        1 => short().prop_map(Chance::Archive),
        6 => short().prop_map(Chance::Pass),
    ]
}

fn outcome() -> impl Strategy<Value = Outcome> {
    let error = || "no confirmation".to_owned();
    prop_oneof![
        3 => (btree_set(group(), 0..4), short()).prop_map(|(groups, ack_timeout)| Outcome::Confirmed {
            required_groups: groups.into_iter().collect(),
            ack_timeout,
        }),
        3 => short().prop_map(move |delay| Outcome::Retry { delay, max_attempts: MAX_ATTEMPTS, error: error() }),
        1 => Just(Outcome::Failed { error: "too large".to_owned() }),
        1 => Just(Outcome::Released),
    ]
}

fn group() -> impl Strategy<Value = String> {
    prop_oneof![Just("inventory"), Just("points"), Just("audit")].prop_map(str::to_owned)
}

fn short() -> impl Strategy<Value = Duration> {
    (0..10_u64).prop_map(Duration::from_secs)
}
