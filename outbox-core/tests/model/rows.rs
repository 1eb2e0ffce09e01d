//! Every state of the row, and what the real transition function makes of it.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use outbox_core::state::{Event, Next, RowState, Stale, Status, apply};
use outbox_core::{ClaimToken, Outcome, Timestamp};
use uuid::Uuid;

use super::promises::{row_promises, step_promises};
use super::world::{Age, End};
use super::{Flaw, GROUPS, Model};

pub(crate) const MAX_ATTEMPTS: u32 = 2;
pub(crate) const MAX_REDELIVERIES: u32 = 1;
/// Leases, delays and time-outs all take one tick: never is more than one of them running.
const TICK: Duration = Duration::from_secs(1);
/// It is always now: when time passes, everything else comes nearer. [`apply`] only compares and adds, so
/// nothing else changes, and the number of states stays finite.
pub(crate) const NOW: Timestamp = Timestamp::UNIX_EPOCH;
/// A time that does not come.
const NEVER: Timestamp = Timestamp::MAX_UTC;
/// The row's claim number, always; that of an older claim is less by its age.
const CLAIM_NO: u64 = 100;

/// What can happen to the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum RowEvent {
    Claim,
    Renew(Age),
    Settle(Age, End),
    Receipt(usize),
    Reject(usize, Age),
    Redeliver,
    Requeue,
    Discard,
    Archive,
    Pass,
}

/// Where an event leads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Move {
    pub(crate) row: Option<u16>,
    pub(crate) has_new_claim_no: bool,
}

/// What the world must know of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts {
    pub(crate) status: Status,
    /// A bit for each group.
    pub(crate) required: u8,
    pub(crate) receipts: u8,
}

/// The transition function is pure, so each of its answers is computed once.
pub(crate) struct Rows {
    model: Model,
    rows: Vec<(RowState, Facts)>,
    numbers: HashMap<RowState, u16>,
    moves: HashMap<(u16, RowEvent), Option<Move>>,
}

impl Rows {
    pub(crate) fn new(model: Model) -> Self {
        Self { model, rows: Vec::new(), numbers: HashMap::new(), moves: HashMap::new() }
    }

    pub(crate) fn facts(&self, row: u16) -> Facts {
        self.rows[usize::from(row)].1
    }

    /// A new row.
    pub(crate) fn initial(&mut self) -> Result<u16, String> {
        let required = self.model.decided_at_enqueue.then(|| self.groups());
        let row = RowState { claim_no: CLAIM_NO, ..RowState::new(NOW, required) };
        self.number(row)
    }

    /// `None`: the event is stale.
    pub(crate) fn happen(&mut self, row: u16, event: RowEvent) -> Result<Option<Move>, String> {
        if let Some(known) = self.moves.get(&(row, event)) {
            return Ok(*known);
        }
        let before = self.rows[usize::from(row)].0.clone();
        let next = match self.really_happen(&before, event) {
            Err(Stale) => None,
            Ok(None) => Some(Move { row: None, has_new_claim_no: false }),
            Ok(Some(after)) => {
                step_promises(&before, event, &after)?;
                let has_new_claim_no = after.claim_no != before.claim_no;
                Some(Move { row: Some(self.number(canonical(after))?), has_new_claim_no })
            }
        };
        self.moves.insert((row, event), next);
        Ok(next)
    }

    fn number(&mut self, row: RowState) -> Result<u16, String> {
        if let Some(number) = self.numbers.get(&row) {
            return Ok(*number);
        }
        row_promises(&row)?;
        let number = self.rows.len() as u16;
        self.numbers.insert(row.clone(), number);
        self.rows.push((row.clone(), facts(&row)));
        Ok(number)
    }

    fn groups(&self) -> BTreeSet<String> {
        GROUPS.iter().take(self.model.groups).map(|name| (*name).to_owned()).collect()
    }

    fn really_happen(&self, before: &RowState, event: RowEvent) -> Result<Option<RowState>, Stale> {
        if event == RowEvent::Pass {
            return pass(before).map(Some);
        }
        let seen = self.as_seen_by_flawed_guards(before, event);
        match apply(&seen, &self.real_event(event), NOW)? {
            Next::Row(after) => Ok(Some(self.as_written_by_flaws(after, event))),
            Next::Archived | Next::Discarded => Ok(None),
        }
    }

