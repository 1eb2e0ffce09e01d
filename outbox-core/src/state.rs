//! The life of a row, as a pure function: no I/O, no clock, no randomness. The in-memory store runs it, the
//! SQL stores are tested against it, and the model check explores it.
//!
//! A claimed row stays [`Status::Pending`]: a status that said "sent" before the broker did would lose the
//! message when the process dies in between.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::claim::{ClaimToken, Outcome};
use crate::clock::{Timestamp, later};

/// Where a message stands. The codes are part of the table's public contract.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Status {
    /// 0: to be published; also while a relay holds a claim on it.
    Pending,
    /// 1: the broker confirmed it; receipts of required groups are missing.
    Sent,
    /// 2: every required group acknowledged it.
    Completed,
    /// 9: given up; a person decides.
    Failed,
}

impl Status {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Sent, Self::Completed, Self::Failed];

    /// The code in the `status` column.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::Pending => 0,
            Self::Sent => 1,
            Self::Completed => 2,
            Self::Failed => 9,
        }
    }

    /// The status of a code; `None` for a code that has none.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.code() == code)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pending => "pending",
            Self::Sent => "sent",
            Self::Completed => "completed",
            Self::Failed => "failed",
        })
    }
}

/// Everything about a row that transitions read or write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RowState {
    /// Where it stands.
    pub status: Status,
    /// Attempts charged since it was written, requeued or redelivered.
    pub retry_count: u32,
    /// Not to be claimed before.
    pub next_retry_time: Timestamp,
    /// The fence of the latest claim, while no outcome has ended it.
    pub claim_token: Option<ClaimToken>,
    /// Until when nobody else may claim it.
    pub lease_until: Option<Timestamp>,
    /// Grows with every claim, requeue and redelivery.
    pub claim_no: u64,
    /// Claims since the last outcome.
    pub unsettled_claims: u32,
    /// The groups whose receipts complete it; `None` while nobody has decided.
    pub required_groups: Option<BTreeSet<String>>,
    /// The groups that acknowledged it, required or not.
    pub receipts: BTreeSet<String>,
    /// When the broker last confirmed it.
    pub sent_at: Option<Timestamp>,
    /// When the last required receipt came.
    pub completed_at: Option<Timestamp>,
    /// When missing receipts become overdue.
    pub ack_due: Option<Timestamp>,
    /// How often the reconciler sent it again.
    pub redeliveries: u32,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
}

impl RowState {
    /// A row as an INSERT leaves it.
    #[must_use]
    pub fn new(due: Timestamp, required_groups: Option<BTreeSet<String>>) -> Self {
        Self {
            status: Status::Pending,
            retry_count: 0,
            next_retry_time: due,
            claim_token: None,
            lease_until: None,
            claim_no: 0,
            unsettled_claims: 0,
            required_groups,
            receipts: BTreeSet::new(),
            sent_at: None,
            completed_at: None,
            ack_due: None,
            redeliveries: 0,
            last_error: None,
        }
    }

    /// Required groups whose receipt is there.
    #[must_use]
    pub fn received(&self) -> usize {
        self.required_groups.as_ref().map_or(0, |groups| groups.intersection(&self.receipts).count())
    }

    fn all_received(&self) -> bool {
        self.required_groups.as_ref().is_some_and(|groups| groups.is_subset(&self.receipts))
    }

    fn claimable(&self, now: Timestamp) -> bool {
        self.status == Status::Pending
            && self.next_retry_time <= now
            && self.lease_until.is_none_or(|until| until <= now)
    }

    fn held_by(&self, token: ClaimToken) -> bool {
        self.status == Status::Pending && self.claim_token == Some(token)
    }

    fn clear_claim(&mut self) {
        self.claim_token = None;
        self.lease_until = None;
        self.unsettled_claims = 0;
    }

    fn start_over(&mut self, now: Timestamp) {
        self.status = Status::Pending;
        self.retry_count = 0;
        self.next_retry_time = now;
        self.claim_no += 1;
        self.unsettled_claims = 0;
        self.ack_due = None;
    }

    fn complete(&mut self, now: Timestamp) {
        self.clear_claim();
        self.status = Status::Completed;
        self.completed_at = Some(now);
        self.ack_due = None;
    }
}

