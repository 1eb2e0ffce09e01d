//! Random operations on the store and on the in-memory one, which runs the state machine itself: every answer
//! and every row must be the same.

use std::time::Duration;

use outbox_core::memory::MemoryStore;
use outbox_core::{
    Claim, ClaimMode, ClaimRequest, Claimed, Clock, Enqueue, Filter, Message, OutboxStore, Outcome, Policies,
    Policy, Receipt, Row, Settlement,
};
use outbox_sqlx::SqlStore;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::harness::{Env, TestDb};
use crate::on_every_database;

on_every_database!(random_operations_end_as_in_the_model);

const RUNS: usize = 20;
const STEPS: usize = 40;
const GROUPS: [&str; 3] = ["a", "b", "c"];

/// One step; messages and claims are meant by their number, modulo how many there are.
#[derive(Debug, Clone)]
enum Step {
    Enqueue { decided: bool, idempotent: bool, rollback: bool, messages: Vec<(u8, u8, u64)> },
    Claim { limit: usize, suspects: bool },
    Renew(Vec<usize>),
    Settle(Vec<(usize, u8)>),
    Receipts(Vec<(u8, usize, u64, bool)>),
    Requeue { row: usize, claim_no: u64 },
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let message = (0..14_u8, 0..3_u8, 0..20_u64);
    let receipt = (0..15_u8, 0..3_usize, 0..4_u64, prop::bool::weighted(0.6));
    prop_oneof![
        3 => (any::<bool>(), prop::bool::weighted(0.8), prop::bool::weighted(0.1), prop::collection::vec(message, 0..5))
            .prop_map(|(decided, idempotent, rollback, messages)| Step::Enqueue {
                decided, idempotent, rollback, messages
            }),
        4 => (0..6_usize, prop::bool::weighted(0.2))
            .prop_map(|(limit, suspects)| Step::Claim { limit, suspects }),
        1 => prop::collection::vec(0..40_usize, 0..4).prop_map(Step::Renew),
        5 => prop::collection::vec((0..40_usize, 0..6_u8), 0..6).prop_map(Step::Settle),
        4 => prop::collection::vec(receipt, 0..6).prop_map(Step::Receipts),
        1 => (0..30_usize, 0..5_u64).prop_map(|(row, claim_no)| Step::Requeue { row, claim_no }),
        3 => (0..40_u64).prop_map(Step::Wait),
    ]
}

/// Both stores, and the claims that each has given out, pairwise.
struct Pair<DB: TestDb> {
    env: Env<DB>,
    sql: [SqlStore<DB>; 2],
    model: [MemoryStore; 2],
    claims: Vec<(Claim, Claim)>,
}

async fn random_operations_end_as_in_the_model<DB: TestDb>(env: Env<DB>) {
    let mut runner = TestRunner::default();
    let mut pair = Pair::new(env).await;
    for _ in 0..RUNS {
        pair.start_over().await;
        let steps = prop::collection::vec(step(), STEPS).new_tree(&mut runner).unwrap().current();
        for (n, step) in steps.iter().enumerate() {
            pair.take(step).await;
            pair.compare(&steps[..=n]).await;
        }
    }
}

impl<DB: TestDb> Pair<DB> {
    async fn new(env: Env<DB>) -> Self {
        let open = env.migrated().await;
        let sql = [open.clone(), open.with_policies(policies())];
        let model = Self::models(&env);
        Self { env, sql, model, claims: Vec::new() }
    }

    fn models(env: &Env<DB>) -> [MemoryStore; 2] {
        let open = MemoryStore::new().with_clock(env.clock.clone());
        [open.clone(), open.with_policies(policies())]
    }

    async fn start_over(&mut self) {
        self.env.exec("DELETE FROM {t}; DELETE FROM {t}_receipts").await.unwrap();
        self.model = Self::models(&self.env);
        self.claims.clear();
    }

