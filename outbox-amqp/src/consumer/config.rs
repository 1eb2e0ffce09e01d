use std::time::Duration;

use crate::shelf::QueueKind;

/// Which messages wait for one another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// None. A message that failed waits in a queue of its own and comes again when it is due.
    #[default]
    None,
    /// Those with the same ordering key are handled one after another, in the order of the queue. A message
    /// that failed is tried again in place, and until it is handled or given up the others of its key wait.
    ByOrderingKey,
    /// As [`ByOrderingKey`](Self::ByOrderingKey); messages without an ordering key are ordered by their
    /// `biz_id`.
    ByOrderingKeyOrBizId,
}

/// Settings of an [`AmqpConsumer`](super::AmqpConsumer).
#[derive(Debug, Clone, PartialEq)]
pub struct AmqpConsumerConfig {
    pub(super) prefetch: u16,
    pub(super) concurrency: usize,
    pub(super) order: Order,
    pub(super) queue_kind: QueueKind,
    pub(super) declares: bool,
    pub(super) max_returns: u32,
    pub(super) hold: Duration,
}

impl Default for AmqpConsumerConfig {
    fn default() -> Self {
        Self {
            prefetch: 32,
            concurrency: 8,
            order: Order::None,
            queue_kind: QueueKind::Quorum,
            declares: true,
            max_returns: 10,
            hold: Duration::from_secs(600),
        }
    }
}

impl AmqpConsumerConfig {
    /// How many messages may be here without an answer, those that wait included; 32 by default, at least 1.
    #[must_use]
    pub fn with_prefetch(mut self, messages: u16) -> Self {
        self.prefetch = messages.max(1);
        self
    }

    /// How many handlers may run at once; 8 by default, at least 1. The prefetch bounds it too.
    ///
    /// Of a prefetch that is larger, some wait here for a handler, and RabbitMQ takes everything back when one is
    /// not answered within 30 minutes, its wait included. With a prefetch of 32 and 8 handlers, keep them below
    /// 7 minutes; where they take longer, choose a smaller prefetch.
    #[must_use]
    pub fn with_concurrency(mut self, handlers: usize) -> Self {
        self.concurrency = handlers.max(1);
        self
    }

    /// Which messages wait for one another; none by default.
    #[must_use]
    pub fn with_order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// The type of the queues for retries and dead letters; quorum by default. Take that of the queue itself.
    #[must_use]
    pub fn with_queue_kind(mut self, kind: QueueKind) -> Self {
        self.queue_kind = kind;
        self
    }

    /// Declares no queue: those for retries and dead letters must be there, as described at
    /// [`AmqpConsumer`](super::AmqpConsumer#queues). Until they are, no message is taken off its queue for
    /// them.
    #[must_use]
    pub fn without_declaring(mut self) -> Self {
        self.declares = false;
        self
    }

    /// How often a message may come back without an answer, because a process or its connection ended, before
    /// it is suspected of ending processes and given up; 10 by default. Only quorum queues count. Keep it
    /// below the queue's own `x-delivery-limit` (20 by default from RabbitMQ 4.0), at which the broker gives the
    /// message up: see [queues](super::AmqpConsumer#queues).
    #[must_use]
    pub fn with_max_returns(mut self, returns: u32) -> Self {
        self.max_returns = returns.max(1);
        self
    }

    /// For how long a message is held that cannot be tried because a service is away, before it goes through
    /// the queues of the retries; 10 minutes by default. Held messages fill the prefetch, so that consumption
    /// rests. Keep it well below the broker's limit for acknowledgements (30 minutes by default).
    #[must_use]
    pub fn with_hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }

    pub(super) fn slots(&self) -> usize {
        self.concurrency.min(usize::from(self.prefetch))
    }
}
