//! Stores with one flaw each, and the cases of the store suite that catch it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod backends;
mod broken;

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use backends::MemoryFixture;
use broken::caught;
use outbox_core::conformance::Setup;
use outbox_core::conformance::internal::random::agree_with_the_model;
use outbox_core::memory::{MemoryStore, MemoryTx};
use outbox_core::{
    Claim, ClaimMode, ClaimRequest, Claimed, Clock, Enqueue, Filter, Message, OutboxStore, Outcome, Receipt,
    ReceiptReport, Requeued, Row, RowId, Settled, Settlement, Stats, Status, StoreError, StoredMessage,
    SystemClock,
};
use proptest::test_runner::{Config, RngSeed};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    AsksTheHostsClock,
    CommitsByItself,
    WritesOneByOne,
    DropsHeaders,
    IgnoresDeliverAfter,
    ClaimsWithoutLease,
    ClaimsTwice,
    PollsPastTheHighestId,
    IgnoresSuspects,
    RenewsForAnyone,
    SettlesById,
    ForgetsTheMaximum,
    ChargesReleased,
    SkipsEarlyReceipts,
    RejectsUnfenced,
    RequeuesUnfenced,
    FindsUnfiltered,
}

caught! {
    run_store_case, broken,
    asks_the_hosts_clock_is_caught: AsksTheHostsClock => [
        enqueueing::committed_rows_are_visible,
        claiming::claimed_is_not_claimable_before_its_lease_ends,
    ]
    commits_by_itself_is_caught: CommitsByItself => [
        enqueueing::rolled_back_rows_are_gone,
        enqueueing::uncommitted_rows_are_invisible,
        enqueueing::outside_a_transaction_is_refused,
    ]
    writes_one_by_one_is_caught: WritesOneByOne => [
        enqueueing::duplicate_is_refused_with_its_batch,
        enqueueing::invalid_message_is_refused_before_anything_is_written,
    ]
    drops_headers_is_caught: DropsHeaders => [storing::fields_round_trip, storing::longest_fields_are_taken]
    ignores_deliver_after_is_caught: IgnoresDeliverAfter => [
        enqueueing::deliver_after_is_honoured,
        claiming::longest_due_is_claimed_first,
        operating::stats_count_by_status_and_find_the_longest_due,
    ]
    claims_without_lease_is_caught: ClaimsWithoutLease => [
        claiming::claimed_is_not_claimable_before_its_lease_ends,
        claiming::limit_is_kept,
    ]
    claims_twice_is_caught: ClaimsTwice => [
        claiming::racing_handles_claim_disjointly,
        claiming::limit_is_kept,
    ]
    polls_past_the_highest_id_is_caught: PollsPastTheHighestId => [
        enqueueing::inserted_first_committed_last_is_not_skipped,
    ]
    ignores_suspects_is_caught: IgnoresSuspects => [claiming::suspects_are_claimed_only_when_asked_for]
    renews_for_anyone_is_caught: RenewsForAnyone => [claiming::only_the_holder_renews]
    settles_by_id_is_caught: SettlesById => [
        settling::settlement_of_a_lost_claim_changes_nothing,
        settling::settlement_of_a_claim_that_never_was_changes_nothing,
    ]
    forgets_the_maximum_is_caught: ForgetsTheMaximum => [
        settling::retry_at_the_maximum_is_failed_and_never_claimed,
    ]
    charges_released_is_caught: ChargesReleased => [settling::released_charges_nothing]
    skips_early_receipts_is_caught: SkipsEarlyReceipts => [
        receiving::early_receipts_complete_a_pending_row,
        receiving::early_receipts_end_a_claim,
        receiving::undecided_row_counts_receipts_that_came_before,
        racing::confirm_races_last_receipt,
    ]
    rejects_unfenced_is_caught: RejectsUnfenced => [receiving::rejection_of_another_claim_changes_nothing]
    requeues_unfenced_is_caught: RequeuesUnfenced => [
        operating::requeue_is_fenced_by_claim_no,
        racing::requeue_races_requeue,
    ]
    finds_unfiltered_is_caught: FindsUnfiltered => [operating::find_filters, operating::find_pages_in_order]
}

