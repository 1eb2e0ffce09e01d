//! Random sequences of operations, done on the store under test and on the model, compared after each.

mod step;

use std::slice;
use std::time::Duration;

use proptest::test_runner::{Config, TestRunner};

use self::step::{End, Step, sequences};
use super::scene::{ACK_TIMEOUT, SUSPECT_AFTER, Scene, failed, mail, order, retry, setup};
use super::{Setup, StoreFixture, run_on_new, runtime};
use crate::claim::{Claim, ClaimMode, ClaimRequest, Claimed, Outcome, RowId, Settlement};
use crate::memory::MemoryStore;
use crate::message::{Message, StoredMessage};
use crate::payload::{JsonText, Payload};
use crate::receipt::Receipt;
use crate::store::{Enqueue, Filter, OutboxStore, Row};

const GROUPS: [&str; 3] = ["inventory", "points", "audit"];

/// Fails with the shortest sequence after which the two differ.
pub fn random_operations_agree_with_the_model<F: StoreFixture>(make: impl AsyncFn(Setup) -> F) {
    let cases = setting("OUTBOX_CONFORMANCE_CASES", 16);
    let steps = setting("OUTBOX_CONFORMANCE_STEPS", 40);
    agree_with_the_model(make, Config { cases, ..Config::default() }, steps as usize);
}

/// The same, as `config` says, with at most so many steps in a sequence.
pub fn agree_with_the_model<F: StoreFixture>(make: impl AsyncFn(Setup) -> F, config: Config, steps: usize) {
    let config = Config { failure_persistence: None, max_shrink_iters: 500, ..config };
    let runtime = runtime();
    let run = |steps: Vec<Step>| {
        runtime.block_on(run_on_new(&make, async |scene: &Scene<F>| Both::new(scene).run(&steps).await));
        Ok(())
    };
    if let Err(difference) = TestRunner::new(config).run(&sequences(steps), run) {
        panic!("{difference}");
    }
}

fn setting(name: &str, default: u32) -> u32 {
    std::env::var(name).map_or(default, |value| value.parse().expect("a number"))
}

/// The store under test beside the model.
struct Both<'a, F> {
    scene: &'a Scene<F>,
    model: MemoryStore,
    model_undecided: MemoryStore,
    messages: Vec<Message>,
    claims: Vec<Pair>,
}

/// The same claim in both; tokens and row ids may differ.
#[derive(Debug, Clone, Copy)]
struct Pair {
    real: Claim,
    model: Claim,
}

impl<'a, F: StoreFixture> Both<'a, F> {
    fn new(scene: &'a Scene<F>) -> Self {
        let Setup { policies, limits, .. } = setup();
        let model_undecided = MemoryStore::new().with_clock(scene.clock.clone()).with_limits(limits);
        let model = model_undecided.clone().with_policies(policies);
        Self { scene, model, model_undecided, messages: Vec::new(), claims: Vec::new() }
    }

    async fn run(mut self, steps: &[Step]) {
        for step in steps {
            self.take(step).await;
            self.compare().await;
        }
    }

    async fn take(&mut self, step: &Step) {
        match step {
            Step::Enqueue { orders, delay, end } => self.enqueue(orders, *delay, *end).await,
            Step::EnqueueAgain { pick } => self.enqueue_again(*pick).await,
            Step::EnqueueUndecided => self.enqueue_undecided().await,
            Step::Claim { limit, lease, suspects } => self.claim(*limit, *lease, *suspects).await,
            Step::Renew { picks, lease } => self.renew(picks, *lease).await,
            Step::Settle { picks } => self.settle(picks).await,
            Step::Receive { picks } => self.receive(picks).await,
            Step::Reject { pick, off } => self.reject(*pick, *off).await,
            Step::Requeue { pick, off } => self.requeue(*pick, *off).await,
            Step::Advance { time } => self.scene.clock.advance(*time),
        }
    }