    async fn take(&mut self, step: &Step) {
        match step {
            Step::Enqueue { decided, idempotent, rollback, messages } => {
                self.enqueue(usize::from(*decided), *idempotent, *rollback, messages).await;
            }
            Step::Claim { limit, suspects } => self.claim(*limit, *suspects).await,
            Step::Renew(claims) => self.renew(claims).await,
            Step::Settle(outcomes) => self.settle(outcomes).await,
            Step::Receipts(receipts) => self.record(receipts).await,
            Step::Requeue { row, claim_no } => self.requeue(*row, *claim_no).await,
            Step::Wait(seconds) => self.env.clock.advance(Duration::from_secs(*seconds)),
        }
    }

    async fn enqueue(&self, which: usize, idempotent: bool, rollback: bool, messages: &[(u8, u8, u64)]) {
        let messages: Vec<Message> = messages.iter().map(|m| self.message(*m)).collect();
        let (mut tx, mut model_tx) = (self.env.begin().await, self.model[which].begin());
        let (sql, model) = (&self.sql[which], &self.model[which]);
        let answers = if idempotent {
            let written = sql.enqueue_idempotent(&mut tx, &messages).await;
            (written, model.enqueue_idempotent(&mut model_tx, &messages).await)
        } else {
            let written = sql.enqueue(&mut tx, &messages).await.map(|()| messages.len());
            (written, model.enqueue(&mut model_tx, &messages).await.map(|()| messages.len()))
        };
        match answers {
            (Ok(written), Ok(expected)) => assert_eq!(written, expected),
            (Err(error), Err(expected)) => assert_eq!(error.kind(), expected.kind()),
            (written, expected) => panic!("enqueue: {written:?}, expected {expected:?}"),
        }
        if !rollback {
            let _ = tx.commit().await;
            model_tx.commit().await.unwrap();
        }
    }

    fn message(&self, (id, kind, delay): (u8, u8, u64)) -> Message {
        let kind = ["mail.sent", "order.created", "order.paid"][usize::from(kind)];
        let due = self.env.clock.now() + chrono::TimeDelta::seconds(i64::try_from(delay).unwrap() - 10);
        let message = Message::json(kind, "b", &id).unwrap().with_msg_id(format!("m{id}")).unwrap();
        if delay > 10 { message.with_deliver_after(due) } else { message }
    }

    async fn claim(&mut self, limit: usize, suspects: bool) {
        let suspect_after = 2;
        let mode = if suspects {
            ClaimMode::Suspects { suspect_after }
        } else {
            ClaimMode::Ordinary { suspect_after }
        };
        let request = ClaimRequest { limit, lease: Duration::from_secs(15), mode };
        let claimed = self.sql[0].claim(&request).await.unwrap();
        let expected = self.model[0].claim(&request).await.unwrap();
        let seen = |c: &Claimed| {
            let created_at = c.message.created_at();
            let (msg_id, claim_no) = (c.message.msg_id().to_owned(), c.message.claim_no());
            (msg_id, claim_no, created_at, c.retry_count, c.unsettled_claims)
        };
        let all = |claimed: &[Claimed]| claimed.iter().map(seen).collect::<Vec<_>>();
        assert_eq!(all(&claimed), all(&expected));
        self.claims.extend(claimed.iter().zip(&expected).map(|(c, e)| (c.claim, e.claim)));
    }

    /// The latest claims, so that most are still alive.
    fn pick(&self, numbers: impl Iterator<Item = usize>) -> Vec<(Claim, Claim)> {
        let latest: Vec<_> = self.claims.iter().rev().take(12).copied().collect();
        numbers.filter_map(|n| latest.get(n % latest.len().max(1)).copied()).collect()
    }

