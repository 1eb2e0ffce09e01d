use std::time::Duration;

use crate::retry::RetryPolicy;

/// Settings of a [`Consumer`](super::Consumer).
#[derive(Debug, Clone, PartialEq)]
pub struct ConsumerConfig {
    pub(super) retry: RetryPolicy,
    pub(super) lease: Duration,
    pub(super) handler_timeout: Duration,
    pub(super) patience: Duration,
    pub(super) later: Duration,
}

impl Default for ConsumerConfig {
    fn default() -> Self {
        Self {
            retry: RetryPolicy::default(),
            lease: Duration::from_secs(30),
            handler_timeout: Duration::from_secs(600),
            patience: Duration::from_secs(30),
            later: Duration::from_secs(5),
        }
    }
}

impl ConsumerConfig {
    /// When a message that was not handled comes again, and after how many attempts it goes to the dead
    /// letters; by default the article's steps, five attempts.
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
        self.lease = lease.max(Duration::from_millis(30));
        self
    }

    /// After this long a handler is stopped, which is a failure; 10 minutes by default. Keep it below the
    /// broker's own limit for acknowledgements (RabbitMQ: 30 minutes).
    #[must_use]
    pub fn with_handler_timeout(mut self, limit: Duration) -> Self {
        self.handler_timeout = limit;
        self
    }

    /// How long a delivery waits for the dedup store, and again for the receipts, before it goes back to the
    /// broker; 30 s by default. Waiting deliveries fill the prefetch, so consumption rests. At least 1 ms.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience.max(Duration::from_millis(1));
        self
    }

    /// When a delivery that could not be tried comes again, because another run has it or a service is away;
    /// 5 s by default. No attempt is charged.
    #[must_use]
    pub fn with_later(mut self, delay: Duration) -> Self {
        self.later = delay;
        self
    }
}
