//! Handlers that fail.
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::consumer::{
    Consumer, Delivery, Disposition, HandlerError, NoReceipts, ReceiptError, ReceiptSink, handler_fn,
};
use outbox_core::{
    Begin, DedupError, DedupKey, DedupStore, DedupToken, Message, Receipt, StoreError, StoreErrorKind,
};

use crate::fakes::{Act, Event, Fault, LEASE, MAX_ATTEMPTS, World, config, later, message, passes};

fn retry(seconds: u64, attempts: u32) -> Disposition {
    Disposition::RetryLater { delay: Duration::from_secs(seconds), attempts }
}

fn reason(end: Disposition) -> String {
    match end {
        Disposition::DeadLetter { reason } => reason,
        other => panic!("{other:?} instead of a dead letter"),
    }
}

#[tokio::test(start_paused = true)]
async fn failure_is_charged_and_tried_again_by_the_policy() {
    for act in [Act::FailBefore, Act::PanicBefore] {
        let world = World::new([act, act, Act::Succeed]);
        assert_eq!(world.process(0).await, retry(60, 1), "{act:?}");
        assert_eq!(world.process(1).await, retry(300, 2), "{act:?}");
        assert_eq!(world.process(2).await, Disposition::Ack, "{act:?}");
        let called: Vec<u32> = world
            .log
            .events()
            .iter()
            .filter_map(|e| if let Event::Called(_, n) = e { Some(*n) } else { None })
            .collect();
        assert_eq!(called, [1, 2, 3]);
        assert_eq!((world.log.effects("m"), world.log.handled("m")), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn last_attempt_tells_the_producer_and_goes_to_the_dead_letters() {
    for (act, words) in
        [(Act::FailBefore, "out of stock"), (Act::PanicAfter, "the handler panicked: out of its")]
    {
        let world = World::new([act]);
        let reason = reason(world.process(MAX_ATTEMPTS - 1).await);
        assert!(reason.contains("gave up after 3 attempts") && reason.contains(words), "{reason}");
        assert_eq!(
            world.log.events().last().unwrap(),
            &Event::Receipt(Receipt::rejected("m", "points", 0, reason))
        );
        assert_eq!(world.log.handled("m"), 0);
        assert!(!world.is_done().await, "put back by a person, it must run");
    }
}

#[tokio::test(start_paused = true)]
async fn rejection_goes_to_the_dead_letters_at_once() {
    let world = World::new([Act::Reject]);
    assert_eq!(reason(world.process(0).await), "no such product");
    assert_eq!((world.log.calls("m"), world.log.rejected("m"), world.log.handled("m")), (1, 1, 0));
    assert!(!world.is_done().await);
}

#[tokio::test(start_paused = true)]
async fn unreadable_payload_is_a_rejection_without_a_call() {
    let world = World::new([Act::Succeed]);
    let text = Message::json("order.created", "A-1", "secret").unwrap().with_msg_id("m").unwrap();
    let reason = reason(world.consumer.process(text, 0).await);
    assert!(reason.contains("the payload is no u32") && !reason.contains("secret"), "{reason}");
    assert_eq!((world.log.calls("m"), world.log.rejected("m")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn rejection_quotes_the_claim_it_came_with() {
    let world = World::new([Act::Reject]);
    let parts = outbox_core::wire::Parts {
        headers: vec![("outbox-claim-no".to_owned(), "7".to_owned())],
        body: "1".into(),
        msg_id: Some("m".to_owned()),
        ..Default::default()
    };
    let message = outbox_core::wire::message(parts).unwrap();
    reason(world.consumer.process(message, 0).await);
    let expected = Event::Receipt(Receipt::rejected("m", "points", 7, "no such product"));
    assert_eq!(world.log.events().last().unwrap(), &expected);
}

#[tokio::test(start_paused = true)]
async fn handler_says_itself_when_to_try_again() {
    let hour = Duration::from_secs(3600);
    let handler =
        handler_fn(move |_: Delivery<u32>| async move { Err(HandlerError::retry_after(hour, "closed")) });
    let consumer = Consumer::new("points", handler, NoReceipts).with_config(config());
    assert_eq!(consumer.process(message("m"), 0).await, retry(3600, 1));
    reason(consumer.process(message("m"), 2).await);
}

#[tokio::test(start_paused = true)]
async fn every_ordinary_error_means_try_again() {
    async fn handle(_: Delivery<u32>) -> Result<(), HandlerError> {
        Err(std::io::Error::other("disk full"))?
    }
    let consumer = Consumer::new("points", handler_fn(handle), NoReceipts).with_config(config());
    assert_eq!(consumer.process(message("m"), 0).await, retry(60, 1));
    assert!(reason(consumer.process(message("m"), 2).await).ends_with("disk full"));
}

#[tokio::test(start_paused = true)]
async fn handler_without_end_is_stopped_and_charged() {
    let world = World::configured([Act::Hang], config().with_handler_timeout(Duration::from_secs(90)));
    let start = tokio::time::Instant::now();
    assert_eq!(world.process(0).await, retry(60, 1));
    assert_eq!(start.elapsed().as_secs(), 90);
    let reason = reason(world.process(2).await);
    assert!(reason.contains("took longer than 90s"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn panic_harms_no_other_message() {
    let world = World::new([Act::PanicBefore, Act::Succeed]);
    let ends = futures_util::future::join(world.process(0), world.consumer.process(message("n"), 0)).await;
    assert_eq!(ends, (retry(60, 1), Disposition::Ack));
    assert_eq!(world.log.effects("n"), 1);
}

#[tokio::test(start_paused = true)]
async fn lease_that_could_not_be_given_back_delays_the_retry_only() {
    let world = World::new([Act::FailBefore, Act::Succeed]);
    world.dedup.faults.next([None, Some(Fault::Before)]);
    assert_eq!(world.process(0).await, retry(60, 1));
    assert_eq!(world.process(1).await, later(1));
    tokio::time::sleep(LEASE).await;
    assert_eq!(world.process(1).await, Disposition::Ack);
}

#[tokio::test(start_paused = true)]
async fn attempts_that_are_used_up_run_nothing() {
    let world = World::new([Act::Succeed]);
    let reason = reason(world.process(MAX_ATTEMPTS).await);
    assert!(reason.contains("failed 3 times before"), "{reason}");
    assert_eq!((world.log.calls("m"), world.log.rejected("m")), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn attempts_that_are_used_up_do_not_hide_that_it_was_handled() {
    let world = World::new([Act::Succeed]);
    assert_eq!(world.process(0).await, Disposition::Ack);
    assert_eq!(world.process(MAX_ATTEMPTS).await, Disposition::Ack);
    assert_eq!(world.log.rejected("m"), 0);
}

#[tokio::test(start_paused = true)]
async fn message_that_is_given_up_is_refused_without_a_run_unless_it_was_handled() {
    let world = World::new([Act::Succeed]);
    let refused = Disposition::DeadLetter { reason: "it ends processes".to_owned() };
    assert_eq!(world.consumer.give_up(message("m"), 2, "it ends processes").await, refused);
    assert_eq!((world.log.calls("m"), world.log.rejected("m")), (0, 1));
    assert_eq!(world.process(2).await, Disposition::Ack, "the lease was given back");

    assert_eq!(world.consumer.give_up(message("m"), 2, "it ends processes").await, Disposition::Ack);
    assert_eq!((world.log.rejected("m"), world.log.handled("m")), (1, 2), "the receipt goes out again");

    let world = World::new([Act::Hang]);
    let running = world.spawn(0);
    passes(LEASE / 2).await;
    assert_eq!(world.consumer.give_up(message("m"), 0, "it ends processes").await, later(0));
    running.abort();

    world.sink.faults.away(Some(Fault::Before));
    passes(2 * LEASE).await;
    assert_eq!(world.consumer.give_up(message("m"), 1, "it ends processes").await, later(1));
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_needs_being_away_charges_nothing() {
    async fn fail(kind: StoreErrorKind) -> Result<(), HandlerError> {
        Err(StoreError::new(kind, "no connection"))?
    }
    let inbox = |kind| handler_fn(move |_: Delivery<u32>| fail(kind));
    let said = handler_fn(async |_: Delivery<u32>| Err(HandlerError::unavailable("the bank is closed")));
    let consumers = [
        Consumer::new("points", inbox(StoreErrorKind::Unavailable), NoReceipts),
        Consumer::new("points", said, NoReceipts),
    ];
    for consumer in consumers.map(|consumer| consumer.with_config(config())) {
        assert_eq!(consumer.process(message("m"), MAX_ATTEMPTS - 1).await, later(MAX_ATTEMPTS - 1));
    }
    let other = Consumer::new("points", inbox(StoreErrorKind::Other), NoReceipts).with_config(config());
    assert_eq!(other.process(message("m"), 0).await, retry(60, 1));
}

/// Whatever it is asked.
struct Panicking;

#[async_trait]
impl DedupStore for Panicking {
    async fn begin(&self, _: &DedupKey, _: Duration) -> Result<Begin, DedupError> {
        panic!("no such pool")
    }
    async fn renew(&self, _: &DedupKey, _: DedupToken, _: Duration) -> Result<bool, DedupError> {
        panic!("no such pool")
    }
    async fn finish(&self, _: &DedupKey, _: DedupToken) -> Result<bool, DedupError> {
        panic!("no such pool")
    }
    async fn abandon(&self, _: &DedupKey, _: DedupToken) -> Result<bool, DedupError> {
        panic!("no such pool")
    }
    async fn is_done(&self, _: &DedupKey) -> Result<bool, DedupError> {
        panic!("no such pool")
    }
    fn retention(&self) -> Duration {
        Duration::from_secs(86_400)
    }
}

#[async_trait]
impl ReceiptSink for Panicking {
    async fn record(&self, _: &[Receipt]) -> Result<(), ReceiptError> {
        panic!("no such channel")
    }
}

#[tokio::test(start_paused = true)]
async fn panic_of_a_dedup_store_or_a_sink_is_nobodys_charge() {
    let handler = || handler_fn(async |_: Delivery<u32>| Ok(()));
    let consumers = [
        Consumer::new("points", handler(), NoReceipts).with_dedup(Panicking),
        Consumer::new("points", handler(), Panicking),
    ];
    for consumer in consumers.map(|consumer| consumer.with_config(config())) {
        assert_eq!(consumer.process(message("m"), 1).await, later(1));
        assert_eq!(consumer.give_up(message("m"), 1, "why").await, later(1));
    }
}
