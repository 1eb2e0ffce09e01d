use std::time::Duration;

/// Which messages wait for one another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// Those with the same record key are handled one after another, in the order of their partition. Records
    /// without a key wait for none.
    #[default]
    ByKey,
    /// All messages of a partition are.
    ByPartition,
    /// None.
    None,
}

/// Settings of a [`KafkaConsumer`](super::KafkaConsumer).
#[derive(Debug, Clone, PartialEq)]
pub struct KafkaConsumerConfig {
    pub(super) prefetch: usize,
    pub(super) concurrency: usize,
    pub(super) order: Order,
    pub(super) dead_letters: Option<String>,
    pub(super) commit_interval: Duration,
}

impl Default for KafkaConsumerConfig {
    fn default() -> Self {
        Self {
            prefetch: 100,
            concurrency: 8,
            order: Order::default(),
            dead_letters: None,
            commit_interval: Duration::from_secs(1),
        }
    }
}

impl KafkaConsumerConfig {
    /// How far reading may be ahead of the first message of a partition that is not handled yet, in messages;
    /// 100 by default, at least 1. A partition that is so far ahead is paused.
    #[must_use]
    pub fn with_prefetch(mut self, messages: usize) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// How many handlers may run at once, of all partitions together; 8 by default, at least 1.
    #[must_use]
    pub fn with_concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers.max(1);
        self
    }

    /// Which messages wait for one another; by default, those with the same key.
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// The topic for dead letters; `<group>.dead` by default. It must be there: until it is, a message that is
    /// given up holds its place.
    #[must_use]
    pub fn with_dead_letters(mut self, topic: impl Into<String>) -> Self {
        self.dead_letters = Some(topic.into());
        self
    }

    /// How often offsets are committed; every second by default, at least every millisecond. What was handled
    /// since the last time is delivered again after a crash.
    #[must_use]
    pub fn with_commit_interval(mut self, interval: Duration) -> Self {
        self.commit_interval = interval.max(Duration::from_millis(1));
        self
    }
}
