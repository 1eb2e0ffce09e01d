use std::time::Duration;

use tokio::sync::Semaphore;

/// As good as never, and still a time that clocks can add.
pub(super) const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

fn within_bounds(duration: Duration) -> Duration {
    duration.clamp(Duration::from_millis(1), LONGEST)
}

/// Settings of a [`Relay`](crate::Relay). The defaults are measured ones. Durations are at least 1 ms and at most a
/// year.
#[derive(Debug, Clone, PartialEq)]
pub struct RelayConfig {
    pub(crate) batch: usize,
    pub(crate) batch_bytes: usize,
    pub(crate) window: usize,
    pub(crate) lease: Duration,
    pub(crate) sweep_min: Duration,
    pub(crate) sweep_max: Duration,
    pub(crate) publish_timeout: Duration,
    pub(crate) store_timeout: Duration,
    pub(crate) backoff_min: Duration,
    pub(crate) backoff_max: Duration,
    pub(crate) suspect_after: u32,
    pub(crate) max_unsettled: u32,
}

impl Default for RelayConfig {
    fn default() -> Self {
        Self {
            batch: 500,
            batch_bytes: 16 * 1024 * 1024,
            window: 2,
            lease: Duration::from_secs(60),
            sweep_min: Duration::from_millis(100),
            sweep_max: Duration::from_secs(5),
            publish_timeout: Duration::from_secs(120),
            store_timeout: Duration::from_secs(30),
            backoff_min: Duration::from_millis(200),
            backoff_max: Duration::from_secs(10),
            suspect_after: 3,
            max_unsettled: 10,
        }
    }
}

impl RelayConfig {
    /// Rows claimed, published and settled together; 500 by default. At least 1.
    #[must_use]
    pub fn with_batch(mut self, rows: usize) -> Self {
        self.batch = rows.max(1);
        self
    }

    /// Payload bytes that a batch should hold at most; 16 MiB by default. By what the last rows measured fewer
    /// are claimed together, so a row that is far larger than those before it still comes with its batch.
    #[must_use]
    pub fn with_batch_bytes(mut self, bytes: usize) -> Self {
        self.batch_bytes = bytes;
        self
    }

    /// Batches being published at the same time; 2 by default. At least 1. Two more may wait, claimed.
    #[must_use]
    pub fn with_window(mut self, batches: usize) -> Self {
        self.window = batches.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// How long a claim lasts without renewal; 60 s by default. After a crash its rows wait for this long, so
    /// it also bounds the delay that a crash causes.
    #[must_use]
    pub fn with_lease(mut self, lease: Duration) -> Self {
        self.lease = within_bounds(lease);
        self
    }

    /// The pause after a sweep that found nothing grows from `min` to `max`; 100 ms to 5 s by default. A
    /// [`Waker`](super::Waker) cuts it short; where every writer has one, `max` may be 30 s.
    #[must_use]
    pub fn with_sweep(mut self, min: Duration, max: Duration) -> Self {
        self.sweep_min = within_bounds(min);
        self.sweep_max = within_bounds(max).max(self.sweep_min);
        self
    }

    /// When a call to the publisher that does not come back counts as failed; 2 min by default. Publishers
    /// bring an end to their calls themselves: this is for those that do not.
    #[must_use]
    pub fn with_publish_timeout(mut self, timeout: Duration) -> Self {
        self.publish_timeout = within_bounds(timeout);
        self
    }

    /// When a call to the store that does not come back counts as failed; 30 s by default.
    #[must_use]
    pub fn with_store_timeout(mut self, timeout: Duration) -> Self {
        self.store_timeout = within_bounds(timeout);
        self
    }

    /// The pause before the store or an unavailable broker is tried again grows from `min` to `max`; 200 ms
    /// to 10 s by default.
    #[must_use]
    pub fn with_backoff(mut self, min: Duration, max: Duration) -> Self {
        self.backoff_min = within_bounds(min);
        self.backoff_max = within_bounds(max).max(self.backoff_min);
        self
    }

    /// A row that was claimed `suspect_after` times without an outcome is published alone (3 by default),
    /// and after `max_unsettled` times it is failed (10 by default): such a row may be what kills relays.
    #[must_use]
    pub fn with_suspects(mut self, suspect_after: u32, max_unsettled: u32) -> Self {
        self.suspect_after = suspect_after.max(1);
        self.max_unsettled = max_unsettled.max(self.suspect_after);
        self
    }

    /// Rows claimed together.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Batches being published at the same time.
    #[must_use]
    pub fn window(&self) -> usize {
        self.window
    }

    /// The lease.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }
}
