use std::fmt;

use outbox::{Stats, Status};

use crate::deliveries::Deliveries;

/// What the shop knows by its own bookkeeping: the `msg_id`s of its transactions, by how they ended.
#[derive(Debug, Default)]
pub struct Ledger {
    pub committed: Vec<String>,
    pub rolled_back: Vec<String>,
}

/// The books of the shop, the database and the consumer side by side.
#[derive(Debug)]
pub struct Report {
    committed: usize,
    rolled_back: usize,
    orders: usize,
    messages: Stats,
    delivered: usize,
    lost: usize,
    rolled_back_delivered: usize,
    unknown_delivered: usize,
    duplicates: usize,
}

impl Report {
    pub fn new(ledger: &Ledger, orders: usize, messages: Stats, deliveries: &Deliveries) -> Self {
        let delivered = deliveries.received_of(&ledger.committed);
        let rolled_back_delivered = deliveries.received_of(&ledger.rolled_back);
        Self {
            committed: ledger.committed.len(),
            rolled_back: ledger.rolled_back.len(),
            orders,
            messages,
            delivered,
            lost: ledger.committed.len() - delivered,
            rolled_back_delivered,
            unknown_delivered: deliveries.distinct() - delivered - rolled_back_delivered,
            duplicates: deliveries.total() - deliveries.distinct(),
        }
    }

    /// Every promise that was broken; none is what we want.
    pub fn broken_promises(&self) -> Vec<String> {
        let rows: u64 = self.messages.rows.values().sum();
        let unfinished = rows - self.messages.count(Status::Completed);
        let checks = [
            (self.lost > 0, format!("{} committed messages were lost", self.lost)),
            (
                self.rolled_back_delivered > 0,
                format!("{} rolled-back messages were delivered", self.rolled_back_delivered),
            ),
            (
                self.unknown_delivered > 0,
                format!("{} messages were delivered that nobody wrote", self.unknown_delivered),
            ),
            (
                self.orders != self.committed,
                format!("{} orders are in the table, {} were committed", self.orders, self.committed),
            ),
            (
                rows != self.committed as u64,
                format!("{rows} messages are in the outbox, {} were committed", self.committed),
            ),
            (unfinished > 0, format!("{unfinished} messages are not completed")),
        ];
        checks.into_iter().filter(|(broken, _)| *broken).map(|(_, text)| text).collect()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |what: &str, count: u64| writeln!(f, "  {what:<36}{count:>8}");
        line("orders committed", self.committed as u64)?;
        line("orders rolled back", self.rolled_back as u64)?;
        for status in Status::ALL {
            line(&format!("messages {status}"), self.messages.count(status))?;
        }
        line("delivered", self.delivered as u64)?;
        line("lost", self.lost as u64)?;
        line("rolled-back messages delivered", self.rolled_back_delivered as u64)?;
        line("duplicates seen by the consumer", self.duplicates as u64)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn ids(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    /// Two commits, `a` and `b`, and a rollback, `x`.
    fn report(orders: usize, rows: &[(Status, u64)], received: &[&str]) -> Report {
        let ledger = Ledger { committed: ids(&["a", "b"]), rolled_back: ids(&["x"]) };
        let deliveries = Deliveries::default();
        received.iter().for_each(|msg_id| deliveries.record(msg_id));
        let messages = Stats { rows: rows.iter().copied().collect(), oldest_due: None };
        Report::new(&ledger, orders, messages, &deliveries)
    }

    #[track_caller]
    fn assert_only(report: &Report, part: &str) {
        let broken = report.broken_promises();
        assert!(broken.len() == 1 && broken[0].contains(part), "{broken:?}");
    }

    const ALL_COMPLETED: &[(Status, u64)] = &[(Status::Completed, 2)];

    #[test]
    fn all_delivered_keeps_every_promise() {
        assert_eq!(report(2, ALL_COMPLETED, &["a", "b"]).broken_promises(), Vec::<String>::new());
    }

    #[test]
    fn duplicates_are_counted_and_allowed() {
        let report = report(2, ALL_COMPLETED, &["a", "b", "b", "b"]);
        assert!(report.broken_promises().is_empty());
        assert_eq!(report.duplicates, 2);
    }

    #[test]
    fn a_lost_message_is_a_failure() {
        assert_only(&report(2, ALL_COMPLETED, &["a"]), "1 committed messages were lost");
    }

    #[test]
    fn a_duplicate_does_not_make_up_for_a_lost_message() {
        assert_only(&report(2, ALL_COMPLETED, &["a", "a"]), "1 committed messages were lost");
    }

    #[test]
    fn a_rolled_back_message_delivered_is_a_failure() {
        assert_only(&report(2, ALL_COMPLETED, &["a", "b", "x"]), "1 rolled-back messages were delivered");
    }

    #[test]
    fn an_unknown_message_delivered_is_a_failure() {
        assert_only(
            &report(2, ALL_COMPLETED, &["a", "b", "?"]),
            "1 messages were delivered that nobody wrote",
        );
    }

    #[test]
    fn a_pending_or_failed_message_is_a_failure() {
        for status in [Status::Pending, Status::Sent, Status::Failed] {
            let rows = [(Status::Completed, 1), (status, 1)];
            assert_only(&report(2, &rows, &["a", "b"]), "1 messages are not completed");
        }
    }

    #[test]
    fn orders_and_messages_must_match_the_commits() {
        assert_only(&report(3, ALL_COMPLETED, &["a", "b"]), "3 orders are in the table");
        assert_only(&report(2, &[(Status::Completed, 3)], &["a", "b"]), "3 messages are in the outbox");
    }

    #[test]
    fn table_shows_every_count() {
        let text = report(2, &[(Status::Completed, 1), (Status::Failed, 1)], &["a", "x", "x"]).to_string();
        let counts: Vec<(&str, &str)> =
            text.lines().map(|line| line.trim().rsplit_once(' ').unwrap()).collect();
        let count = |what: &str| counts.iter().find(|(name, _)| name.trim() == what).unwrap().1;
        let expected = [
            ("orders committed", "2"),
            ("orders rolled back", "1"),
            ("messages pending", "0"),
            ("messages completed", "1"),
            ("messages failed", "1"),
            ("delivered", "1"),
            ("lost", "1"),
            ("rolled-back messages delivered", "1"),
            ("duplicates seen by the consumer", "1"),
        ];
        for (what, number) in expected {
            assert_eq!(count(what), number, "{what}\n{text}");
        }
    }
}
