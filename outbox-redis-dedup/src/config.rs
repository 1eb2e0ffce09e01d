use std::time::Duration;

/// Settings of a [`RedisDedup`](crate::RedisDedup).
///
/// ```
/// use std::time::Duration;
/// use outbox_redis_dedup::RedisDedupConfig;
///
/// let config = RedisDedupConfig::default()
///     .with_prefix("shop:dedup:")
///     .with_retention(Duration::from_secs(7 * 24 * 3600));
/// assert_eq!(config.prefix(), "shop:dedup:");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisDedupConfig {
    prefix: String,
    retention: Duration,
    response_timeout: Duration,
    connect_timeout: Duration,
}

impl Default for RedisDedupConfig {
    fn default() -> Self {
        Self {
            prefix: "outbox:dedup:".to_owned(),
            retention: Duration::from_secs(24 * 3600),
            response_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(2),
        }
    }
}

impl RedisDedupConfig {
    /// What every key starts with; `outbox:dedup:` by default. Consumers of one group must agree on it.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// For how long a message is remembered as done; 24 hours by default. A delivery that comes later is
    /// handled again, so it must exceed every way a message can come late: the producer's retries, an outage
    /// of the consumer, a replay of dead letters.
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How long to wait for an answer on a connection that is there; 1 s by default, twice the client's own
    /// default. A step without an answer may still have happened, and a lost lease delays its message until
    /// it runs out, so short pauses of Redis (fork, fsync) should not count.
    #[must_use]
    pub fn with_response_timeout(mut self, timeout: Duration) -> Self {
        self.response_timeout = timeout;
        self
    }

    /// How long connecting may take, TLS and login included; 2 s by default. No call takes longer than both
    /// time-outs together.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// What every key starts with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// For how long a message is remembered as done.
    #[must_use]
    pub fn retention(&self) -> Duration {
        self.retention
    }

    /// How long to wait for an answer.
    #[must_use]
    pub fn response_timeout(&self) -> Duration {
        self.response_timeout
    }

    /// How long connecting may take.
    #[must_use]
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// No call takes longer.
    pub(crate) fn limit(&self) -> Duration {
        self.connect_timeout.saturating_add(self.response_timeout)
    }
}