/// Random operations catch by themselves what needs no race and no transaction left open.
#[test]
fn random_operations_catch_flaws_too() {
    let flaws = [
        Flaw::AsksTheHostsClock,
        Flaw::CommitsByItself,
        Flaw::IgnoresDeliverAfter,
        Flaw::ClaimsWithoutLease,
        Flaw::IgnoresSuspects,
        Flaw::RenewsForAnyone,
        Flaw::SettlesById,
        Flaw::ForgetsTheMaximum,
        Flaw::ChargesReleased,
        Flaw::SkipsEarlyReceipts,
        Flaw::RejectsUnfenced,
        Flaw::RequeuesUnfenced,
    ];
    for flaw in flaws {
        let config = Config { cases: 300, rng_seed: RngSeed::Fixed(1), ..Config::default() };
        let run = || agree_with_the_model(broken(flaw), config.clone(), 40);
        let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        assert!(end.is_err(), "random operations do not catch {flaw:?}");
    }
}

fn broken(flaw: Flaw) -> impl AsyncFn(Setup) -> MemoryFixture<Broken> {
    async move |setup| MemoryFixture::around(setup, |inner| Broken::new(inner, flaw))
}

struct Broken {
    inner: MemoryStore,
    flaw: Flaw,
    last_claimed: Mutex<Vec<Claimed>>,
    highest_id: Mutex<RowId>,
}

impl Broken {
    fn new(inner: MemoryStore, flaw: Flaw) -> Self {
        let inner = if flaw == Flaw::AsksTheHostsClock { inner.with_clock(SystemClock) } else { inner };
        Self { inner, flaw, last_claimed: Mutex::default(), highest_id: Mutex::new(RowId(0)) }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    async fn row(&self, id: RowId) -> Option<Row> {
        let all = Filter::default().with_limit(usize::MAX);
        self.inner.find(&all).await.unwrap().into_iter().find(|row| row.id == id)
    }

    async fn with_current_token(&self, mut settlement: Settlement) -> Settlement {
        let row = self.row(settlement.claim.id).await;
        let state = row.and_then(|row| self.inner.state(row.message.msg_id()));
        if let Some(token) = state.and_then(|state| state.claim_token) {
            settlement.claim.token = token;
        }
        settlement
    }

    fn change_outcome(&self, outcome: &mut Outcome) {
        match outcome {
            Outcome::Retry { max_attempts, .. } if self.has(Flaw::ForgetsTheMaximum) => {
                *max_attempts = u32::MAX
            }
            Outcome::Released if self.has(Flaw::ChargesReleased) => {
                let (delay, error) = (Duration::ZERO, String::new());
                *outcome = Outcome::Retry { delay, max_attempts: u32::MAX, error };
            }
            _ => {}
        }
    }

    fn without_some_fields(&self, message: &Message) -> Message {
        let headers = match self.has(Flaw::DropsHeaders) {
            true => Default::default(),
            false => message.headers().clone(),
        };
        Message::from_stored(StoredMessage {
            msg_id: message.msg_id().to_owned(),
            biz_type: message.biz_type().to_owned(),
            biz_id: message.biz_id().to_owned(),
            payload: message.payload().clone(),
            content_type: message.explicit_content_type().map(str::to_owned),
            headers,
            ordering_key: message.ordering_key().map(str::to_owned),
            created_at: self.inner.clock().now(),
            claim_no: 0,
        })
    }
}

#[async_trait]
impl Enqueue for Broken {
    type Tx = MemoryTx;

