//! Receipts: away, in batches, and straight to the producer's table.
use std::time::Duration;

use chrono::DateTime;
use outbox_core::consumer::{Consumer, Disposition};
use outbox_core::memory::{MemoryStore, TokioClock};
use outbox_core::{
    ClaimMode, ClaimRequest, Claimed, Enqueue, OutboxStore, Outcome, Policies, Policy, Settlement, Status,
};
use tokio::time::Instant;

use crate::fakes::{Act, Event, Fault, Log, MAX_ATTEMPTS, PATIENCE, Scripted, World, later, message, passes};

#[tokio::test(start_paused = true)]
async fn sink_away_holds_the_acknowledgement_and_a_redelivery_sends_the_receipt() {
    for fault in [Fault::Before, Fault::After, Fault::Hang] {
        let world = World::new([Act::Succeed]);
        world.sink.faults.away(Some(fault));
        let start = Instant::now();
        assert_eq!(world.process(0).await, later(0), "{fault:?}");
        assert!(start.elapsed() <= PATIENCE, "{:?}", start.elapsed());
        world.sink.faults.heal();
        assert_eq!(world.process(0).await, Disposition::Ack, "{fault:?}");
        assert_eq!(world.log.effects("m"), 1);
        assert!(world.log.handled("m") >= 1);
    }
}

#[tokio::test(start_paused = true)]
async fn sink_that_comes_back_in_time_is_not_even_noticed() {
    let world = World::new([Act::Succeed]);
    world.sink.faults.away(Some(Fault::Before));
    let waiting = world.spawn(0);
    passes(PATIENCE / 2).await;
    world.sink.faults.heal();
    assert_eq!(waiting.await.unwrap(), Disposition::Ack);
}

#[tokio::test(start_paused = true)]
async fn given_up_message_waits_until_the_producer_can_be_told_and_runs_no_more() {
    let world = World::new([Act::FailBefore]);
    world.sink.faults.away(Some(Fault::Before));
    assert_eq!(world.process(MAX_ATTEMPTS - 1).await, later(MAX_ATTEMPTS));
    assert_eq!(world.process(MAX_ATTEMPTS).await, later(MAX_ATTEMPTS));
    world.sink.faults.heal();
    assert!(matches!(world.process(MAX_ATTEMPTS).await, Disposition::DeadLetter { .. }));
    assert_eq!((world.log.calls("m"), world.log.rejected("m")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn rejected_message_waits_until_the_producer_can_be_told() {
    let world = World::new([Act::Reject]);
    world.sink.faults.away(Some(Fault::Before));
    assert_eq!(world.process(0).await, later(0));
    world.sink.faults.heal();
    let reason = "no such product".to_owned();
    assert_eq!(world.process(0).await, Disposition::DeadLetter { reason });
}

#[tokio::test(start_paused = true)]
async fn deliveries_at_the_same_time_share_calls() {
    let world = World::new([Act::Succeed]);
    let ids: Vec<String> = (0..200).map(|n| format!("m{n}")).collect();
    let ends = ids.iter().map(|id| world.consumer.process(message(id), 0));
    let ends = futures_util::future::join_all(ends).await;
    assert!(ends.iter().all(|end| *end == Disposition::Ack));
    assert!(ids.iter().all(|id| world.log.handled(id) == 1));
}

/// The producer's side: a table with rows that are sent.
struct Producer {
    store: MemoryStore,
}

impl Producer {
    async fn with_a_sent_row() -> (Self, Claimed) {
        let policies = Policies::new(Policy::default().with_required_groups(["points"]));
        let clock = TokioClock::starting_at(DateTime::UNIX_EPOCH);
        let this = Self { store: MemoryStore::new().with_clock(clock).with_policies(policies) };
        let mut tx = this.store.begin();
        this.store.enqueue(&mut tx, &[message("m")]).await.unwrap();
        tx.commit().await.unwrap();
        let mode = ClaimMode::Ordinary { suspect_after: 9 };
        let request = ClaimRequest { limit: 1, lease: Duration::from_secs(60), mode };
        let claimed = this.store.claim(&request).await.unwrap().remove(0);
        let outcome =
            Outcome::Confirmed { required_groups: Vec::new(), ack_timeout: Duration::from_secs(3600) };
        this.store.settle(&[Settlement { claim: claimed.claim, outcome }]).await.unwrap();
        (this, claimed)
    }

    fn status(&self) -> Status {
        self.store.snapshot()["m"].status
    }

    fn consumer(&self, act: Act) -> (Consumer, Log) {
        let log = Log::default();
        (Consumer::new("points", Scripted::new([act], &log), self.store.clone()), log)
    }
}

#[tokio::test(start_paused = true)]
async fn receipt_completes_the_row_in_the_producers_table() {
    let (producer, claimed) = Producer::with_a_sent_row().await;
    assert_eq!(producer.status(), Status::Sent);
    let (consumer, log) = producer.consumer(Act::Succeed);
    assert_eq!(consumer.process(claimed.message, 0).await, Disposition::Ack);
    assert_eq!(producer.status(), Status::Completed);
    assert!(log.events().contains(&Event::Effect("m".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn rejection_fails_the_row_unless_it_was_claimed_again_since() {
    let (producer, claimed) = Producer::with_a_sent_row().await;
    let (consumer, _) = producer.consumer(Act::Reject);
    let of_another_claim = message("m");
    assert!(matches!(consumer.process(of_another_claim, 0).await, Disposition::DeadLetter { .. }));
    assert_eq!(producer.status(), Status::Sent);
    assert!(matches!(consumer.process(claimed.message, 0).await, Disposition::DeadLetter { .. }));
    assert_eq!(producer.status(), Status::Failed);
}
