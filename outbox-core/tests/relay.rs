//! The relay on the in-memory backends, in paused time: an hour takes no time, and nothing is left to chance.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use chrono::DateTime;
use outbox_core::memory::{BrokerFault, MemoryBroker, MemoryStore, Operation, StoreFault, TokioClock};
use outbox_core::relay::BreakerState;
use outbox_core::{
    Claim, ClaimMode, ClaimRequest, Claimed, Clock, Enqueue, Filter, Message, OutboxStore, Policies, Policy,
    PublishError, Publisher, Receipt, ReceiptReport, Relay, RelayConfig, RelayHandle, Requeued, RetryPolicy,
    Row, RowId, Settled, Settlement, Stats, Status, StoreError, StoreErrorKind,
};
use tokio::time::{Instant, sleep};

const MINUTE: Duration = Duration::from_secs(60);

struct World {
    store: MemoryStore,
    broker: MemoryBroker,
    policies: Policies,
    config: RelayConfig,
}

impl World {
    fn new() -> Self {
        let retry = RetryPolicy::default().with_jitter(0.0);
        Self {
            store: MemoryStore::new().with_clock(TokioClock::starting_at(DateTime::UNIX_EPOCH)),
            broker: MemoryBroker::new(),
            policies: Policies::new(Policy::default().with_retry(retry)),
            config: RelayConfig::default(),
        }
    }

    fn relay(&self) -> RelayHandle {
        self.relay_to(self.broker.clone())
    }

    fn relay_to(&self, publisher: impl Publisher) -> RelayHandle {
        Relay::new(self.store.clone(), publisher)
            .with_policies(self.policies.clone())
            .with_config(self.config.clone())
            .spawn()
    }

    async fn commit(&self, biz_types: &[&str]) {
        let mut tx = self.store.begin();
        let messages: Vec<Message> = biz_types.iter().map(|biz_type| message(biz_type)).collect();
        self.store.enqueue(&mut tx, &messages).await.unwrap();
        tx.commit().await.unwrap();
    }

    fn count(&self, status: Status) -> usize {
        self.store.snapshot().values().filter(|row| row.status == status).count()
    }

    fn delivered(&self) -> usize {
        self.broker.delivered().len()
    }

    fn all_claimed(&self) -> bool {
        self.store.snapshot().values().all(|row| row.claim_token.is_some())
    }

    /// Waits for a condition, in simulated time, and answers how long it took.
    async fn until(&self, condition: impl Fn(&Self) -> bool) -> Duration {
        let started = Instant::now();
        while !condition(self) {
            assert!(started.elapsed() < 1000 * MINUTE, "never came true: {:?}", self.store.snapshot());
            let step = started.elapsed() / 100;
            sleep(step.clamp(Duration::from_millis(10), Duration::from_secs(1))).await;
        }
        started.elapsed()
    }
}

/// The id starts with the type, so that rows are easy to tell apart.
fn message(biz_type: &str) -> Message {
    let id = format!("{biz_type}-{}", uuid::Uuid::new_v4().simple());
    Message::json(biz_type, "A-1", &1).unwrap().with_msg_id(id).unwrap()
}