    async fn enqueue(&self, tx: &mut MemoryTx, messages: &[Message]) -> Result<(), StoreError> {
        match self.flaw {
            Flaw::CommitsByItself => {
                let mut own = self.inner.begin();
                self.inner.enqueue(&mut own, messages).await?;
                own.commit().await
            }
            Flaw::WritesOneByOne => {
                for message in messages {
                    self.inner.enqueue(tx, std::slice::from_ref(message)).await?;
                }
                Ok(())
            }
            Flaw::DropsHeaders | Flaw::IgnoresDeliverAfter => {
                let messages: Vec<Message> = messages.iter().map(|m| self.without_some_fields(m)).collect();
                self.inner.enqueue(tx, &messages).await
            }
            _ => self.inner.enqueue(tx, messages).await,
        }
    }

    async fn enqueue_idempotent(&self, tx: &mut MemoryTx, messages: &[Message]) -> Result<usize, StoreError> {
        self.inner.enqueue_idempotent(tx, messages).await
    }
}

#[async_trait]
impl OutboxStore for Broken {
    fn clock(&self) -> &dyn Clock {
        self.inner.clock()
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        let mut request = *request;
        if self.has(Flaw::ClaimsWithoutLease) {
            request.lease = Duration::ZERO;
        }
        if self.has(Flaw::IgnoresSuspects) {
            request.mode = ClaimMode::Ordinary { suspect_after: u32::MAX };
        }
        let mut claimed = self.inner.claim(&request).await?;
        if self.has(Flaw::ClaimsTwice) {
            let mut last = self.last_claimed.lock().unwrap();
            let again = std::mem::replace(&mut *last, claimed.clone());
            if claimed.is_empty() {
                return Ok(again);
            }
        }
        if self.has(Flaw::PollsPastTheHighestId) {
            let mut highest = self.highest_id.lock().unwrap();
            claimed.retain(|row| row.claim.id > *highest);
            *highest = claimed.iter().map(|row| row.claim.id).max().unwrap_or(*highest);
        }
        Ok(claimed)
    }

    async fn renew(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError> {
        let held = self.inner.renew(claims, lease).await?;
        Ok(if self.has(Flaw::RenewsForAnyone) { claims.to_vec() } else { held })
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        let mut changed = Vec::new();
        for settlement in settlements {
            let mut settlement = settlement.clone();
            self.change_outcome(&mut settlement.outcome);
            if self.has(Flaw::SettlesById) {
                settlement = self.with_current_token(settlement).await;
            }
            changed.push(settlement);
        }
        self.inner.settle(&changed).await
    }

    async fn record_receipts(&self, receipts: &[Receipt]) -> Result<ReceiptReport, StoreError> {
        let mut receipts = receipts.to_vec();
        let state = |receipt: &Receipt| self.inner.state(&receipt.msg_id);
        if self.has(Flaw::SkipsEarlyReceipts) {
            receipts.retain(|receipt| state(receipt).is_none_or(|state| state.status != Status::Pending));
        }
        if self.has(Flaw::RejectsUnfenced) {
            for receipt in &mut receipts {
                receipt.claim_no = state(receipt).map_or(receipt.claim_no, |state| state.claim_no);
            }
        }
        self.inner.record_receipts(&receipts).await
    }

    async fn requeue(&self, id: RowId, claim_no: u64) -> Result<Requeued, StoreError> {
        match self.row(id).await {
            Some(row) if self.has(Flaw::RequeuesUnfenced) => {
                self.inner.requeue(id, row.message.claim_no()).await?;
                Ok(Requeued::Done)
            }
            _ => self.inner.requeue(id, claim_no).await,
        }
    }

    async fn find(&self, filter: &Filter) -> Result<Vec<Row>, StoreError> {
        if self.has(Flaw::FindsUnfiltered) {
            return self.inner.find(&Filter::default().with_limit(filter.limit)).await;
        }
        self.inner.find(filter).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.inner.stats().await
    }
}
