use std::fmt;

/// A set of biz types, written as RabbitMQ writes topic bindings: words between dots, `*` for exactly one
/// word, `#` for any number of them.
///
/// ```
/// use outbox_core::Pattern;
///
/// let orders = Pattern::new("order.#");
/// assert!(orders.matches("order.created") && orders.matches("order"));
/// assert!(!orders.matches("point.granted"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Pattern(String);

impl Pattern {
    /// Every text is a pattern.
    #[must_use]
    pub fn new(pattern: impl Into<String>) -> Self {
        Self(pattern.into())
    }

    /// Whether `biz_type` is in the set.
    #[must_use]
    pub fn matches(&self, biz_type: &str) -> bool {
        let pattern: Vec<&str> = self.0.split('.').collect();
        let words: Vec<&str> = biz_type.split('.').collect();
        // reached[j]: the pattern read so far covers exactly the first j words. Linear per pattern word, where
        // backtracking would be exponential in the number of `#`.
        let mut reached = vec![false; words.len() + 1];
        reached[0] = true;
        for part in pattern {
            let mut next = vec![false; words.len() + 1];
            for j in 0..=words.len() {
                next[j] = match part {
                    "#" => reached[j] || (j > 0 && next[j - 1]),
                    "*" => j > 0 && reached[j - 1],
                    word => j > 0 && reached[j - 1] && words[j - 1] == word,
                };
            }
            reached = next;
        }
        reached[words.len()]
    }
}

impl<T: Into<String>> From<T> for Pattern {
    fn from(pattern: T) -> Self {
        Self::new(pattern)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topic_rules() {
        for (pattern, yes, no) in [
            ("order.created", vec!["order.created"], vec!["order", "order.created.x", "Order.created"]),
            ("order.*", vec!["order.created", "order."], vec!["order", "order.a.b"]),
            ("#", vec!["", "a", "a.b.c"], vec![]),
            ("order.#", vec!["order", "order.a", "order.a.b"], vec!["orders", "a.order"]),
            ("#.failed", vec!["failed", "a.failed", "a.b.failed"], vec!["failed.a"]),
            ("a.#.z", vec!["a.z", "a.b.z", "a.z.z"], vec!["a", "z", "a.b"]),
        ] {
            let pattern = Pattern::new(pattern);
            assert!(yes.iter().all(|t| pattern.matches(t)), "{pattern}");
            assert!(!no.iter().any(|t| pattern.matches(t)), "{pattern}");
        }
    }

    #[test]
    fn many_hashes_stay_fast() {
        let pattern = Pattern::new(vec!["#"; 40].join(".") + ".never");
        assert!(!pattern.matches(&vec!["a"; 60].join(".")));
    }
}
