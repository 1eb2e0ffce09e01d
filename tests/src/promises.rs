use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};

use crate::audit::Step;
use crate::deliveries::Deliveries;
use crate::ledger::Ledger;
use crate::tables::OutboxRow;

const SHOWN: usize = 20;

/// Everything that is known once a test has come to rest.
#[derive(Debug, Default)]
pub struct Evidence {
    /// What the test did.
    pub ledger: Ledger,
    /// What the queues got.
    pub deliveries: Deliveries,
    /// What is in the table.
    pub rows: Vec<OutboxRow>,
    /// How it came there.
    pub steps: Vec<Step>,
}

impl Evidence {
    /// Fails with a list of the promises that are broken.
    pub fn judge(&self) -> Result<()> {
        let broken = self.violations();
        if broken.is_empty() {
            return Ok(());
        }
        let shown: Vec<_> = broken.iter().take(SHOWN).cloned().collect();
        bail!("{} promises broken:\n  {}", broken.len(), shown.join("\n  "))
    }

    fn violations(&self) -> Vec<String> {
        let mut broken = self.delivery();
        broken.extend(self.conservation());
        broken.extend(self.rows.iter().flat_map(|row| self.rest(row)));
        broken.extend(self.history());
        broken
    }

    /// Never lost, never out of nothing, never more often than what was broken explains.
    fn delivery(&self) -> Vec<String> {
        let counts = self.deliveries.counts();
        let mut broken = Vec::new();
        for id in self.ledger.all() {
            if !counts.contains_key(id) && !self.ledger.is_failed(id) {
                broken.push(format!("{id} was committed and never delivered"));
            }
        }
        for (id, count) in counts {
            let allowed = self.ledger.allowed(&id);
            if count > allowed {
                broken.push(format!("{id} was delivered {count} times, {allowed} are explained"));
            }
        }
        broken
    }

    /// Committed = rows, whatever their status.
    fn conservation(&self) -> Vec<String> {
        let there: BTreeSet<_> = self.rows.iter().map(|row| row.msg_id.clone()).collect();
        let missing = self.ledger.all().difference(&there).map(|id| format!("{id} has no row any more"));
        let unknown = there.difference(self.ledger.all()).map(|id| format!("{id} has a row, uncommitted"));
        missing.chain(unknown).collect()
    }

    /// What a row looks like when nobody works on it any more.
    fn rest(&self, row: &OutboxRow) -> Vec<String> {
        let id = &row.msg_id;
        let mut broken = Vec::new();
        let failed = self.ledger.is_failed(id);
        if failed != (row.status == 9) || row.status == 0 {
            broken.push(format!("{id} has status {}: {:?}", row.status, row.last_error));
        }
        if failed && row.last_error.as_ref().is_none_or(String::is_empty) {
            broken.push(format!("{id} failed without a reason"));
        }
        if row.is_claimed() {
            broken.push(format!("{id} is still claimed"));
        }
        broken
    }

    /// Every step of every row against the state machine.
    fn history(&self) -> Vec<String> {
        let mut rows: BTreeMap<&str, RowHistory<'_>> = BTreeMap::new();
        let mut broken = Vec::new();
        for step in &self.steps {
            let row = rows.entry(&step.msg_id).or_default();
            broken
                .extend(row.take(step).into_iter().map(|what| format!("{}: {what}: {step:?}", step.msg_id)));
        }
        broken
    }
}

#[derive(Debug, Default)]
struct RowHistory<'a> {
    last: Option<&'a Step>,
    tokens: BTreeSet<&'a str>,
}

impl<'a> RowHistory<'a> {
    /// What is wrong with the step from the last one to this.
    fn take(&mut self, next: &'a Step) -> Vec<&'static str> {
        let Some(last) = self.last.replace(next) else { return first(next) };
        let new_token = next.claim_token.is_some() && next.claim_token != last.claim_token;
        let fresh = next.claim_token.as_deref().is_none_or(|token| self.tokens.insert(token));
        let rules = [
            (
                matches!((last.status, next.status), (0, _) | (1, 1 | 2) | (2, 2) | (9, 9)),
                "impossible change of status",
            ),
            (next.claim_no >= last.claim_no, "the claim number went down"),
            (!new_token || next.claim_no == last.claim_no + 1, "a claim that is not counted"),
            (new_token || next.claim_no == last.claim_no, "a claim number without a claim"),
            (!new_token || fresh, "a token that was used before"),
            (!new_token || last.lease_until.is_none_or(|end| end <= next.at), "a claim on a live lease"),
            (!new_token || last.next_retry_time <= next.at, "a claim before the due time"),
            (next.status == 0 || next.claim_token.is_none(), "a claim on a row that is not pending"),
            (
                next.claim_token.is_some() == next.lease_until.is_some(),
                "a token without a lease, or the reverse",
            ),
            ((0..=1).contains(&(next.retry_count - last.retry_count)), "attempts are counted one by one"),
        ];
        rules.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what).collect()
    }
}

