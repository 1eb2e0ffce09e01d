use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use outbox_core::{Clock, SystemClock, Timestamp};

/// How long the last look at the server's clock is good for; host clocks drift by microseconds meanwhile.
const FRESH: Duration = Duration::from_secs(60);
/// No interval is longer: the years after 9999 are outside of what all databases can hold.
const LONGEST: i64 = 1_000 * 366 * 24 * 3600 * 1_000_000;

/// The "now" of one operation.
#[derive(Debug, Clone, Copy)]
pub enum Now {
    /// What the database's own clock says when it runs the statement.
    Server,
    /// What the store's clock said when the operation began.
    At(Timestamp),
}

/// How much later than now.
#[derive(Debug, Clone, Copy)]
pub enum Amount {
    /// So many microseconds; earlier, if negative.
    Micros(i64),
    /// So many microseconds as this column says.
    Column(&'static str),
}

/// Who is asked for the time.
#[derive(Debug)]
pub enum Time {
    Server(ServerClock),
    Given(Arc<dyn Clock>),
}

impl Time {
    pub(crate) fn now(&self) -> Now {
        match self {
            Self::Server(_) => Now::Server,
            Self::Given(clock) => Now::At(clock.now()),
        }
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        match self {
            Self::Server(clock) => clock,
            Self::Given(clock) => clock,
        }
    }
}

/// Follows the database server's clock: the last time it told, plus what has passed since on the monotonic
/// clock of this host. Before it has told for the first time, the clock of this host.
#[derive(Debug, Default)]
pub struct ServerClock(Mutex<Option<Reading>>);

#[derive(Debug, Clone, Copy)]
struct Reading {
    server: Timestamp,
    at: Instant,
}

impl ServerClock {
    fn reading(&self) -> Option<Reading> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.reading().is_none()
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.reading().is_none_or(|reading| reading.at.elapsed() > FRESH)
    }

    /// The server said `server` at some moment since `asked`.
    pub(crate) fn set(&self, server: Timestamp, asked: Instant) {
        let reading = Reading { server, at: asked + asked.elapsed() / 2 };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reading);
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        match self.reading() {
            Some(Reading { server, at }) => later(server, at.elapsed()),
            None => SystemClock.now(),
        }
    }
}

pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).map_or(LONGEST, |micros| micros.min(LONGEST))
}

/// `at + by`, in whole microseconds, within what every database can hold.
pub(crate) fn later(at: Timestamp, by: Duration) -> Timestamp {
    moved(at, micros(by))
}

/// `at`, so many microseconds later, or earlier if negative.
pub(crate) fn moved(at: Timestamp, micros: i64) -> Timestamp {
    let end = if micros < 0 { DateTime::<Utc>::MIN_UTC } else { DateTime::<Utc>::MAX_UTC };
    storable(at.checked_add_signed(TimeDelta::microseconds(micros)).unwrap_or(end))
}

/// Whole microseconds, between the years 1 and 9999.
pub(crate) fn storable(at: Timestamp) -> Timestamp {
    const FIRST: i64 = -62_135_596_800;
    const LAST: i64 = 253_402_300_799;
    let end = |secs, nanos| DateTime::from_timestamp(secs, nanos).unwrap_or(at);
    at.trunc_subsecs(6).clamp(end(FIRST, 0), end(LAST, 999_999_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_clock_goes_on_from_what_the_server_said() {
        let clock = ServerClock::default();
        assert!(clock.is_stale());
        let server = SystemClock.now() - TimeDelta::hours(3);
        clock.set(server, Instant::now());
        assert!(!clock.is_stale());
        let passed = clock.now() - server;
        assert!(passed >= TimeDelta::zero() && passed < TimeDelta::minutes(1), "{passed}");
    }

    #[test]
    fn no_time_leaves_the_four_digit_years() {
        let last = "9999-12-31T23:59:59.999999Z";
        assert_eq!(
            storable(DateTime::<Utc>::MAX_UTC).to_rfc3339_opts(chrono::SecondsFormat::Micros, true),
            last
        );
        assert_eq!(storable(DateTime::<Utc>::MIN_UTC).timestamp(), -62_135_596_800);
        assert!(moved(SystemClock.now(), -micros(Duration::MAX)) > storable(DateTime::<Utc>::MIN_UTC));
        assert!(later(SystemClock.now(), Duration::MAX) < storable(DateTime::<Utc>::MAX_UTC));
    }
}