#[tokio::test(start_paused = true)]
async fn committed_is_delivered_once_and_rolled_back_never() {
    let world = World::new();
    let relay = world.relay();
    world.commit(&["a", "b"]).await;
    let mut rolled_back = world.store.begin();
    world.store.enqueue(&mut rolled_back, &[message("c")]).await.unwrap();
    drop(rolled_back);
    world.until(|w| w.count(Status::Completed) == 2).await;
    sleep(10 * MINUTE).await;
    assert_eq!(world.delivered(), 2);
    assert!(relay.health().is_ready());
    assert!(relay.shutdown(MINUTE).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn sent_until_the_required_groups_acknowledge() {
    let mut world = World::new();
    let required = Policy::default().with_required_groups(["inventory"]).with_ack_timeout(MINUTE);
    world.policies = Policies::default().with_rule("order.*", required);
    let _relay = world.relay();
    world.commit(&["order.created", "point.granted"]).await;
    world.until(|w| w.count(Status::Sent) == 1 && w.count(Status::Completed) == 1).await;
    let snapshot = world.store.snapshot();
    let sent = snapshot.values().find(|row| row.status == Status::Sent).unwrap();
    assert_eq!(sent.ack_due, sent.sent_at.map(|at| at + MINUTE));
}

#[tokio::test(start_paused = true)]
async fn a_wake_up_cuts_the_pause_short() {
    let mut world = World::new();
    world.config = RelayConfig::default().with_sweep(MINUTE, 10 * MINUTE);
    let relay = world.relay();
    sleep(Duration::from_secs(1)).await;
    world.commit(&["a"]).await;
    relay.wake();
    assert!(world.until(|w| w.delivered() == 1).await < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn retries_by_the_steps_and_fails_at_the_fifth_attempt() {
    let world = World::new();
    world.broker.fail("bad", BrokerFault::Nack);
    let _relay = world.relay();
    world.commit(&["bad", "good"]).await;
    let attempts = |n| move |w: &World| w.store.snapshot().values().any(|row| row.retry_count == n);
    world.until(attempts(1)).await;
    assert_eq!(world.count(Status::Completed), 1, "the batch-mate went");
    for (attempt, minutes) in [(2, 1), (3, 5), (4, 30), (5, 120)] {
        let waited = world.until(attempts(attempt)).await;
        let expected = minutes * MINUTE;
        let sweep = Duration::from_secs(6);
        assert!(waited + sweep > expected && waited < expected + sweep, "{attempt}: {waited:?}");
    }
    let snapshot = world.store.snapshot();
    let failed = snapshot.values().find(|row| row.status == Status::Failed).unwrap();
    assert!(failed.last_error.as_deref().unwrap().contains("refused"));
    world.broker.heal();
    sleep(1000 * MINUTE).await;
    assert_eq!(world.count(Status::Failed), 1, "failed is never retried");
    assert_eq!(world.delivered(), 1);
}

#[tokio::test(start_paused = true)]
async fn rejected_fails_at_once_and_harms_no_batch_mate() {
    let world = World::new();
    world.broker.fail("bad", BrokerFault::Reject);
    let _relay = world.relay();
    world.commit(&["good", "bad", "good"]).await;
    assert!(world.until(|w| w.count(Status::Failed) == 1 && w.count(Status::Completed) == 2).await < MINUTE);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_broker_charges_nothing_and_heals_by_itself() {
    let world = World::new();
    world.broker.go_away();
    let relay = world.relay();
    world.commit(&["a"; 1200]).await;
    world.until(|_| relay.health().breaker == BreakerState::Open).await;
    sleep(60 * MINUTE).await;
    let claims: u64 = world.store.snapshot().values().map(|row| row.claim_no).sum();
    assert!(claims < 3000, "an open breaker claims nothing: {claims}");
    assert!(!relay.health().is_ready() && relay.health().is_live());
    world.broker.come_back();
    let waited = world.until(|w| w.count(Status::Completed) == 1200).await;
    assert!(waited < MINUTE, "{waited:?}");
    assert!(world.store.snapshot().values().all(|row| row.retry_count == 0));
    assert_eq!(world.delivered(), 1200);
    assert!(relay.health().is_ready());
}

/// Its probe says "ready" while publishing fails.
struct FalseHope(AtomicUsize);

#[async_trait]
impl Publisher for FalseHope {
    async fn publish(&self, _: &Message) -> Result<(), PublishError> {
        self.0.fetch_add(1, SeqCst);
        Err(PublishError::unavailable("blocked"))
    }
    async fn ready(&self) -> Result<(), PublishError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_lies_costs_one_message_at_a_time() {
    let world = World::new();
    world.commit(&["a"; 100]).await;
    let publisher = Arc::new(FalseHope(AtomicUsize::new(0)));
    let _relay = world.relay_to(publisher.clone());
    sleep(60 * MINUTE).await;
    let published = publisher.0.load(SeqCst);
    assert!(published > 300 && published < 600, "every ten seconds one: {published}");
}

/// Takes everything but one message, for which its connection breaks.
struct Allergic(MemoryBroker);

#[async_trait]
impl Publisher for Allergic {
    async fn publish(&self, message: &Message) -> Result<(), PublishError> {
        match message.biz_type() {
            "bad" => Err(PublishError::unavailable("connection reset")),
            _ => self.0.publish(message).await,
        }
    }
    async fn ready(&self) -> Result<(), PublishError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_always_finds_the_broker_unavailable_stops_no_others() {
    let world = World::new();
    let _relay = world.relay_to(Allergic(world.broker.clone()));
    world.commit(&["bad"]).await;
    world.until(|w| w.store.snapshot().values().any(|row| row.claim_no > 0)).await;
    for delivered in 1..=100 {
        world.commit(&["good"]).await;
        assert!(world.until(|w| w.delivered() == delivered).await < 2 * MINUTE);
    }
    world.until(|w| w.count(Status::Failed) == 1).await;
    world.commit(&["good"]).await;
    assert!(world.until(|w| w.delivered() == 101).await < MINUTE);
}

/// A store that cannot write one row's outcome, and this is what it says.
struct Stubborn(MemoryStore, fn() -> StoreError);

fn a_trigger_says_no() -> StoreError {
    StoreError::new(StoreErrorKind::Other, "a trigger says no")
}

#[async_trait]
impl OutboxStore for Stubborn {
    fn clock(&self) -> &dyn Clock {
        self.0.clock()
    }
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.0.claim(request).await
    }
    async fn renew(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError> {
        self.0.renew(claims, lease).await
    }
    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        if settlements.iter().any(|settlement| settlement.claim.id.0 == 3) {
            return Err((self.1)());
        }
        self.0.settle(settlements).await
    }
    async fn record_receipts(&self, receipts: &[Receipt]) -> Result<ReceiptReport, StoreError> {
        self.0.record_receipts(receipts).await
    }
    async fn requeue(&self, id: RowId, claim_no: u64) -> Result<Requeued, StoreError> {
        self.0.requeue(id, claim_no).await
    }
    async fn find(&self, filter: &Filter) -> Result<Vec<Row>, StoreError> {
        self.0.find(filter).await
    }
    async fn stats(&self) -> Result<Stats, StoreError> {
        self.0.stats().await
    }
}

#[tokio::test(start_paused = true)]
async fn a_row_that_cannot_be_settled_holds_no_others_up() {
    one_row_cannot_be_settled(a_trigger_says_no).await;
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_store_is_the_failure_of_its_call_only() {
    one_row_cannot_be_settled(|| panic!("cannot bear this row")).await;
}

async fn one_row_cannot_be_settled(refusal: fn() -> StoreError) {
    let world = World::new();
    world.commit(&["a"; 50]).await;
    let relay = Relay::new(Stubborn(world.store.clone(), refusal), world.broker.clone()).spawn();
    world.until(|w| w.count(Status::Completed) == 49).await;
    world.commit(&["a"; 50]).await;
    assert!(world.until(|w| w.count(Status::Completed) == 99).await < 3 * MINUTE);
    assert!(relay.health().is_live());
}

#[tokio::test(start_paused = true)]
async fn suspects_do_not_wait_for_one_another() {
    let world = World::new();
    world.commit(&["a"; 300]).await;
    let mode = ClaimMode::Ordinary { suspect_after: 3 };
    for _ in 0..3 {
        let request = ClaimRequest { limit: 300, lease: MINUTE, mode };
        assert_eq!(world.store.claim(&request).await.unwrap().len(), 300);
        sleep(MINUTE).await;
    }
    let _relay = world.relay();
    assert!(world.until(|w| w.count(Status::Completed) == 300).await < Duration::from_secs(5));
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_store_heals_by_itself() {
    let world = World::new();
    let relay = world.relay();
    for (operation, kind) in [
        (Operation::Claim, StoreErrorKind::Unavailable),
        (Operation::Claim, StoreErrorKind::Schema),
        (Operation::Settle, StoreErrorKind::Unavailable),
        (Operation::Settle, StoreErrorKind::Other),
    ] {
        let before = world.count(Status::Completed);
        world.store.fail_next(usize::MAX, operation, StoreFault::Before(kind));
        world.commit(&["a"]).await;
        world.until(|_| !relay.health().store_available).await;
        sleep(Duration::from_secs(40)).await;
        world.store.heal();
        world.until(|w| w.count(Status::Completed) == before + 1).await;
    }
    assert_eq!(world.delivered(), 4, "an outcome that could not be written is kept, not published again");
}

#[tokio::test(start_paused = true)]
async fn an_unknown_claim_or_settlement_loses_nothing() {
    let world = World::new();
    let _relay = world.relay();
    for operation in [Operation::Claim, Operation::Settle] {
        let before = world.count(Status::Completed);
        world.store.fail_next(1, operation, StoreFault::After(StoreErrorKind::Unavailable));
        world.commit(&["a"; 3]).await;
        world.until(|w| w.count(Status::Completed) == before + 3).await;
    }
    assert_eq!(world.delivered(), 6);
}

struct Fussy(MemoryBroker);

#[async_trait]
impl Publisher for Fussy {
    async fn publish(&self, message: &Message) -> Result<(), PublishError> {
        assert!(message.biz_type() != "bad", "cannot bear this message");
        self.0.publish(message).await
    }
    async fn ready(&self) -> Result<(), PublishError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_publisher_is_the_failure_of_its_message_only() {
    let world = World::new();
    world.commit(&["good", "bad", "good"]).await;
    let relay = world.relay_to(Fussy(world.broker.clone()));
    world.until(|w| w.count(Status::Completed) == 2 && w.count(Status::Failed) == 1).await;
    assert!(relay.health().is_live());
    let snapshot = world.store.snapshot();
    let failed = snapshot.values().find(|row| row.status == Status::Failed).unwrap();
    assert_eq!(failed.retry_count, 5);
    assert!(failed.last_error.as_deref().unwrap().contains("panicked"));
}

struct Mumbling;

#[async_trait]
impl Publisher for Mumbling {
    async fn publish(&self, _: &Message) -> Result<(), PublishError> {
        Err(PublishError::failed("not used"))
    }
    async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        messages.iter().skip(1).map(|_| Ok(())).collect()
    }
    async fn ready(&self) -> Result<(), PublishError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_missing_answer_counts_as_a_failed_attempt() {
    let world = World::new();
    world.commit(&["a"; 3]).await;
    let _relay = world.relay_to(Mumbling);
    world.until(|w| w.count(Status::Completed) == 2 && w.count(Status::Failed) == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_publisher_that_never_answers_is_given_up_and_the_relay_lives() {
    let world = World::new();
    world.broker.fail_next(1, "bad", BrokerFault::Hang);
    let relay = world.relay();
    world.commit(&["bad", "good"]).await;
    world.until(|w| w.count(Status::Completed) == 2).await;
    assert!(relay.health().is_ready());
}

#[tokio::test(start_paused = true)]
async fn a_slow_confirm_keeps_its_claim() {
    let mut world = World::new();
    world.config = RelayConfig::default().with_lease(MINUTE).with_publish_timeout(60 * MINUTE);
    world.broker.fail_next(1, "#", BrokerFault::DelayConfirm(10 * MINUTE));
    let (_one, _other) = (world.relay(), world.relay());
    world.commit(&["a"]).await;
    world.until(|w| w.count(Status::Completed) == 1).await;
    assert_eq!(world.delivered(), 1, "renewed, so nobody else took it");
}

#[tokio::test(start_paused = true)]
async fn what_a_dead_relay_held_goes_again_after_the_lease() {
    let world = World::new();
    world.broker.fail_next(2, "#", BrokerFault::Hang);
    let dead = world.relay();
    world.commit(&["a", "b"]).await;
    world.until(World::all_claimed).await;
    dead.abort();
    let _relay = world.relay();
    let waited = world.until(|w| w.count(Status::Completed) == 2).await;
    assert!(waited > MINUTE - Duration::from_secs(5) && waited < 2 * MINUTE, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn two_relays_publish_everything_exactly_once() {
    let mut world = World::new();
    world.config = RelayConfig::default().with_batch(7);
    let relays = [world.relay(), world.relay()];
    for _ in 0..40 {
        world.commit(&["a"; 25]).await;
        sleep(Duration::from_millis(3)).await;
    }
    world.until(|w| w.count(Status::Completed) == 1000).await;
    assert_eq!(world.delivered(), 1000);
    for relay in relays {
        assert!(relay.shutdown(MINUTE).await.is_clean());
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_under_load_leaves_nothing_claimed_and_sends_nothing_twice() {
    let mut world = World::new();
    world.config = RelayConfig::default().with_batch(10);
    world.broker.fail("#", BrokerFault::DelayConfirm(Duration::from_millis(50)));
    let relay = world.relay();
    world.commit(&["a"; 1000]).await;
    world.until(|w| w.count(Status::Completed) > 100).await;
    let started = Instant::now();
    assert!(relay.shutdown(MINUTE).await.is_clean());
    assert!(started.elapsed() < Duration::from_secs(1));
    assert!(world.store.snapshot().values().all(|row| row.claim_token.is_none()));
    assert_eq!(world.delivered(), world.count(Status::Completed));
    let _next = world.relay();
    world.until(|w| w.count(Status::Completed) == 1000).await;
    assert_eq!(world.delivered(), 1000);
}

#[tokio::test(start_paused = true)]
async fn shutdown_gives_back_what_the_broker_does_not_answer() {
    let world = World::new();
    world.broker.fail("#", BrokerFault::Hang);
    let relay = world.relay();
    world.commit(&["a"; 3]).await;
    world.until(World::all_claimed).await;
    let started = Instant::now();
    assert!(relay.shutdown(MINUTE).await.is_clean());
    assert!(started.elapsed() <= MINUTE);
    let rows = world.store.snapshot();
    assert!(rows.values().all(|row| row.claim_token.is_none() && row.retry_count == 0));
}

#[tokio::test(start_paused = true)]
async fn shutdown_without_a_store_says_what_it_left() {
    let world = World::new();
    let relay = world.relay();
    world.store.fail_next(usize::MAX, Operation::Settle, StoreFault::Before(StoreErrorKind::Unavailable));
    world.commit(&["a"; 3]).await;
    world.until(|w| w.delivered() == 3).await;
    let started = Instant::now();
    assert_eq!(relay.shutdown(MINUTE).await.left_claimed, 3);
    assert!(started.elapsed() <= MINUTE + Duration::from_secs(1));
}

/// Stops for ever at the deadly message and says so: the test then ends the relay, as a crash would.
struct Deadly {
    broker: MemoryBroker,
    died: Arc<tokio::sync::Notify>,
}

#[async_trait]
impl Publisher for Deadly {
    async fn publish(&self, message: &Message) -> Result<(), PublishError> {
        self.broker.publish(message).await
    }
    async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        if messages.iter().any(|message| message.biz_type() == "deadly") {
            self.died.notify_one();
            std::future::pending::<()>().await;
        }
        self.broker.publish_batch(messages).await
    }
    async fn ready(&self) -> Result<(), PublishError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_kills_relays_is_parked_and_takes_nobody_with_it() {
    let world = World::new();
    world.commit(&["good", "deadly", "good", "good"]).await;
    let died = Arc::new(tokio::sync::Notify::new());
    let mut deaths = 0;
    loop {
        let relay = world.relay_to(Deadly { broker: world.broker.clone(), died: died.clone() });
        let all_ended = world.until(|w| w.count(Status::Failed) == 1 && w.count(Status::Completed) == 3);
        tokio::select! {
            () = died.notified() => deaths += 1,
            _ = all_ended => break,
        }
        relay.abort();
    }
    assert_eq!(deaths, 10);
    let snapshot = world.store.snapshot();
    let (msg_id, parked) = snapshot.iter().find(|(_, row)| row.status == Status::Failed).unwrap();
    assert!(msg_id.starts_with("deadly") && parked.last_error.as_deref().unwrap().contains("10 times"));
}

#[tokio::test(start_paused = true)]
async fn no_setting_is_too_long() {
    let mut world = World::new();
    world.config = RelayConfig::default()
        .with_sweep(Duration::MAX, Duration::MAX)
        .with_backoff(Duration::MAX, Duration::MAX)
        .with_lease(Duration::MAX)
        .with_publish_timeout(Duration::MAX)
        .with_store_timeout(Duration::MAX)
        .with_window(usize::MAX);
    let relay = world.relay();
    sleep(MINUTE).await;
    world.commit(&["a"; 3]).await;
    relay.wake();
    world.until(|w| w.count(Status::Completed) == 3).await;
    assert!(relay.shutdown(Duration::MAX).await.is_clean());
}

#[tokio::test(start_paused = true)]
async fn deliver_after_waits() {
    let world = World::new();
    let _relay = world.relay();
    let due = world.store.clock().now() + 30 * MINUTE;
    let mut tx = world.store.begin();
    world.store.enqueue(&mut tx, &[message("a").with_deliver_after(due)]).await.unwrap();
    tx.commit().await.unwrap();
    let waited = world.until(|w| w.delivered() == 1).await;
    assert!(waited >= 30 * MINUTE && waited < 31 * MINUTE, "{waited:?}");
}

/// Notes the payload bytes of each batch.
#[derive(Clone, Default)]
struct Scales(Arc<std::sync::Mutex<Vec<usize>>>);

#[async_trait]
impl Publisher for Scales {
    async fn publish(&self, _: &Message) -> Result<(), PublishError> {
        Ok(())
    }
    async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        self.0.lock().unwrap().push(messages.iter().map(|message| message.payload().len()).sum());
        messages.iter().map(|_| Ok(())).collect()
    }
    async fn ready(&self) -> Result<(), PublishError> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn large_payloads_come_in_small_batches() {
    let mut world = World::new();
    world.config = RelayConfig::default().with_batch_bytes(100_000);
    let mut tx = world.store.begin();
    for n in 0..200 {
        let large = Message::json("a", n.to_string(), &"x".repeat(10_000)).unwrap();
        world.store.enqueue(&mut tx, &[large]).await.unwrap();
    }
    tx.commit().await.unwrap();
    let scales = Scales::default();
    let relay = world.relay_to(scales.clone());
    world.until(|w| w.count(Status::Completed) == 200).await;
    let batches = scales.0.lock().unwrap().clone();
    assert!(batches.iter().all(|bytes| *bytes <= 100_000), "{batches:?}");
    assert!(batches.len() <= 30, "as large as they may be: {batches:?}");
    assert!(relay.shutdown(MINUTE).await.is_clean());
}
