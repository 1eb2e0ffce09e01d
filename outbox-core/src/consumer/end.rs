use std::time::Duration;

use tracing::{debug, info, warn};

use super::disposition::Disposition;

/// How a delivery ended, for the log and the metrics.
#[derive(Debug)]
pub(super) enum End {
    Handled,
    /// It was handled before.
    Duplicate,
    /// Another run has the lease.
    InProgress,
    /// The lease ended under the handler.
    LeaseLost,
    /// The dedup store, the sink of receipts, or something that the handler needs is away.
    Unavailable {
        problem: String,
    },
    /// Refused for good, but the producer could not be told.
    Untold {
        attempts: u32,
        problem: String,
    },
    Retry {
        delay: Duration,
        attempts: u32,
        reason: String,
    },
    DeadLetter {
        reason: String,
    },
}

pub(super) type Label = &'static str;

impl End {
    pub(super) const HANDLED: Label = "handled";

    pub(super) fn panicked() -> Self {
        Self::Unavailable { problem: "the dedup store or the sink of receipts panicked".to_owned() }
    }

    pub(super) fn label(&self) -> Label {
        match self {
            Self::Handled => Self::HANDLED,
            Self::Duplicate => "duplicate",
            Self::InProgress => "in_progress",
            Self::LeaseLost => "lease_lost",
            Self::Unavailable { .. } | Self::Untold { .. } => "unavailable",
            Self::Retry { .. } => "retry",
            Self::DeadLetter { .. } => "dead_letter",
        }
    }

    pub(super) fn report(&self) {
        match self {
            Self::Handled => debug!("handled"),
            Self::Duplicate => debug!("handled before: acknowledged again"),
            Self::InProgress => debug!("another run has it: later"),
            Self::LeaseLost => {
                warn!("the lease was lost while the handler ran: stopped, to be delivered again")
            }
            Self::Unavailable { problem } | Self::Untold { problem, .. } => {
                warn!(problem, "not acknowledged: to be delivered again, no attempt charged");
            }
            Self::Retry { delay, attempts, reason } => {
                info!(?delay, attempts, reason, "failed: to be tried again")
            }
            Self::DeadLetter { reason } => warn!(reason, "given up: to the dead letters"),
        }
    }

    /// Charges attempts only to failures of the handler.
    pub(super) fn disposition(self, charged: u32, later: Duration) -> Disposition {
        match self {
            Self::Handled | Self::Duplicate => Disposition::Ack,
            Self::InProgress | Self::LeaseLost | Self::Unavailable { .. } => {
                Disposition::RetryLater { delay: later, attempts: charged }
            }
            Self::Untold { attempts, .. } => Disposition::RetryLater { delay: later, attempts },
            Self::Retry { delay, attempts, .. } => Disposition::RetryLater { delay, attempts },
            Self::DeadLetter { reason } => Disposition::DeadLetter { reason },
        }
    }
}
