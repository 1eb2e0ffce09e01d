use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// When to try again, and when to give up.
///
/// The default: after 1 min, 5 min, 30 min and 2 h, and failed at the fifth attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct RetryPolicy {
    steps: Vec<Duration>,
    max_attempts: u32,
    jitter: f64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self { steps: vec![MINUTE, 5 * MINUTE, 30 * MINUTE, 120 * MINUTE], max_attempts: 5, jitter: 0.1 }
    }
}

impl RetryPolicy {
    /// The waits after the first, second, … failed attempt; the last one repeats. No steps: no waiting.
    #[must_use]
    pub fn with_steps(mut self, steps: impl Into<Vec<Duration>>) -> Self {
        self.steps = steps.into();
        self
    }

    /// At this many failed attempts the message is failed; at least 1.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Up to this share of a step is added to it at random, so that what failed together does not come back
    /// together. Between 0 and 1.
    #[must_use]
    pub fn with_jitter(mut self, share: f64) -> Self {
        self.jitter = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
        self
    }

    /// At this many failed attempts the message is failed.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// The wait after the `attempt`th failure (from 1), for `random` in `0.0..1.0`.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: f64) -> Duration {
        let last = self.steps.len().saturating_sub(1);
        let index = (attempt.saturating_sub(1) as usize).min(last);
        let step = self.steps.get(index).copied().unwrap_or_default();
        let random = if random.is_finite() { random.clamp(0.0, 1.0) } else { 0.0 };
        // `mul_f64` would panic on the longest durations.
        let jitter = Duration::try_from_secs_f64(step.as_secs_f64() * self.jitter * random);
        step.saturating_add(jitter.unwrap_or(Duration::MAX))
    }

    /// The longest time from the first attempt to the last, jitter included.
    #[must_use]
    pub fn horizon(&self) -> Duration {
        let waits = self.max_attempts.saturating_sub(1);
        let different = waits.min(u32::try_from(self.steps.len()).unwrap_or(u32::MAX));
        let sum = (1..=different).fold(Duration::ZERO, |sum, n| sum.saturating_add(self.delay(n, 1.0)));
        sum.saturating_add(self.delay(waits, 1.0).saturating_mul(waits - different))
    }
}
