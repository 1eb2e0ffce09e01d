use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::breaker::BreakerState;

/// How a relay is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayHealth {
    /// The task that claims runs.
    pub sweeping: bool,
    /// The task that publishes runs.
    pub publishing: bool,
    /// The task that settles runs.
    pub settling: bool,
    /// Whether the store answered the last call.
    pub store_available: bool,
    /// The broker, as the breaker sees it.
    pub breaker: BreakerState,
    /// Rows claimed and not yet settled.
    pub in_flight: usize,
}

impl RelayHealth {
    /// All tasks run. If not, only a new relay helps.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.sweeping && self.publishing && self.settling
    }

    /// Live, and both the store and the broker can be used.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.is_live() && self.store_available && self.breaker == BreakerState::Closed
    }
}

/// What the tasks report.
#[derive(Debug)]
pub(crate) struct Pulse {
    store_available: AtomicBool,
    in_flight: AtomicUsize,
}

impl Pulse {
    pub(crate) fn new() -> Self {
        Self { store_available: AtomicBool::new(true), in_flight: AtomicUsize::new(0) }
    }

    /// Answers whether this changed something.
    pub(crate) fn store_available(&self, available: bool) -> bool {
        self.store_available.swap(available, Ordering::Relaxed) != available
    }

    pub(crate) fn is_store_available(&self) -> bool {
        self.store_available.load(Ordering::Relaxed)
    }

    pub(crate) fn took(&self, rows: usize) {
        let before = self.in_flight.fetch_add(rows, Ordering::Relaxed);
        gauge(before + rows);
    }

    pub(crate) fn gave(&self, rows: usize) {
        let before = self.in_flight.fetch_sub(rows, Ordering::Relaxed);
        gauge(before.saturating_sub(rows));
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a count of rows in memory")]
fn gauge(rows: usize) {
    metrics::gauge!("outbox_in_flight").set(rows as f64);
}
