use std::fmt;
use std::time::Duration;

/// Done markers may be gone when their message comes for the last time: it would be handled again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortRetention {
    /// For how long done markers are kept.
    pub retention: Duration,
    /// For how long a message may keep coming.
    pub horizon: Duration,
}

impl ShortRetention {
    pub(super) fn check(retention: Duration, horizon: Duration) -> Option<Self> {
        (retention <= horizon).then_some(Self { retention, horizon })
    }
}

impl fmt::Display for ShortRetention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "done markers are kept for {}, but a message may come again after {}, and would be handled twice: \
             keep them longer, or retry for less long",
            Hours(self.retention),
            Hours(self.horizon)
        )
    }
}

/// `26 h 3 min`, `45 s`.
struct Hours(Duration);

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.as_secs() {
            seconds @ 0..60 => write!(f, "{seconds} s"),
            seconds @ 60..3600 => write!(f, "{} min", seconds / 60),
            seconds => write!(f, "{} h {} min", seconds / 3600, seconds % 3600 / 60),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_both_numbers_when_the_retention_is_too_short() {
        let hour = Duration::from_secs(3600);
        assert_eq!(ShortRetention::check(2 * hour, hour), None);
        let short = ShortRetention::check(hour, hour).map(|short| short.to_string()).unwrap_or_default();
        assert!(short.contains("kept for 1 h 0 min") && short.contains("again after 1 h 0 min"), "{short}");
        assert_eq!(Hours(Duration::from_secs(45)).to_string(), "45 s");
        assert_eq!(Hours(Duration::from_secs(26 * 3600 + 200)).to_string(), "26 h 3 min");
        assert_eq!(Hours(Duration::from_secs(150)).to_string(), "2 min");
    }
}
