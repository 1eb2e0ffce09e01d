//! The order of the steps, and what a delivery becomes.
use std::sync::Arc;
use std::time::Duration;

use outbox_core::consumer::{Consumer, Delivery, Disposition, handler_fn};
use outbox_core::{Begin, DedupStore, Message, Receipt};

use crate::fakes::{Act, Event, FaultySink, LEASE, Scripted, World, config, key, later, message};

fn id() -> String {
    "m".to_owned()
}

#[tokio::test(start_paused = true)]
async fn effect_then_marker_then_receipt_then_ack() {
    let world = World::new([Act::Succeed]);
    assert_eq!(world.process(0).await, Disposition::Ack);
    let expected = [
        Event::Begun(id()),
        Event::Called(id(), 1),
        Event::Effect(id()),
        Event::Finished(id()),
        Event::Receipt(Receipt::handled("m", "points", 0)),
    ];
    assert_eq!(world.log.events(), expected);
}

#[tokio::test(start_paused = true)]
async fn duplicate_sends_its_receipt_again_and_runs_nothing() {
    let world = World::new([Act::Succeed]);
    for deliveries in 1..=3 {
        assert_eq!(world.process(0).await, Disposition::Ack);
        assert_eq!(world.log.handled("m"), deliveries);
    }
    assert_eq!(world.log.calls("m"), 1);
}

#[tokio::test(start_paused = true)]
async fn message_that_another_run_has_is_left_alone() {
    let world = World::new([Act::Succeed]);
    world.dedup.memory().begin(&key("m"), LEASE).await.unwrap();
    assert_eq!(world.process(2).await, later(2));
    assert_eq!(world.log.events(), []);
}

#[tokio::test(start_paused = true)]
async fn concurrent_deliveries_run_once() {
    let world = World::new([Act::Take(Duration::from_secs(1))]);
    let both: Vec<_> = (0..2).map(|_| world.spawn(0)).collect();
    let mut ends = Vec::new();
    for delivery in both {
        ends.push(delivery.await.unwrap());
    }
    assert!(ends.contains(&Disposition::Ack) && ends.contains(&later(0)), "{ends:?}");
    assert_eq!(world.log.calls("m"), 1);
}

#[tokio::test(start_paused = true)]
async fn two_groups_both_handle_a_message() {
    let world = World::new([Act::Succeed]);
    let handler = Scripted::new([Act::Succeed], &world.log);
    let inventory = Consumer::new("inventory", handler, world.sink.clone()).with_dedup(world.dedup.clone());
    assert_eq!(world.process(0).await, Disposition::Ack);
    assert_eq!(inventory.process(message("m"), 0).await, Disposition::Ack);
    assert_eq!(world.log.effects("m"), 2);
}

#[tokio::test(start_paused = true)]
async fn two_messages_of_one_order_are_no_duplicates() {
    let world = World::new([Act::Succeed]);
    for id in ["m1", "m2"] {
        assert_eq!(world.consumer.process(message(id), 0).await, Disposition::Ack);
        assert_eq!(world.log.effects(id), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_dedup_store_every_delivery_runs() {
    let world = World::new([]);
    let handler = Scripted::new([Act::FailBefore, Act::Succeed], &world.log);
    let consumer = Consumer::new("points", handler, world.sink.clone());
    assert!(matches!(consumer.process(message("m"), 0).await, Disposition::RetryLater { attempts: 1, .. }));
    assert_eq!(consumer.process(message("m"), 1).await, Disposition::Ack);
    assert_eq!(consumer.process(message("m"), 0).await, Disposition::Ack);
    assert_eq!((world.log.effects("m"), world.log.handled("m")), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn handler_sees_the_message_as_it_was_enqueued() {
    let seen = Arc::new(std::sync::Mutex::new(None));
    let handler = handler_fn({
        let seen = seen.clone();
        move |delivery: Delivery<Vec<u8>>| {
            *seen.lock().unwrap() = Some(delivery);
            async { Ok(()) }
        }
    });
    let message = Message::json("order.created", "A-1", &[1, 2]).unwrap();
    let message = message.with_header("tenant", "acme").unwrap();
    let consumer = Consumer::new("points", handler, outbox_core::consumer::NoReceipts);
    assert_eq!(consumer.process(message.clone(), 4).await, Disposition::Ack);
    let delivery = seen.lock().unwrap().take().unwrap();
    assert_eq!((delivery.biz_type(), delivery.biz_id()), ("order.created", "A-1"));
    assert_eq!((delivery.header("tenant"), delivery.attempt()), (Some("acme"), 5));
    assert_eq!((delivery.message(), delivery.payload()), (&message, &vec![1, 2]));
}

#[tokio::test(start_paused = true)]
async fn retention_is_checked_against_all_that_makes_a_message_come_late() {
    let hour = Duration::from_secs(3600);
    assert_eq!(World::new([]).consumer.check_retention(), None);
    let long = config().with_producer_horizon(24 * hour);
    let world = World::configured([], long.clone());
    let short = world.consumer.check_retention().unwrap().to_string();
    assert!(short.contains("24 h 0 min") && short.contains("24 h 6 min"), "{short}");
    let without = Consumer::new("points", world.handler.clone(), FaultySink::default()).with_config(long);
    assert_eq!(without.check_retention(), None);
}

#[tokio::test(start_paused = true)]
async fn no_duration_is_too_long() {
    let forever = config()
        .with_lease(Duration::MAX)
        .with_handler_timeout(Duration::MAX)
        .with_patience(Duration::MAX)
        .with_later(Duration::MAX)
        .with_producer_horizon(Duration::MAX);
    let world = World::configured([Act::FailBefore, Act::Succeed], forever);
    assert!(matches!(world.process(0).await, Disposition::RetryLater { attempts: 1, .. }));
    assert_eq!(world.process(1).await, Disposition::Ack);
    assert!(world.consumer.check_retention().is_some());
}

#[tokio::test(start_paused = true)]
async fn key_is_free_for_the_next_delivery_after_a_failure() {
    let world = World::new([Act::FailBefore]);
    assert!(matches!(world.process(0).await, Disposition::RetryLater { .. }));
    assert!(matches!(world.dedup.memory().begin(&key("m"), LEASE).await.unwrap(), Begin::Acquired(_)));
}
