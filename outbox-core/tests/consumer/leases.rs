//! The dedup store, slow, away or forgetful, around a handler.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::consumer::{Consumer, Delivery, Disposition, NoReceipts, handler_fn};
use outbox_core::memory::MemoryDedup;
use outbox_core::{Begin, DedupError, DedupKey, DedupStore, DedupToken};
use tokio::time::Instant;

use crate::fakes::{Act, Fault, LEASE, PATIENCE, World, config, key, later, message, passes};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn handler_slower_than_the_lease_keeps_it() {
    let world = World::new([Act::Take(10 * LEASE)]);
    let slow = world.spawn(0);
    for _ in 0..19 {
        passes(LEASE / 2).await;
        assert_eq!(world.process(0).await, later(0));
    }
    assert_eq!(slow.await.unwrap(), Disposition::Ack);
    assert_eq!((world.log.calls("m"), world.log.effects("m")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn lease_ends_with_a_delivery_that_was_dropped() {
    let world = World::new([Act::Hang, Act::Succeed]);
    let dropped = world.spawn(0);
    passes(SECOND).await;
    dropped.abort();
    passes(LEASE).await;
    assert_eq!(world.process(0).await, Disposition::Ack);
}

#[tokio::test(start_paused = true)]
async fn handler_is_stopped_when_its_lease_is_lost() {
    let world = World::new([Act::Take(10 * LEASE), Act::Succeed]);
    let start = Instant::now();
    let slow = world.spawn(0);
    passes(SECOND).await;
    world.dedup.forget();
    assert_eq!(slow.await.unwrap(), later(0));
    assert!(start.elapsed() <= LEASE, "{:?}", start.elapsed());
    assert_eq!(world.log.effects("m"), 0);
    assert_eq!(world.process(0).await, Disposition::Ack);
}

#[tokio::test(start_paused = true)]
async fn store_away_for_less_than_the_lease_does_not_stop_a_handler() {
    for fault in [Fault::Before, Fault::After] {
        let world = World::new([Act::Take(3 * LEASE)]);
        let slow = world.spawn(0);
        passes(LEASE / 3 - SECOND).await;
        world.dedup.faults.away(Some(fault));
        passes(LEASE / 2).await;
        world.dedup.faults.heal();
        assert_eq!(slow.await.unwrap(), Disposition::Ack, "{fault:?}");
        assert_eq!(world.log.calls("m"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn store_away_for_the_lease_stops_the_handler_in_time() {
    for fault in [Fault::Before, Fault::Hang] {
        let world = World::new([Act::Take(10 * LEASE), Act::Succeed]);
        let start = Instant::now();
        let slow = world.spawn(0);
        passes(SECOND).await;
        world.dedup.faults.away(Some(fault));
        assert_eq!(slow.await.unwrap(), later(0), "{fault:?}");
        assert!(start.elapsed() <= LEASE, "{fault:?}: {:?}", start.elapsed());
        world.dedup.faults.heal();
        passes(LEASE).await;
        assert_eq!(world.process(0).await, Disposition::Ack);
        assert_eq!(world.log.effects("m"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn store_away_at_the_start_is_waited_for_then_left() {
    for fault in [Fault::Before, Fault::Hang] {
        let world = World::new([Act::Succeed]);
        world.dedup.faults.away(Some(fault));
        let start = Instant::now();
        assert_eq!(world.process(1).await, later(1), "{fault:?}");
        assert!(start.elapsed() <= PATIENCE && start.elapsed() > PATIENCE / 2, "{:?}", start.elapsed());
        assert_eq!(world.log.events(), []);
        world.dedup.faults.heal();
        assert_eq!(world.process(1).await, Disposition::Ack);
    }
}

#[tokio::test(start_paused = true)]
async fn store_that_comes_back_in_time_is_not_even_noticed() {
    let world = World::new([Act::Succeed]);
    world.dedup.faults.away(Some(Fault::Before));
    let waiting = world.spawn(0);
    passes(PATIENCE / 2).await;
    world.dedup.faults.heal();
    assert_eq!(waiting.await.unwrap(), Disposition::Ack);
}

/// The lease was taken, but nobody knows its token: it has to run out.
#[tokio::test(start_paused = true)]
async fn lost_answer_to_begin_delays_the_message_only() {
    let world = World::new([Act::Succeed]);
    world.dedup.faults.next([Some(Fault::After)]);
    assert_eq!(world.process(0).await, later(0));
    passes(LEASE).await;
    assert_eq!(world.process(0).await, Disposition::Ack);
    assert_eq!(world.log.effects("m"), 1);
}

#[tokio::test(start_paused = true)]
async fn marker_is_tried_again_and_a_lost_answer_is_understood() {
    for faults in [vec![Some(Fault::Before); 3], vec![Some(Fault::After)], vec![Some(Fault::Hang)]] {
        let world = World::new([Act::Succeed]);
        world.dedup.faults.next([None].into_iter().chain(faults.clone()));
        assert_eq!(world.process(0).await, Disposition::Ack, "{faults:?}");
        assert_eq!(world.is_done().await, faults != [Some(Fault::Hang)], "{faults:?}");
        assert_eq!((world.log.calls("m"), world.log.handled("m")), (1, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn effect_is_acknowledged_even_if_it_can_never_be_marked() {
    let world = World::new([Act::Take(SECOND)]);
    let delivery = world.spawn(0);
    passes(SECOND / 2).await;
    world.dedup.faults.away(Some(Fault::Before));
    assert_eq!(delivery.await.unwrap(), Disposition::Ack);
    assert_eq!((world.log.effects("m"), world.log.handled("m")), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn marker_is_set_even_if_the_lease_was_forgotten_meanwhile() {
    let world = World::new([Act::Take(SECOND)]);
    let delivery = world.spawn(0);
    passes(SECOND / 2).await;
    world.dedup.forget();
    assert_eq!(delivery.await.unwrap(), Disposition::Ack);
    assert!(world.is_done().await);
}

/// Counts renewals.
#[derive(Clone, Default)]
struct Counting(MemoryDedup, Arc<AtomicUsize>);

#[async_trait]
impl DedupStore for Counting {
    async fn begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError> {
        self.0.begin(key, lease).await
    }
    async fn renew(&self, key: &DedupKey, token: DedupToken, lease: Duration) -> Result<bool, DedupError> {
        self.1.fetch_add(1, SeqCst);
        self.0.renew(key, token, lease).await
    }
    async fn finish(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.0.finish(key, token).await
    }
    async fn abandon(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.0.abandon(key, token).await
    }
    async fn is_done(&self, key: &DedupKey) -> Result<bool, DedupError> {
        self.0.is_done(key).await
    }
    fn retention(&self) -> Duration {
        self.0.retention()
    }
}

/// A handler that never awaits cannot renew its lease itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handler_that_blocks_its_thread_keeps_its_lease() {
    let dedup = Counting::default();
    let renewals = dedup.1.clone();
    let handler = handler_fn(move |_: Delivery<u32>| {
        while renewals.load(SeqCst) < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::future::ready(Ok(()))
    });
    let consumer = Consumer::new("points", handler, NoReceipts).with_dedup(dedup.clone());
    let consumer = consumer.with_config(config().with_lease(2 * SECOND));
    assert_eq!(consumer.process(message("m"), 0).await, Disposition::Ack);
    assert!(dedup.is_done(&key("m")).await.unwrap());
}