    async fn renew(&self, numbers: &[usize]) {
        let (claims, expected): (Vec<_>, Vec<_>) = self.pick(numbers.iter().copied()).into_iter().unzip();
        let lease = Duration::from_secs(20);
        let held = self.sql[0].renew(&claims, lease).await.unwrap();
        let expected_held = self.model[0].renew(&expected, lease).await.unwrap();
        let numbers =
            |held: &[Claim], all: &[Claim]| -> Vec<bool> { all.iter().map(|c| held.contains(c)).collect() };
        assert_eq!(numbers(&held, &claims), numbers(&expected_held, &expected));
        assert_eq!(held.len(), expected_held.len());
    }

    async fn settle(&self, outcomes: &[(usize, u8)]) {
        let claims = self.pick(outcomes.iter().map(|(n, _)| *n));
        let outcomes = outcomes.iter().map(|(_, kind)| outcome(*kind));
        let (settlements, expected): (Vec<_>, Vec<_>) = claims
            .into_iter()
            .zip(outcomes)
            .map(|((claim, expected), outcome)| {
                (Settlement { claim, outcome: outcome.clone() }, Settlement { claim: expected, outcome })
            })
            .unzip();
        let settled = self.sql[0].settle(&settlements).await.unwrap();
        assert_eq!(settled, self.model[0].settle(&expected).await.unwrap());
    }

    async fn record(&self, receipts: &[(u8, usize, u64, bool)]) {
        let receipt = |(id, group, claim_no, handled): &(u8, usize, u64, bool)| {
            let (msg_id, group) = (format!("m{id}"), GROUPS[*group]);
            if *handled {
                Receipt::handled(msg_id, group, *claim_no)
            } else {
                Receipt::rejected(msg_id, group, *claim_no, format!("no {claim_no}"))
            }
        };
        let receipts: Vec<Receipt> = receipts.iter().map(receipt).collect();
        let report = self.sql[0].record_receipts(&receipts).await.unwrap();
        assert_eq!(report, self.model[0].record_receipts(&receipts).await.unwrap());
    }

    async fn requeue(&self, number: usize, claim_no: u64) {
        let (rows, expected) = self.rows().await;
        if let (Some(row), Some(expected)) = (rows.get(number), expected.get(number)) {
            let requeued = self.sql[0].requeue(row.id, claim_no).await.unwrap();
            assert_eq!(requeued, self.model[0].requeue(expected.id, claim_no).await.unwrap());
        }
    }

    async fn rows(&self) -> (Vec<Row>, Vec<Row>) {
        let all = Filter::default();
        (self.sql[0].find(&all).await.unwrap(), self.model[0].find(&all).await.unwrap())
    }

    async fn compare(&self, steps: &[Step]) {
        let (mut rows, mut expected) = self.rows().await;
        for row in rows.iter_mut().chain(&mut expected) {
            row.id = outbox_core::RowId(0);
        }
        assert_eq!(rows, expected, "after {steps:#?}");
        let (stats, model) = (self.sql[0].stats().await.unwrap(), self.model[0].stats().await.unwrap());
        assert_eq!(stats.oldest_due, model.oldest_due);
        for status in outbox_core::Status::ALL {
            assert_eq!(stats.count(status), model.count(status));
        }
    }
}

fn policies() -> Policies {
    Policies::default()
        .with_rule("order.created", Policy::default().with_required_groups(["a", "b"]))
        .with_rule("order.#", Policy::default().with_required_groups(["c"]))
}

fn outcome(kind: u8) -> Outcome {
    let confirmed = |groups: &[&str], seconds| Outcome::Confirmed {
        required_groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ack_timeout: Duration::from_secs(seconds),
    };
    let error = || format!("error {kind}");
    match kind {
        0 => confirmed(&[], 60),
        1 => confirmed(&["b", "a"], 60),
        2 => confirmed(&["c"], 90),
        3 => Outcome::Retry { delay: Duration::from_millis(7_003), max_attempts: 3, error: error() },
        4 => Outcome::Failed { error: error() },
        _ => Outcome::Released,
    }
}
