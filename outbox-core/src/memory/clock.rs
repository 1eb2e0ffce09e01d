use chrono::SubsecRound;
use tokio::time::Instant;

use crate::clock::{Clock, Timestamp, later};

/// A clock that moves with [`tokio::time`]: with paused time, leases, due times and the relay's timers move
/// together, and a simulated day takes no time at all.
#[derive(Debug, Clone, Copy)]
pub struct TokioClock {
    epoch: Timestamp,
    start: Instant,
}

impl TokioClock {
    /// A clock that shows `epoch` now.
    #[must_use]
    pub fn starting_at(epoch: Timestamp) -> Self {
        Self { epoch: epoch.trunc_subsecs(6), start: Instant::now() }
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        later(self.epoch, self.start.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chrono::DateTime;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_paused_time() {
        let clock = TokioClock::starting_at(DateTime::UNIX_EPOCH);
        tokio::time::sleep(Duration::from_secs(86_400)).await;
        assert_eq!(clock.now().timestamp(), 86_400);
    }
}
