use std::fmt;
use std::time::Duration;

use uuid::Uuid;

use crate::message::Message;

/// A row's key in its store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowId(pub i64);

impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The fence of a claim: random, so that a database that was rolled back by a fail-over cannot issue it
/// again. All rows of one claim may share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClaimToken(pub Uuid);

impl ClaimToken {
    /// A new random token.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

/// The right to end the claim on one row: every settlement names it, and a stale one changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The row.
    pub id: RowId,
    /// The fence.
    pub token: ClaimToken,
}

/// Which rows to claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimMode {
    /// Due rows with fewer than this many unsettled claims.
    Ordinary {
        /// From this number of claims without an outcome on, a row is a suspect.
        suspect_after: u32,
    },
    /// Due rows with at least this many claims that never came to an outcome: one of them may be what kills
    /// relays, so they are claimed and published one at a time.
    Suspects {
        /// The same number as in [`ClaimMode::Ordinary`].
        suspect_after: u32,
    },
}

/// What a relay asks of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimRequest {
    /// How many rows at most.
    pub limit: usize,
    /// For how long nobody else may claim them.
    pub lease: Duration,
    /// Which rows.
    pub mode: ClaimMode,
}

/// A row in the hands of a relay.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// The right to settle it.
    pub claim: Claim,
    /// What to publish; [`Message::claim_no`] is the number of this claim.
    pub message: Message,
    /// Attempts charged so far.
    pub retry_count: u32,
    /// Claims in a row, this one included, that have not come to an outcome.
    pub unsettled_claims: u32,
}

/// How publishing one message ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The broker stored it and could route it.
    Confirmed {
        /// The groups whose receipts complete the row, for a row whose writer left that open.
        required_groups: Vec<String>,
        /// After how long without all receipts the row counts as overdue.
        ack_timeout: Duration,
    },
    /// Not published, or not known to be: charged as an attempt.
    Retry {
        /// How long to wait before the next attempt.
        delay: Duration,
        /// At this number of attempts the row fails instead.
        max_attempts: u32,
        /// What happened, for people.
        error: String,
    },
    /// Never to be published.
    Failed {
        /// Why, for people.
        error: String,
    },
    /// Handed back untried: nothing is charged.
    Released,
}

/// An outcome and the claim it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The claim that ends.
    pub claim: Claim,
    /// How it ends.
    pub outcome: Outcome,
}

/// What became of a batch of settlements.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Settled {
    /// Rows changed.
    pub applied: usize,
    /// Stale settlements: the claim was no longer that relay's, so nothing was changed.
    pub lost: usize,
}
