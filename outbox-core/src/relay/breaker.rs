use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tracing::{info, warn};

/// Whether the relay publishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// Publishing.
    Closed,
    /// The broker is unavailable: nothing is claimed, the publisher is probed.
    Open,
    /// The publisher says it is ready: one message goes first.
    HalfOpen,
}

/// Stops claiming while the broker is unavailable.
///
/// Only a broker's answer to a publication closes it: a probe that says "ready" while publishing still fails
/// would otherwise make the relay claim and release the same rows at full speed.
#[derive(Debug)]
pub(crate) struct Breaker {
    state: Mutex<BreakerState>,
    failing: AtomicBool,
}

impl Breaker {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(BreakerState::Closed), failing: AtomicBool::new(false) }
    }

    pub(crate) fn state(&self) -> BreakerState {
        *self.lock()
    }

    /// A publication found the broker unavailable.
    pub(crate) fn trip(&self, reason: &str) {
        let first = !self.failing.swap(true, Ordering::Relaxed);
        *self.lock() = BreakerState::Open;
        if first {
            warn!(reason, "broker unavailable: nothing is claimed until it is back, no attempt is charged");
        }
        metrics::gauge!("outbox_breaker_open").set(1.0);
    }

    /// A probe says that publishing may work again.
    pub(crate) fn half_open(&self) {
        self.change(BreakerState::Open, BreakerState::HalfOpen);
    }

    /// The broker answered a publication, whatever it said. An open breaker stays open: the answer is to an
    /// earlier question.
    pub(crate) fn answered(&self) {
        if self.change(BreakerState::HalfOpen, BreakerState::Closed) {
            self.failing.store(false, Ordering::Relaxed);
            info!("broker available again");
            metrics::gauge!("outbox_breaker_open").set(0.0);
        }
    }

    /// Whether the broker has been failing without an answer since the breaker last closed.
    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    fn change(&self, from: BreakerState, to: BreakerState) -> bool {
        let mut state = self.lock();
        let is = *state == from;
        if is {
            *state = to;
        }
        is
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BreakerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_answer_after_a_probe_closes_it() {
        let breaker = Breaker::new();
        breaker.trip("gone");
        breaker.answered();
        assert_eq!(breaker.state(), BreakerState::Open);
        breaker.half_open();
        assert_eq!(breaker.state(), BreakerState::HalfOpen);
        assert!(breaker.is_failing());
        breaker.answered();
        assert_eq!(breaker.state(), BreakerState::Closed);
        assert!(!breaker.is_failing());
    }

    #[test]
    fn half_open_needs_an_open_one() {
        let breaker = Breaker::new();
        breaker.half_open();
        assert_eq!(breaker.state(), BreakerState::Closed);
    }
}
