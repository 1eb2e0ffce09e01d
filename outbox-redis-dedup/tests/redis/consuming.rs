//! A consumer on Redis: every message three times, handlers that fail, and Redis away again and again.
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use outbox_core::consumer::{
    Consumer, ConsumerConfig, Delivery, Disposition, HandlerError, NoReceipts, handler_fn,
};
use outbox_core::{Message, RetryPolicy};
use tokio::time::sleep;

use crate::fixture::Fixture;
use crate::outage::proxied;
use crate::private_server::PrivateServer;
use crate::proxy::Way;

const LEASE: Duration = Duration::from_millis(900);

/// How often the effect of each message has happened.
type Effects = Arc<Mutex<HashMap<String, usize>>>;

fn message() -> Message {
    Message::json("order.created", "A-1", &1).unwrap()
}

fn config() -> ConsumerConfig {
    let retry = RetryPolicy::default().with_steps([Duration::from_millis(20)]).with_max_attempts(1000);
    ConsumerConfig::default()
        .with_retry(retry)
        .with_lease(LEASE)
        .with_later(Duration::from_millis(50))
        .with_patience(Duration::from_secs(2))
}

async fn consumer(fixture: Fixture, takes: Duration, fails: bool) -> (Arc<Consumer>, Effects, Arc<Fixture>) {
    let (effects, seen) = (Effects::default(), Effects::default());
    let handler = handler_fn({
        let effects = effects.clone();
        move |delivery: Delivery<u32>| {
            let (effects, seen) = (effects.clone(), seen.clone());
            async move {
                let run = count(&seen, delivery.msg_id());
                sleep(takes).await;
                if fails && run % 2 == 1 {
                    return Err(HandlerError::retry("every other time"));
                }
                count(&effects, delivery.msg_id());
                Ok(())
            }
        }
    });
    let fixture = Arc::new(fixture);
    let consumer = Consumer::new("points", handler, NoReceipts).with_dedup(fixture.dedup.clone());
    (Arc::new(consumer.with_config(config())), effects, fixture)
}

fn count(counts: &Effects, id: &str) -> usize {
    let mut counts = counts.lock().unwrap();
    let count = counts.entry(id.to_owned()).or_default();
    *count += 1;
    *count
}

/// Delivers until it is acknowledged, at which moment the effect must have happened.
async fn deliver(consumer: Arc<Consumer>, message: Message, effects: Effects) {
    let mut attempts = 0;
    loop {
        match consumer.process(message.clone(), attempts).await {
            Disposition::Ack => {
                let effects = effects.lock().unwrap();
                assert!(effects.contains_key(message.msg_id()), "acknowledged without an effect");
                return;
            }
            Disposition::RetryLater { delay, attempts: charged } => {
                attempts = charged;
                sleep(delay).await;
            }
            Disposition::DeadLetter { reason } => panic!("{reason}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_away_pauses_consumption_and_nothing_is_acknowledged_unhandled() {
    let (proxy, fixture) = proxied().await;
    let (consumer, effects, _fixture) = consumer(fixture, Duration::from_millis(5), true).await;
    let messages: Vec<Message> = (0..40).map(|_| message()).collect();
    let deliveries: Vec<_> = (0..3)
        .flat_map(|_| messages.iter().cloned())
        .map(|message| tokio::spawn(deliver(consumer.clone(), message, effects.clone())))
        .collect();
    for way in [Way::Refusing, Way::Open, Way::Silent, Way::Open, Way::Moved, Way::Refusing, Way::Open] {
        sleep(Duration::from_millis(150)).await;
        proxy.set(way);
    }
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    assert_eq!(effects.lock().unwrap().len(), messages.len());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_handler_slower_than_the_lease_runs_once() {
    let (consumer, effects, _fixture) = consumer(Fixture::new(), 4 * LEASE, false).await;
    let message = message();
    let deliveries: Vec<_> =
        (0..3).map(|_| tokio::spawn(deliver(consumer.clone(), message.clone(), effects.clone()))).collect();
    for delivery in deliveries {
        delivery.await.unwrap();
    }
    assert_eq!(effects.lock().unwrap()[message.msg_id()], 1);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_emptied_doubles_only_what_is_delivered_again() {
    let server = PrivateServer::start(&[]);
    let fixture = Fixture::at(&server.url(), outbox_redis_dedup::RedisDedupConfig::default());
    let (consumer, effects, _fixture) = consumer(fixture, Duration::ZERO, false).await;
    let (once, twice) = (message(), message());
    for message in [&once, &twice, &twice] {
        deliver(consumer.clone(), message.clone(), effects.clone()).await;
    }
    assert_eq!(effects.lock().unwrap()[twice.msg_id()], 1);
    server.run(&["FLUSHALL"]);
    deliver(consumer.clone(), twice.clone(), effects.clone()).await;
    let effects = effects.lock().unwrap();
    assert_eq!((effects[once.msg_id()], effects[twice.msg_id()]), (1, 2));
}
