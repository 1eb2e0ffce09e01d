use std::time::Duration;

use crate::retry::RetryPolicy;

/// No setting is longer, so that points in time can be reckoned with.
pub(super) const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// Settings of a [`Consumer`](super::Consumer).
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerConfig {
    pub(super) retry: RetryPolicy,
    pub(super) lease: Duration,
    pub(super) handler_timeout: Duration,
    pub(super) patience: Duration,
    pub(super) later: Duration,
    pub(super) producer_horizon: Duration,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            retry: RetryPolicy::default(),
            lease: Duration::from_secs(30),
            handler_timeout: Duration::from_secs(600),
            patience: Duration::from_secs(30),
            later: Duration::from_secs(5),
            producer_horizon: RetryPolicy::default().horizon(),
        }
    }
}

impl ConsumerConfig {
    /// When a message that was not handled comes again, and after how many attempts it goes to the dead
    /// letters; by default after 1 min, 5 min, 30 min and 2 h, and at the fifth attempt.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// When a message comes again, and when it is given up.
    #[must_use]
    pub fn retry(&self) -> &RetryPolicy {
        &self.retry
    }

    /// For how long nobody else may run the handler; 30 s by default. It is renewed while the handler runs,
    /// so it bounds only the wait after a crash. At least 30 ms.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Duration::from_millis(30), LONGEST);
        self
    }

    /// After this long a handler is stopped, which is a failure; 10 minutes by default. Keep it below the
    /// broker's own limit for acknowledgements (RabbitMQ: 30 minutes).
    #[must_use]
    pub fn with_handler_timeout(mut self, limit: Duration) -> Self {
        self.handler_timeout = limit.min(LONGEST);
        self
    }

    /// How long a delivery waits for the dedup store, and again for the receipts, before it goes back to the
    /// broker; 30 s by default. Waiting deliveries fill the prefetch, so consumption rests. At least 1 ms.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience.clamp(Duration::from_millis(1), LONGEST);
        self
    }

    /// When a delivery that could not be tried comes again, because another run has it or a service is away;
    /// 5 s by default, at least 10 ms. No attempt is charged.
    #[must_use]
    pub fn with_later(mut self, delay: Duration) -> Self {
        self.later = delay.clamp(Duration::from_millis(10), LONGEST);
        self
    }

    /// For how long the producer may send a message again: the [horizon](RetryPolicy::horizon) of its retries (that
    /// of the default policy by default), the longest outage of this consumer, and the age at which dead letters
    /// are still put back. Done markers must be kept for longer; [`Consumer::check_retention`] compares.
    ///
    /// [`Consumer::check_retention`]: super::Consumer::check_retention
    #[must_use]
    pub fn with_producer_horizon(mut self, horizon: Duration) -> Self {
        self.producer_horizon = horizon.min(LONGEST);
        self
    }
}