    fn real_event(&self, event: RowEvent) -> Event {
        let lease = TICK;
        match event {
            RowEvent::Claim => Event::Claim { token: token(CLAIM_NO + 1), lease },
            RowEvent::Renew(age) => Event::Renew { token: token_of(age), lease },
            RowEvent::Settle(age, end) => Event::Settle { token: token_of(age), outcome: self.outcome(end) },
            RowEvent::Receipt(group) => Event::Receipt { group: GROUPS[group].to_owned() },
            RowEvent::Reject(group, age) => {
                let age = if self.model.has(Flaw::RejectsUnfenced) { 0 } else { age };
                Event::Reject {
                    group: GROUPS[group].to_owned(),
                    claim_no: CLAIM_NO - u64::from(age),
                    reason: "no such article".to_owned(),
                }
            }
            RowEvent::Redeliver => Event::Redeliver { max_redeliveries: MAX_REDELIVERIES },
            RowEvent::Requeue => Event::Requeue { claim_no: CLAIM_NO },
            RowEvent::Discard => Event::Discard { claim_no: CLAIM_NO },
            RowEvent::Archive | RowEvent::Pass => Event::Archive { before: NOW + TICK },
        }
    }

    fn outcome(&self, end: End) -> Outcome {
        let error = || "no confirmation".to_owned();
        let required_groups = self.groups().into_iter().collect();
        match end {
            End::Confirmed => Outcome::Confirmed { required_groups, ack_timeout: TICK },
            End::Retry => Outcome::Retry { delay: TICK, max_attempts: MAX_ATTEMPTS, error: error() },
            End::Failed => Outcome::Failed { error: error() },
            End::Released => Outcome::Released,
        }
    }

    /// The row as it looks to a statement that does not guard what it should.
    fn as_seen_by_flawed_guards(&self, row: &RowState, event: RowEvent) -> RowState {
        let mut row = row.clone();
        match (self.model.flaw, event) {
            (Some(Flaw::ClaimsDespiteLease), RowEvent::Claim) => row.lease_until = None,
            (Some(Flaw::SettlesWhateverTheStatus), RowEvent::Settle(age, _)) => {
                (row.status, row.claim_token) = (Status::Pending, Some(token_of(age)));
            }
            (Some(Flaw::SettlesWithoutToken), RowEvent::Settle(age, _)) if row.claim_token.is_some() => {
                row.claim_token = Some(token_of(age));
            }
            (Some(Flaw::CountsReceiptsTwice), RowEvent::Receipt(group)) if row.receipts.len() == 1 => {
                row.receipts.remove(GROUPS[group]);
                row.required_groups = Some(BTreeSet::from([GROUPS[group].to_owned()]));
            }
            _ => {}
        }
        row
    }

    fn as_written_by_flaws(&self, mut row: RowState, event: RowEvent) -> RowState {
        match (self.model.flaw, event) {
            (Some(Flaw::MarksSentBeforePublishing), RowEvent::Claim) => {
                (row.status, row.ack_due, row.claim_token, row.lease_until) =
                    (Status::Sent, Some(NOW), None, None);
            }
            (Some(Flaw::ForgetsItsClaim), RowEvent::Claim) => row.next_retry_time = NEVER,
            (Some(Flaw::GivesUpSilently), RowEvent::Settle(_, End::Retry)) => row.next_retry_time = NEVER,
            (Some(Flaw::CountsReceiptsTwice), RowEvent::Receipt(_)) => {
                row.required_groups = Some(self.groups());
            }
            _ => {}
        }
        row
    }
}

fn token(claim_no: u64) -> ClaimToken {
    ClaimToken(Uuid::from_u128(u128::from(claim_no)))
}

fn token_of(age: Age) -> ClaimToken {
    token(CLAIM_NO - u64::from(age))
}

/// One tick passes; stale if nothing waited for it.
fn pass(row: &RowState) -> Result<RowState, Stale> {
    let mut row = row.clone();
    let times = [Some(&mut row.next_retry_time), row.lease_until.as_mut(), row.ack_due.as_mut()];
    let mut waited = false;
    for time in times.into_iter().flatten().filter(|time| **time > NOW && **time != NEVER) {
        *time -= TICK;
        waited = true;
    }
    if waited { Ok(row) } else { Err(Stale) }
}

/// The one of many equal rows that stands for all of them.
fn canonical(mut row: RowState) -> RowState {
    if row.claim_no != CLAIM_NO {
        row.claim_no = CLAIM_NO;
        row.claim_token = row.claim_token.map(|_| token(CLAIM_NO));
    }
    row.unsettled_claims = row.unsettled_claims.min(1);
    row.sent_at = row.sent_at.map(|_| NOW);
    row.completed_at = row.completed_at.map(|_| NOW);
    row
}

fn facts(row: &RowState) -> Facts {
    let bits = |groups: &BTreeSet<String>| -> u8 {
        (0..).zip(GROUPS).filter(|(_, name)| groups.contains(*name)).map(|(n, _)| 1 << n).sum()
    };
    Facts {
        status: row.status,
        required: row.required_groups.as_ref().map_or(0, bits),
        receipts: bits(&row.receipts),
    }
}
