use std::time::Duration;

/// Settings of a [`ReceiptListener`](super::ReceiptListener).
#[derive(Debug, Clone, PartialEq)]
pub struct ReceiptListenerConfig {
    pub(super) batch: usize,
    pub(super) wait: Duration,
    pub(super) group: Option<String>,
    pub(super) dead_letters: Option<String>,
}

impl Default for ReceiptListenerConfig {
    fn default() -> Self {
        Self { batch: 100, wait: Duration::from_millis(50), group: None, dead_letters: None }
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

    /// The group in which listeners of the same store share the work; `<topic>.listeners` by default.
    #[must_use]
    pub fn with_group(mut self, group: impl Into<String>) -> Self {
        self.group = Some(group.into());
        self
    }

    /// The topic for what is no receipt; `<topic>.dead` by default. It must be there: until it is, what belongs
    /// into it holds its place.
    #[must_use]
    pub fn with_dead_letters(mut self, topic: impl Into<String>) -> Self {
        self.dead_letters = Some(topic.into());
        self
    }

    /// How many may be here at once of each partition: enough that the next batch is here when one is done.
    pub(super) fn prefetch(&self) -> usize {
        self.batch * 2
    }
}
