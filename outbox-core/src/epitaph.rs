use chrono::{SecondsFormat, Utc};

use crate::wire;

/// Longer reasons are cut, in characters.
const LONGEST_REASON: usize = 1_000;

/// What is written on a dead letter.
#[derive(Debug, Clone)]
pub struct Epitaph<'a> {
    /// The group that gave it up.
    pub group: &'a str,
    /// Why, for people; at most 1,000 characters of it.
    pub reason: &'a str,
    /// How often its handler has run.
    pub attempts: u32,
}

impl Epitaph<'_> {
    /// As headers, with the time of now.
    #[must_use]
    pub fn headers(&self) -> [(&'static str, String); 4] {
        [
            (wire::DEAD_REASON, self.reason.chars().take(LONGEST_REASON).collect()),
            (wire::DEAD_GROUP, self.group.to_owned()),
            (wire::DEAD_AT, Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true)),
            (wire::DEAD_ATTEMPTS, self.attempts.to_string()),
        ]
    }

    /// Whether a header is one of these.
    #[must_use]
    pub fn has_header(name: &str) -> bool {
        [wire::DEAD_REASON, wire::DEAD_GROUP, wire::DEAD_AT, wire::DEAD_ATTEMPTS].contains(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn says_who_why_and_how_often_and_no_novel() {
        let reason = "é".repeat(2_000);
        let headers = Epitaph { group: "points", reason: &reason, attempts: 5 }.headers();
        let value =
            |name| headers.iter().find(|(header, _)| *header == name).map(|(_, value)| value.as_str());
        assert_eq!(value(wire::DEAD_REASON).map(|reason| reason.chars().count()), Some(1_000));
        assert_eq!((value(wire::DEAD_GROUP), value(wire::DEAD_ATTEMPTS)), (Some("points"), Some("5")));
        assert!(headers.iter().all(|(name, _)| Epitaph::has_header(name)));
        assert!(!Epitaph::has_header(wire::ATTEMPTS));
    }
}
