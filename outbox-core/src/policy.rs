use std::time::Duration;

use crate::pattern::Pattern;
use crate::retry::RetryPolicy;

/// How messages of some biz types are treated.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    retry: RetryPolicy,
    required_groups: Vec<String>,
    ack_timeout: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            retry: RetryPolicy::default(),
            required_groups: Vec::new(),
            ack_timeout: Duration::from_secs(3600),
        }
    }
}

impl Policy {
    /// Retries of publishing.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// The consumer groups that must acknowledge a message before it is completed. None by default: then
    /// it is completed as soon as it is confirmed.
    #[must_use]
    pub fn with_required_groups<G: Into<String>>(mut self, groups: impl IntoIterator<Item = G>) -> Self {
        self.required_groups = groups.into_iter().map(Into::into).collect();
        self.required_groups.sort();
        self.required_groups.dedup();
        self
    }

    /// After how long missing receipts are overdue; an hour by default.
    #[must_use]
    pub fn with_ack_timeout(mut self, timeout: Duration) -> Self {
        self.ack_timeout = timeout;
        self
    }

    /// Retries of publishing.
    #[must_use]
    pub fn retry(&self) -> &RetryPolicy {
        &self.retry
    }

    /// The consumer groups that must acknowledge, sorted, each once.
    #[must_use]
    pub fn required_groups(&self) -> &[String] {
        &self.required_groups
    }

    /// After how long missing receipts are overdue.
    #[must_use]
    pub fn ack_timeout(&self) -> Duration {
        self.ack_timeout
    }
}

/// A [`Policy`] for every biz type: the first rule whose pattern matches, else the default. Give the same
/// to the store (it snapshots the required groups at enqueue) and to the relay.
///
/// ```
/// use outbox_core::{Policies, Policy, RetryPolicy};
///
/// let policies = Policies::default()
///     .with_rule("order.created", Policy::default().with_required_groups(["inventory", "points"]))
///     .with_rule("mail.#", Policy::default().with_retry(RetryPolicy::default().with_max_attempts(2)));
/// assert_eq!(policies.of("mail.welcome").retry().max_attempts(), 2);
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policies {
    default: Policy,
    rules: Vec<(Pattern, Policy)>,
}

impl Policies {
    /// One policy for everything that no rule matches.
    #[must_use]
    pub fn new(default: Policy) -> Self {
        Self { default, rules: Vec::new() }
    }

    /// Adds a rule after those that are there.
    #[must_use]
    pub fn with_rule(mut self, pattern: impl Into<Pattern>, policy: Policy) -> Self {
        self.rules.push((pattern.into(), policy));
        self
    }

    /// The policy of a biz type.
    #[must_use]
    pub fn of(&self, biz_type: &str) -> &Policy {
        self.rules
            .iter()
            .find(|(pattern, _)| pattern.matches(biz_type))
            .map_or(&self.default, |(_, policy)| policy)
    }
}