    async fn enqueue(&mut self, orders: &[bool], delay: Duration, end: End) {
        let due = crate::clock::later(self.scene.now(), delay);
        let mut batch: Vec<Message> = orders.iter().map(|order| message(*order)).collect();
        batch[0] = batch[0].clone().with_deliver_after(due);
        match end {
            End::Commit => {
                self.scene.put(&batch).await;
                put(&self.model, &batch).await;
                self.messages.extend(batch);
            }
            End::RollBack => {
                let mut tx = self.scene.fixture.begin().await;
                self.scene.store().enqueue(&mut tx, &batch).await.unwrap();
                self.scene.fixture.rollback(tx).await;
            }
            End::Duplicate => {
                batch.extend(self.messages.last().cloned().or_else(|| batch.first().cloned()));
                self.scene.try_put(&batch).await.unwrap_err();
            }
        }
    }

    async fn enqueue_again(&mut self, pick: usize) {
        let Some(known) = picked(&self.messages, pick).cloned() else { return };
        let batch = [mail(), known, order()];
        let mut tx = self.scene.fixture.begin().await;
        let written = self.scene.store().enqueue_idempotent(&mut tx, &batch).await.unwrap();
        self.scene.fixture.commit(tx).await.unwrap();
        let mut tx = self.model.begin();
        assert_eq!(written, self.model.enqueue_idempotent(&mut tx, &batch).await.unwrap());
        tx.commit().await.unwrap();
        self.messages.extend(batch);
    }

    async fn enqueue_undecided(&mut self) {
        let message = order();
        self.scene.put_undecided(&message).await;
        put(&self.model_undecided, slice::from_ref(&message)).await;
        self.messages.push(message);
    }

    async fn claim(&mut self, limit: usize, lease: Duration, suspects: bool) {
        let mode = match suspects {
            false => ClaimMode::Ordinary { suspect_after: SUSPECT_AFTER },
            true => ClaimMode::Suspects { suspect_after: SUSPECT_AFTER },
        };
        let request = ClaimRequest { limit, lease, mode };
        let real = self.scene.store().claim(&request).await.unwrap();
        let model = self.model.claim(&request).await.unwrap();
        let seen = |claimed: &Claimed| {
            let Claimed { message, retry_count, unsettled_claims, .. } = claimed;
            (message.msg_id().to_owned(), message.claim_no(), *retry_count, *unsettled_claims)
        };
        let seen_all = |claimed: &[Claimed]| claimed.iter().map(seen).collect::<Vec<_>>();
        assert_eq!(seen_all(&real), seen_all(&model));
        let pairs =
            real.iter().zip(&model).map(|(real, model)| Pair { real: real.claim, model: model.claim });
        self.claims.extend(pairs);
    }

    async fn renew(&self, picks: &[usize], lease: Duration) {
        let pairs = picked_each_once(&self.claims, picks.iter().copied());
        let all = |side: fn(&Pair) -> Claim| pairs.iter().map(side).collect::<Vec<_>>();
        let real = self.scene.store().renew(&all(|pair| pair.real), lease).await.unwrap();
        let model = self.model.renew(&all(|pair| pair.model), lease).await.unwrap();
        for pair in &pairs {
            assert_eq!(real.contains(&pair.real), model.contains(&pair.model), "{pair:?}");
        }
    }

    async fn settle(&self, picks: &[(usize, u8)]) {
        let pairs = picked_each_once(&self.claims, picks.iter().map(|(pick, _)| *pick));
        let outcomes: Vec<Outcome> = picks.iter().map(|(_, kind)| outcome(*kind)).collect();
        let all = |side: fn(&Pair) -> Claim| -> Vec<Settlement> {
            let claims = pairs.iter().map(side).zip(&outcomes);
            claims.map(|(claim, outcome)| Settlement { claim, outcome: outcome.clone() }).collect()
        };
        let real = self.scene.settle_all(&all(|pair| pair.real)).await;
        assert_eq!(real, self.model.settle(&all(|pair| pair.model)).await.unwrap());
    }

    async fn receive(&self, picks: &[(usize, usize)]) {
        let receipts: Vec<Receipt> = picks
            .iter()
            .filter_map(|(pick, group)| Some((picked(&self.messages, *pick)?, GROUPS[group % GROUPS.len()])))
            .map(|(message, group)| Receipt::handled(message.msg_id(), group, 1))
            .collect();
        self.record(&receipts).await;
    }

