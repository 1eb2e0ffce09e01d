use std::fmt;

/// What a consumer group says of a message.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// The group's effect has happened.
    Handled,
    /// The group can never handle it.
    Rejected {
        /// Why, for people.
        reason: String,
    },
}

/// A consumer group's acknowledgement of one message. Recording it again changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Receipt {
    /// The message.
    pub msg_id: String,
    /// The group.
    pub group: String,
    /// The claim under which the group received it; it fences a rejection.
    pub claim_no: u64,
    /// What became of it there.
    pub verdict: Verdict,
}

impl Receipt {
    /// The group's effect has happened.
    #[must_use]
    pub fn handled(msg_id: impl Into<String>, group: impl Into<String>, claim_no: u64) -> Self {
        Self { msg_id: msg_id.into(), group: group.into(), claim_no, verdict: Verdict::Handled }
    }

    /// The group can never handle it.
    #[must_use]
    pub fn rejected(
        msg_id: impl Into<String>,
        group: impl Into<String>,
        claim_no: u64,
        reason: impl Into<String>,
    ) -> Self {
        let verdict = Verdict::Rejected { reason: reason.into() };
        Self { msg_id: msg_id.into(), group: group.into(), claim_no, verdict }
    }
}

/// What became of a batch of receipts. None of these is an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ReceiptReport {
    /// Seen for the first time.
    pub recorded: usize,
    /// Recorded before, or a rejection of a claim that has passed.
    pub stale: usize,
    /// For a message that is not in the table: archived, or never was. Kept all the same, for the reconciler.
    pub unknown: usize,
    /// Rows that are completed now and were not before.
    pub completed: usize,
}

impl fmt::Display for ReceiptReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { recorded, stale, unknown, completed } = self;
        write!(f, "{recorded} recorded, {stale} stale, {unknown} unknown, {completed} completed")
    }
}