/// What can happen to a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A relay takes it.
    Claim {
        /// The new fence.
        token: ClaimToken,
        /// How long.
        lease: Duration,
    },
    /// The holder needs more time.
    Renew {
        /// The fence.
        token: ClaimToken,
        /// How long from now.
        lease: Duration,
    },
    /// The holder says how publishing ended.
    Settle {
        /// The fence.
        token: ClaimToken,
        /// How it ended.
        outcome: Outcome,
    },
    /// A consumer group acknowledged it.
    Receipt {
        /// The group.
        group: String,
    },
    /// A consumer group can never handle it. Stale from a group whose receipt is in: its effect has happened, and
    /// what it cannot handle is a repetition.
    Reject {
        /// Its name.
        group: String,
        /// The claim under which the group received it.
        claim_no: u64,
        /// Why, for people.
        reason: String,
    },
    /// The reconciler sends it again because receipts are overdue.
    Redeliver {
        /// How often at most.
        max_redeliveries: u32,
    },
    /// A person sends it again.
    Requeue {
        /// The number the person saw.
        claim_no: u64,
    },
    /// A person gives it up for good.
    Discard {
        /// The number the person saw.
        claim_no: u64,
    },
    /// The archiver moves it to history.
    Archive {
        /// Only if completed before.
        before: Timestamp,
    },
}

/// Where a row is after an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Still in the table.
    Row(RowState),
    /// In history, completed.
    Archived,
    /// In history, given up.
    Discarded,
}

/// The event's guard does not hold: the row stays exactly as it was. Never an error: somebody else was faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stale;

/// What `event` makes of `row` at `now`.
///
/// # Errors
/// [`Stale`] when the guard does not hold.
pub fn apply(row: &RowState, event: &Event, now: Timestamp) -> Result<Next, Stale> {
    let mut next = row.clone();
    match event {
        Event::Claim { token, lease } => {
            guard(row.claimable(now))?;
            next.claim_token = Some(*token);
            next.lease_until = Some(later(now, *lease));
            next.claim_no += 1;
            next.unsettled_claims += 1;
        }
        Event::Renew { token, lease } => {
            guard(row.held_by(*token))?;
            next.lease_until = Some(later(now, *lease));
        }
        Event::Settle { token, outcome } => {
            guard(row.held_by(*token))?;
            settle(&mut next, outcome, now);
        }
        Event::Receipt { group } => {
            guard(next.receipts.insert(group.clone()))?;
            let required = !row.required_groups.as_ref().is_none_or(BTreeSet::is_empty);
            if required && row.status != Status::Completed && next.all_received() {
                next.complete(now);
            }
        }
        Event::Reject { group, claim_no, reason } => {
            let open = matches!(row.status, Status::Pending | Status::Sent);
            guard(open && row.claim_no == *claim_no && !row.receipts.contains(group))?;
            fail(&mut next, reason);
        }
        Event::Redeliver { max_redeliveries } => {
            let overdue = row.ack_due.is_some_and(|due| due <= now);
            guard(row.status == Status::Sent && overdue && row.redeliveries < *max_redeliveries)?;
            next.start_over(now);
            next.redeliveries += 1;
        }
        Event::Requeue { claim_no } => {
            guard(row.status == Status::Failed && row.claim_no == *claim_no)?;
            next.start_over(now);
        }
        Event::Discard { claim_no } => {
            guard(row.status == Status::Failed && row.claim_no == *claim_no)?;
            return Ok(Next::Discarded);
        }
        Event::Archive { before } => {
            guard(row.status == Status::Completed && row.completed_at.is_some_and(|at| at < *before))?;
            return Ok(Next::Archived);
        }
    }
    Ok(Next::Row(next))
}

fn settle(row: &mut RowState, outcome: &Outcome, now: Timestamp) {
    match outcome {
        Outcome::Confirmed { required_groups, ack_timeout } => {
            row.clear_claim();
            row.sent_at = Some(now);
            row.required_groups.get_or_insert_with(|| required_groups.iter().cloned().collect());
            if row.all_received() {
                row.complete(now);
            } else {
                row.status = Status::Sent;
                row.ack_due = Some(later(now, *ack_timeout));
            }
        }
        Outcome::Retry { delay, max_attempts, error } => {
            row.retry_count += 1;
            if row.retry_count >= *max_attempts {
                fail(row, error);
            } else {
                row.clear_claim();
                row.next_retry_time = later(now, *delay);
                row.last_error = Some(error.clone());
            }
        }
        Outcome::Failed { error } => fail(row, error),
        Outcome::Released => row.clear_claim(),
    }
}

fn fail(row: &mut RowState, error: &str) {
    row.clear_claim();
    row.status = Status::Failed;
    row.ack_due = None;
    row.last_error = Some(error.to_owned());
}

fn guard(holds: bool) -> Result<(), Stale> {
    if holds { Ok(()) } else { Err(Stale) }
}
