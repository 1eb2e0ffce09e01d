use std::time::Duration;

/// A pause that doubles from `min` to `max`, with up to a tenth added at random so that those who lost the same
/// service do not come back together.
#[derive(Debug, Clone)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    next: Duration,
}

impl Backoff {
    /// The first pause is `min`.
    #[must_use]
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min, max, next: min }
    }

    /// The next pause is `min` again.
    pub fn reset(&mut self) {
        self.next = self.min;
    }

    /// How long to pause now.
    pub fn pause(&mut self) -> Duration {
        let pause = self.next;
        self.next = (self.next * 2).min(self.max);
        pause + pause.mul_f64(fastrand::f64() / 10.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_up_to_the_maximum_and_starts_over() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_millis(350));
        let mut within = |ms: u64| {
            let pause = backoff.pause();
            assert!(pause >= Duration::from_millis(ms) && pause <= Duration::from_millis(ms + ms / 10 + 1));
        };
        within(100);
        within(200);
        within(350);
        within(350);
        backoff.reset();
        assert!(backoff.pause() < Duration::from_millis(111));
    }
}
