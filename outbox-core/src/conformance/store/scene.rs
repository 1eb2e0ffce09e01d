use std::sync::Arc;
use std::time::Duration;

use super::{Setup, StoreFixture};
use crate::claim::{Claim, ClaimMode, ClaimRequest, Claimed, Outcome, Settled, Settlement};
use crate::clock::{Clock, ManualClock, Timestamp};
use crate::message::{Limits, Message};
use crate::policy::{Policies, Policy};
use crate::receipt::{Receipt, ReceiptReport};
use crate::store::{Enqueue, Filter, OutboxStore, Row, StoreError};

pub(super) const LEASE: Duration = Duration::from_secs(30);
pub(super) const ACK_TIMEOUT: Duration = Duration::from_secs(3600);
pub(super) const TICK: Duration = Duration::from_micros(1);
pub(super) const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
pub(super) const SUSPECT_AFTER: u32 = 3;
pub(super) const MAX_PAYLOAD: usize = 64 * 1024;

/// Far from the real time, so that a store that asks another clock gets caught, and just before a full
/// second, so that one that rounds gets caught, too.
const START: Timestamp = match Timestamp::from_timestamp_micros(1_901_149_199_999_999) {
    Some(start) => start,
    None => Timestamp::UNIX_EPOCH,
};

pub(super) fn setup() -> Setup {
    let orders = Policy::default().with_required_groups(["inventory", "points"]);
    Setup {
        clock: ManualClock::new(START),
        policies: Policies::default().with_rule("order.#", orders),
        limits: Limits::default().with_payload(MAX_PAYLOAD),
    }
}

/// A message that nobody must acknowledge.
pub(super) fn mail() -> Message {
    Message::json("mail.welcome", "A-1", &serde_json::json!({"to": "a@example.org"})).unwrap()
}

/// A message that the groups `inventory` and `points` must acknowledge.
pub(super) fn order() -> Message {
    Message::json("order.created", "A-1", &serde_json::json!({"amount": 990})).unwrap()
}

pub(super) fn mails(count: usize) -> Vec<Message> {
    (0..count).map(|_| mail()).collect()
}

pub(super) fn handled(message: &Message, group: &str) -> Receipt {
    Receipt::handled(message.msg_id(), group, 1)
}

pub(super) fn confirmed() -> Outcome {
    Outcome::Confirmed { required_groups: Vec::new(), ack_timeout: ACK_TIMEOUT }
}

pub(super) fn retry(delay: Duration, max_attempts: u32) -> Outcome {
    Outcome::Retry { delay, max_attempts, error: "no confirmation".to_owned() }
}

pub(super) fn failed() -> Outcome {
    Outcome::Failed { error: "too large".to_owned() }
}

/// One of each, a last attempt included.
pub(super) fn every_outcome() -> [Outcome; 5] {
    [confirmed(), retry(LEASE, 5), retry(LEASE, 1), failed(), Outcome::Released]
}

pub(super) fn request(limit: usize) -> ClaimRequest {
    ClaimRequest { limit, lease: LEASE, mode: ClaimMode::Ordinary { suspect_after: SUSPECT_AFTER } }
}

pub(super) fn ids<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Vec<&'a str> {
    messages.into_iter().map(Message::msg_id).collect()
}

pub(super) const APPLIED: Settled = Settled { applied: 1, lost: 0 };
pub(super) const LOST: Settled = Settled { applied: 0, lost: 1 };

/// The store of one case, with the steps that cases are made of. They panic where they fail.
pub struct Scene<F> {
    pub(super) fixture: F,
    pub(super) clock: ManualClock,
}

impl<F: StoreFixture> Scene<F> {
    pub(super) fn new(fixture: F, clock: ManualClock) -> Self {
        Self { fixture, clock }
    }

    pub(super) fn into_fixture(self) -> F {
        self.fixture
    }

    pub(super) fn store(&self) -> Arc<F::Store> {
        self.fixture.store()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Commits `messages`, or rolls back if they are refused.
    pub(super) async fn try_put(&self, messages: &[Message]) -> Result<(), StoreError> {
        let mut tx = self.fixture.begin().await;
        match self.store().enqueue(&mut tx, messages).await {
            Ok(()) => self.fixture.commit(tx).await,
            Err(error) => {
                self.fixture.rollback(tx).await;
                Err(error)
            }
        }
    }

    pub(super) async fn put(&self, messages: &[Message]) {
        self.try_put(messages).await.expect("the messages are taken");
    }

    pub(super) async fn put_undecided(&self, message: &Message) {
        self.fixture.insert_undecided(message, self.now()).await;
    }

    pub(super) async fn rows(&self) -> Vec<Row> {
        self.store().find(&Filter::default().with_limit(10_000)).await.expect("rows are found")
    }

    pub(super) async fn find(&self, message: &Message) -> Option<Row> {
        let filter = Filter::default().with_msg_id(message.msg_id());
        self.store().find(&filter).await.expect("rows are found").pop()
    }

    pub(super) async fn row(&self, message: &Message) -> Row {
        self.find(message).await.expect("the row is there")
    }

    pub(super) async fn claim(&self, limit: usize) -> Vec<Claimed> {
        self.store().claim(&request(limit)).await.expect("a claim works")
    }

    pub(super) async fn claim_only(&self) -> Claimed {
        let mut claimed = self.claim(10).await;
        assert_eq!(claimed.len(), 1, "exactly one row can be claimed");
        claimed.remove(0)
    }

    pub(super) async fn nothing_is_claimable(&self) {
        assert_eq!(self.claim(10).await.len(), 0, "no row can be claimed");
    }

    /// Commits `message` and claims it.
    pub(super) async fn put_and_claim(&self, message: &Message) -> Claim {
        self.put(std::slice::from_ref(message)).await;
        let claimed = self.claim_only().await;
        assert_eq!(claimed.message.msg_id(), message.msg_id());
        claimed.claim
    }

    /// Commits `message` and brings it to an outcome.
    pub(super) async fn put_and_settle(&self, message: &Message, outcome: Outcome) -> Claim {
        let claim = self.put_and_claim(message).await;
        assert_eq!(self.settle(claim, outcome).await, APPLIED);
        claim
    }

    pub(super) async fn settle(&self, claim: Claim, outcome: Outcome) -> Settled {
        self.settle_all(&[Settlement { claim, outcome }]).await
    }

    pub(super) async fn settle_all(&self, settlements: &[Settlement]) -> Settled {
        self.store().settle(settlements).await.expect("a settlement works")
    }

    pub(super) async fn receive(&self, receipts: &[Receipt]) -> ReceiptReport {
        self.store().record_receipts(receipts).await.expect("receipts are recorded")
    }
}