    async fn reject(&self, pick: usize, off: u64) {
        let Some(message) = picked(&self.messages, pick) else { return };
        let claim_no = self.scene.row(message).await.message.claim_no() + off;
        self.record(&[Receipt::rejected(message.msg_id(), "points", claim_no, "no such article")]).await;
    }

    async fn record(&self, receipts: &[Receipt]) {
        let real = self.scene.receive(receipts).await;
        assert_eq!(real, self.model.record_receipts(receipts).await.unwrap());
    }

    async fn requeue(&self, pick: usize, off: u64) {
        let Some(message) = picked(&self.messages, pick) else { return };
        let Row { id, message, .. } = self.scene.row(message).await;
        let claim_no = message.claim_no() + off;
        let real = self.scene.store().requeue(id, claim_no).await.unwrap();
        let filter = Filter::default().with_msg_id(message.msg_id());
        let id = self.model.find(&filter).await.unwrap()[0].id;
        assert_eq!(real, self.model.requeue(id, claim_no).await.unwrap());
    }

    async fn compare(&self) {
        let all = Filter::default().with_limit(100_000);
        let real: Vec<Row> = self.scene.rows().await.into_iter().map(comparable).collect();
        let model = self.model.find(&all).await.unwrap();
        for (real, model) in real.iter().zip(model.iter().cloned().map(comparable)) {
            assert_eq!(*real, model);
        }
        assert_eq!(real.len(), model.len());
        let (real, model) = (self.scene.store().stats().await.unwrap(), self.model.stats().await.unwrap());
        for (status, rows) in model.rows {
            assert_eq!(real.count(status), rows, "{status}");
        }
    }
}

async fn put(model: &MemoryStore, batch: &[Message]) {
    let mut tx = model.begin();
    model.enqueue(&mut tx, batch).await.unwrap();
    tx.commit().await.unwrap();
}

fn message(is_order: bool) -> Message {
    if is_order { order() } else { mail() }
}

fn outcome(kind: u8) -> Outcome {
    let confirmed = |groups: &[&str]| Outcome::Confirmed {
        required_groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ack_timeout: ACK_TIMEOUT,
    };
    match kind {
        0 => confirmed(&[]),
        1 => confirmed(&["audit", "points"]),
        2 => retry(Duration::from_secs(20), 2),
        3 => retry(Duration::from_secs(20), 1),
        4 => failed(),
        _ => Outcome::Released,
    }
}

fn picked<T>(all: &[T], pick: usize) -> Option<&T> {
    all.get(pick.checked_rem(all.len())?)
}

/// The newest come first, because the older a claim is the surer it is lost.
fn picked_each_once(claims: &[Pair], picks: impl Iterator<Item = usize>) -> Vec<Pair> {
    let mut indexes: Vec<usize> = picks.filter_map(|pick| pick.checked_rem(claims.len())).collect();
    indexes.sort_unstable();
    indexes.dedup();
    indexes.into_iter().map(|index| claims[claims.len() - 1 - index]).collect()
}

/// Without what may differ between stores: row ids, and how JSON is written.
fn comparable(mut row: Row) -> Row {
    row.id = RowId(0);
    let message = &row.message;
    let payload = match message.payload() {
        Payload::Json(_) => {
            Payload::Json(JsonText::from_stored(message.decode::<serde_json::Value>().unwrap().to_string()))
        }
        binary => binary.clone(),
    };
    row.message = Message::from_stored(StoredMessage {
        msg_id: message.msg_id().to_owned(),
        biz_type: message.biz_type().to_owned(),
        biz_id: message.biz_id().to_owned(),
        payload,
        content_type: message.explicit_content_type().map(str::to_owned),
        headers: message.headers().clone(),
        ordering_key: message.ordering_key().map(str::to_owned),
        created_at: message.created_at().expect("a stored message has its time"),
        claim_no: message.claim_no(),
    });
    row
}
