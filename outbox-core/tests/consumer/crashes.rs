//! A crash at every await of every step. A crash drops the future between two polls, as the end of a process
//! does; leases stay until they run out, and the broker delivers again what was not acknowledged.
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use outbox_core::consumer::Disposition;
use outbox_core::{DedupKey, DedupStore, Receipt};
use tokio::time::sleep;

use crate::fakes::{Act, Fault, LEASE, World, message};

/// No run needs as many polls.
const MANY: usize = 60;

/// Lets `future` be polled so often, then drops it.
pub(crate) async fn crash_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// The broker: delivers until the message is acknowledged or dead, the first times with a crash. Answers
/// whether there were as many crashes, and the end.
async fn deliver(world: &World, crashes: &[usize]) -> (bool, Disposition) {
    let (mut attempts, mut crashes) = (0, crashes.iter());
    for _ in 0..100 {
        let polls = crashes.next().copied().unwrap_or(usize::MAX);
        match crash_after(polls, world.consumer.process(message("m"), attempts)).await {
            None => {}
            Some(Disposition::RetryLater { delay, attempts: charged }) => {
                attempts = charged;
                sleep(delay).await;
            }
            Some(end) => return (crashes.len() == 0 && polls == usize::MAX, end),
        }
    }
    panic!("delivered a hundred times without an end");
}

/// `Ack`: the effect has happened, at most once per crash or failure more than once, and the producer knows.
fn check_acknowledged(world: &World, mishaps: usize) {
    let effects = world.log.effects("m");
    assert!((1..=1 + mishaps).contains(&effects), "{effects} effects after {mishaps} mishaps");
    assert!(world.log.handled("m") >= 1);
    assert_eq!(world.log.rejected("m"), 0);
}

async fn check_that_a_duplicate_only_repeats_the_receipt(world: &World) {
    let (effects, receipts) = (world.log.effects("m"), world.log.handled("m"));
    assert_eq!(world.process(0).await, Disposition::Ack);
    assert_eq!((world.log.effects("m"), world.log.handled("m")), (effects, receipts + 1));
}

#[tokio::test(start_paused = true)]
async fn one_crash_at_every_await() {
    let mut crashed = 0;
    for polls in 0..MANY {
        let world = World::new([Act::Succeed]);
        let (happened, end) = deliver(&world, &[polls]).await;
        assert_eq!(end, Disposition::Ack);
        check_acknowledged(&world, 1);
        check_that_a_duplicate_only_repeats_the_receipt(&world).await;
        crashed += usize::from(happened);
    }
    assert!((10..MANY).contains(&crashed), "{crashed} places to crash at");
}

#[tokio::test(start_paused = true)]
async fn two_crashes_at_every_pair_of_awaits() {
    for first in 0..MANY / 2 {
        for second in 0..MANY / 2 {
            let world = World::new([Act::Succeed]);
            let (_, end) = deliver(&world, &[first, second]).await;
            assert_eq!(end, Disposition::Ack);
            check_acknowledged(&world, 2);
            check_that_a_duplicate_only_repeats_the_receipt(&world).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn crash_at_every_await_of_a_run_that_fails() {
    for act in [Act::FailBefore, Act::FailAfter, Act::PanicBefore, Act::PanicAfter] {
        for polls in 0..MANY / 2 {
            let world = World::new([act, Act::Succeed]);
            let (_, end) = deliver(&world, &[polls]).await;
            assert_eq!(end, Disposition::Ack, "{act:?} {polls}");
            check_acknowledged(&world, 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn crash_at_every_await_while_answers_of_the_store_are_lost() {
    for lost in 0..4 {
        for polls in 0..MANY / 2 {
            let world = World::new([Act::Succeed]);
            world.dedup.faults.next((0..lost).map(|_| None).chain([Some(Fault::After)]));
            world.sink.faults.next([Some(Fault::After)]);
            let (_, end) = deliver(&world, &[polls]).await;
            assert_eq!(end, Disposition::Ack, "{lost} {polls}");
            check_acknowledged(&world, 2);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn crash_at_every_await_of_a_rejection() {
    for polls in 0..MANY / 2 {
        let world = World::new([Act::Reject]);
        let (_, end) = deliver(&world, &[polls]).await;
        assert_eq!(end, Disposition::DeadLetter { reason: "no such product".to_owned() });
        assert!(world.log.rejected("m") >= 1);
        assert_eq!((world.log.handled("m"), world.log.effects("m")), (0, 0));
    }
}

/// The article's consumer: the marker before the handler. If the checks here did not find it, they would find
/// nothing.
#[tokio::test(start_paused = true)]
async fn the_checks_find_a_consumer_that_marks_before_it_handles() {
    let mut lost = 0;
    for polls in 0..MANY {
        let world = World::new([Act::Succeed]);
        crash_after(polls, marking_first(&world)).await;
        sleep(LEASE).await;
        marking_first(&world).await;
        lost += usize::from(world.log.effects("m") == 0);
    }
    assert!(lost > 0);
}

async fn marking_first(world: &World) {
    use outbox_core::Begin::Acquired;
    use outbox_core::consumer::{Handler, ReceiptSink};
    let key = DedupKey::new("points", "m");
    if let Acquired(token) = world.dedup.begin(&key, LEASE).await.unwrap() {
        world.dedup.finish(&key, token).await.unwrap();
        let delivery = outbox_core::consumer::Delivery::new(message("m"), 1, 1);
        world.handler.handle(delivery).await.unwrap();
        world.sink.record(&[Receipt::handled("m", "points", 0)]).await.unwrap();
    }
}
