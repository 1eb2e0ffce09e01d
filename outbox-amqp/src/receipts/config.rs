use std::time::Duration;

use crate::shelf::QueueKind;

/// Settings of a [`ReceiptListener`](super::ReceiptListener).
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptListenerConfig {
    pub(super) batch: usize,
    pub(super) wait: Duration,
    pub(super) queue_kind: QueueKind,
    pub(super) declares: bool,
}

impl Default for ReceiptListenerConfig {
    fn default() -> Self {
        Self { batch: 100, wait: Duration::from_millis(50), queue_kind: QueueKind::Quorum, declares: true }
    }
}

impl ReceiptListenerConfig {
    /// How many receipts go to the store in one call, at most; 100 by default, from 1 to 10,000.
    #[must_use]
    pub fn with_batch(mut self, receipts: usize) -> Self {
        self.batch = receipts.clamp(1, 10_000);
        self
    }

    /// For how long a receipt waits for others to go with; 50 ms by default.
    #[must_use]
    pub fn with_wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// The type of the queues that are declared; quorum by default.
    #[must_use]
    pub fn with_queue_kind(mut self, kind: QueueKind) -> Self {
        self.queue_kind = kind;
        self
    }

    /// Declares no queue: that of the receipts and that of the dead letters, `<queue>.dead`, must be there. Give
    /// the first the second as its target for dead letters.
    #[must_use]
    pub fn without_declaring(mut self) -> Self {
        self.declares = false;
        self
    }

    /// Enough that the next batch is here when one is done.
    pub(super) fn prefetch(&self) -> u16 {
        u16::try_from(self.batch * 2).unwrap_or(u16::MAX)
    }
}
