use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, SubsecRound, Utc};

/// A point in time, always UTC. Stores keep microseconds.
pub type Timestamp = DateTime<Utc>;

/// The source of "now" for due times and leases.
///
/// Every component asks its store's clock ([`OutboxStore::clock`](crate::OutboxStore::clock)), so that
/// all relays that share a table agree on time whatever their hosts believe.
pub trait Clock: Debug + Send + Sync + 'static {
    /// The current time, rounded down to the microsecond so that a stored value reads back equal.
    fn now(&self) -> Timestamp;
}

/// The clock of this host.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Utc::now().trunc_subsecs(6)
    }
}

/// A clock that moves only when told to; clones share the same time.
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<Timestamp>>);

impl ManualClock {
    /// A clock that stands at `start`.
    #[must_use]
    pub fn new(start: Timestamp) -> Self {
        Self(Arc::new(Mutex::new(start.trunc_subsecs(6))))
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now = later(*now, by);
    }

    /// Moves the clock to `to`, which may lie in the past.
    pub fn set(&self, to: Timestamp) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = to.trunc_subsecs(6);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

impl<C: Clock + ?Sized> Clock for Box<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// `at + by`, in whole microseconds, stopping at the end of representable time instead of overflowing.
pub(crate) fn later(at: Timestamp, by: Duration) -> Timestamp {
    let micros = i64::try_from(by.as_micros()).unwrap_or(i64::MAX);
    at.checked_add_signed(chrono::Duration::microseconds(micros)).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_is_shared_and_moves_only_when_told() {
        let clock = ManualClock::new(DateTime::UNIX_EPOCH);
        let other = clock.clone();
        other.advance(Duration::from_secs(90));
        assert_eq!(clock.now().timestamp(), 90);
    }

    #[test]
    fn later_saturates() {
        assert_eq!(later(DateTime::UNIX_EPOCH, Duration::MAX), DateTime::<Utc>::MAX_UTC);
    }
}