fn first(step: &Step) -> Vec<&'static str> {
    let is_new =
        step.status == 0 && step.retry_count == 0 && step.claim_no == 0 && step.claim_token.is_none();
    if is_new { Vec::new() } else { vec!["a row that was not born pending"] }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta, Utc};
    use lapin::BasicProperties;

    use super::*;
    use crate::deliveries::Delivered;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::seconds(seconds)
    }

    fn delivered(deliveries: &Deliveries, id: &str) {
        let properties = BasicProperties::default().with_message_id(id.into());
        deliveries.push(Delivered { routing_key: String::new(), properties, body: Vec::new() });
    }

    fn row(id: &str) -> OutboxRow {
        OutboxRow {
            id: 1,
            msg_id: id.into(),
            status: 2,
            retry_count: 0,
            next_retry_time: at(0),
            claim_token: None,
            claim_no: 1,
            lease_until: None,
            last_error: None,
        }
    }

    fn born() -> Step {
        Step {
            at: at(0),
            by: "test".into(),
            msg_id: "m".into(),
            status: 0,
            retry_count: 0,
            next_retry_time: at(0),
            claim_token: None,
            claim_no: 0,
            lease_until: None,
        }
    }

    fn claimed(token: &str, claim_no: i64, second: i64) -> Step {
        let lease_until = Some(at(second + 10));
        Step { at: at(second), claim_token: Some(token.into()), claim_no, lease_until, ..born() }
    }

    fn sent(claim_no: i64, second: i64) -> Step {
        Step { at: at(second), status: 2, claim_no, ..born() }
    }

    /// One message that went as it should.
    fn good() -> Evidence {
        let mut evidence = Evidence { rows: vec![row("m")], ..Default::default() };
        evidence.ledger.committed(["m"]);
        delivered(&evidence.deliveries, "m");
        evidence.steps = vec![born(), claimed("a", 1, 1), sent(1, 2)];
        evidence
    }

    fn breaks(what: &str, change: impl FnOnce(&mut Evidence)) {
        let mut evidence = good();
        change(&mut evidence);
        let broken = evidence.violations();
        assert!(broken.iter().any(|violation| violation.contains(what)), "{what}: {broken:?}");
    }

    #[test]
    fn promises_hold_for_a_good_run() {
        assert_eq!(good().violations(), Vec::<String>::new());
    }

    #[test]
    fn promises_find_what_is_lost_repeated_or_made_up() {
        breaks("never delivered", |e| e.deliveries = Deliveries::default());
        breaks("delivered 2 times, 1", |e| delivered(&e.deliveries, "m"));
        breaks("delivered 1 times, 0", |e| delivered(&e.deliveries, "rolled back"));
        breaks("delivered 1 times, 0", |e| e.ledger.failed(["m"]));
        let mut evidence = good();
        evidence.ledger.may_repeat(["m"]);
        delivered(&evidence.deliveries, "m");
        assert_eq!(evidence.violations(), Vec::<String>::new());
        delivered(&evidence.deliveries, "m");
        assert_eq!(evidence.violations().len(), 1);
    }

    #[test]
    fn promises_find_rows_that_are_not_at_rest() {
        breaks("no row any more", |e| e.rows.clear());
        breaks("uncommitted", |e| e.rows.push(row("x")));
        breaks("status 0", |e| e.rows[0].status = 0);
        breaks("status 9", |e| e.rows[0].status = 9);
        breaks("status 2", |e| e.ledger.failed(["m"]));
        breaks("without a reason", |e| e.ledger.failed(["m"]));
        breaks("still claimed", |e| e.rows[0].claim_token = Some("a".into()));
        breaks("still claimed", |e| e.rows[0].lease_until = Some(at(9)));
    }

    #[test]
    fn promises_find_impossible_steps() {
        breaks("impossible change of status", |e| e.steps.push(born()));
        breaks("went down", |e| e.steps[2].claim_no = 0);
        breaks("not counted", |e| e.steps[1].claim_no = 0);
        breaks("without a claim", |e| e.steps[2].claim_no = 2);
        breaks("used before", |e| {
            e.steps.insert(2, Step { claim_no: 1, ..born() });
            e.steps.insert(3, claimed("a", 2, 1));
        });
        breaks("live lease", |e| e.steps.insert(2, claimed("b", 2, 10)));
        breaks("before the due time", |e| e.steps[0].next_retry_time = at(5));
        breaks("not pending", |e| e.steps[2].claim_token = Some("a".into()));
        breaks("without a lease", |e| e.steps[1].lease_until = None);
        breaks("one by one", |e| e.steps[2].retry_count = 2);
        breaks("not born pending", |e| drop(e.steps.remove(0)));
    }

    #[test]
    fn promises_allow_a_claim_after_the_lease() {
        let mut evidence = good();
        evidence.steps = vec![born(), claimed("a", 1, 1), claimed("b", 2, 11), sent(2, 12)];
        assert_eq!(evidence.violations(), Vec::<String>::new());
    }
}
