//! A broker that cannot be reached, does not answer, is blocked, or goes away in the middle of a batch.

use std::time::{Duration, Instant};

use outbox_amqp::{AmqpConfig, AmqpPublisher, Route};
use outbox_core::PublishErrorKind::{Failed, Unavailable};
use outbox_core::{Message, PublishError, PublishErrorKind, Publisher};

use crate::lab::{Lab, expect_error, message, messages, unique};
use crate::proxy::{ACK, Proxy};

const SHORT: Duration = Duration::from_millis(1_500);

fn publisher(proxy: &Proxy, lab: &Lab) -> AmqpPublisher {
    let config = AmqpConfig::new(proxy.uri()).unwrap().with_exchange(&lab.exchange);
    AmqpPublisher::new(config.with_confirm_timeout(SHORT).with_connect_timeout(SHORT))
}

#[track_caller]
fn expect_all(results: &[Result<(), PublishError>], kind: PublishErrorKind, part: &str) {
    for result in results {
        expect_error(result, kind, part);
    }
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_refused_connection_is_unavailable_until_it_is_taken() {
    let mut lab = Lab::new("refused").await;
    let queue = lab.queue("#").await;
    let mut proxy = Proxy::start().await;
    let publisher = publisher(&proxy, &lab);
    proxy.refuse().await;
    expect_error(&publisher.ready().await, Unavailable, "nothing listens there");
    expect_all(&publisher.publish_batch(&messages("a", 3)).await, Unavailable, "nothing listens there");
    proxy.accept().await;
    publisher.ready().await.unwrap();
    publisher.publish(&message("a", "0")).await.unwrap();
    assert_eq!(lab.drain(&queue, 1).await, ["0"]);
    assert_eq!(proxy.connections(), 1);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_cut_while_idle_is_reconnected_by_the_next_call() {
    let mut lab = Lab::new("cut-idle").await;
    lab.queue("#").await;
    let proxy = Proxy::start().await;
    let publisher = publisher(&proxy, &lab);
    publisher.publish(&message("a", "0")).await.unwrap();
    proxy.cut();
    let patience = Instant::now() + Duration::from_secs(5);
    while publisher.publish(&message("a", "1")).await.is_err() {
        assert!(Instant::now() < patience, "never reconnected");
    }
    assert_eq!(proxy.connections(), 2);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_cut_in_mid_batch_charges_nothing() {
    let mut lab = Lab::new("cut-batch").await;
    lab.queue("#").await;
    let proxy = Proxy::start().await;
    let publisher = publisher(&proxy, &lab);
    publisher.ready().await.unwrap();
    proxy.swallow(Some(ACK));
    let batch = messages("a", 500);
    let (results, ()) = tokio::join!(publisher.publish_batch(&batch), async {
        while proxy.swallow_count() == 0 {
            tokio::task::yield_now().await;
        }
        proxy.cut();
    });
    expect_all(&results, Unavailable, "lost");
    proxy.swallow(None);
    for result in publisher.publish_batch(&batch).await {
        result.unwrap();
    }
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_half_open_connection_is_unavailable_and_dropped() {
    let mut lab = Lab::new("half-open").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let publisher = publisher(&proxy, &lab);
    publisher.publish(&message("a", "0")).await.unwrap();
    proxy.stall();
    let begin = Instant::now();
    expect_all(&publisher.publish_batch(&messages("a", 3)).await, Unavailable, "does not answer");
    assert!(begin.elapsed() < SHORT + Duration::from_secs(5), "{:?}", begin.elapsed());
    expect_error(&publisher.ready().await, Unavailable, "no answer within");
    proxy.resume();
    publisher.ready().await.unwrap();
    publisher.publish(&message("a", "last")).await.unwrap();
    assert!(lab.drain(&queue, 2).await.contains(&"last".to_owned()));
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_confirmation_that_never_comes_fails_only_its_own_messages() {
    let mut lab = Lab::new("unconfirmed").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let publisher = publisher(&proxy, &lab);
    publisher.publish(&message("a", "0")).await.unwrap();
    proxy.swallow(Some(ACK));
    let unbound = [message("a", "1"), message("a", "2")];
    expect_all(&publisher.publish_batch(&unbound).await, Failed, "not confirmed within 1.5s");
    proxy.swallow(None);
    publisher.publish(&message("a", "3")).await.unwrap();
    assert_eq!(lab.drain(&queue, 4).await, ["0", "1", "2", "3"]);
    assert_eq!(proxy.connections(), 1);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_blocked_connection_sends_nothing_and_is_not_ready() {
    let mut lab = Lab::new("blocked").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let publisher = publisher(&proxy, &lab);
    publisher.ready().await.unwrap();
    proxy.block();
    let patience = Instant::now() + Duration::from_secs(5);
    while publisher.ready().await.is_ok() {
        assert!(Instant::now() < patience, "never blocked");
    }
    expect_error(&publisher.ready().await, Unavailable, "takes no messages");
    let begin = Instant::now();
    expect_all(&publisher.publish_batch(&messages("a", 3)).await, Unavailable, "takes no messages");
    assert!(begin.elapsed() < SHORT);
    proxy.unblock();
    while publisher.ready().await.is_err() {
        assert!(Instant::now() < patience, "never unblocked");
    }
    publisher.publish(&message("a", "last")).await.unwrap();
    assert_eq!(lab.drain(&queue, 1).await, ["last"]);
    assert_eq!(proxy.connections(), 1);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_blocked_in_mid_batch_charges_nothing_and_recovers() {
    let mut lab = Lab::new("blocked-batch").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let publisher = publisher(&proxy, &lab);
    publisher.ready().await.unwrap();
    proxy.swallow(Some(ACK));
    let batch = messages("a", 100);
    let (results, ()) = tokio::join!(publisher.publish_batch(&batch), async {
        while proxy.swallow_count() == 0 {
            tokio::task::yield_now().await;
        }
        proxy.block();
    });
    expect_all(&results, Unavailable, "may arrive twice");
    expect_error(&publisher.ready().await, Unavailable, "takes no messages");
    assert_eq!(proxy.connections(), 1);
    proxy.swallow(None);
    proxy.unblock();
    let patience = Instant::now() + Duration::from_secs(5);
    while publisher.ready().await.is_err() {
        assert!(Instant::now() < patience, "never unblocked");
    }
    for result in publisher.publish_batch(&batch).await {
        result.unwrap();
    }
    let mut arrived = lab.drain(&queue, 200).await;
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len(), 100);
    lab.end().await;
}

/// The channel is closed while lapin still holds frames for it; RabbitMQ then ends the whole connection.
#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_missing_exchange_harms_nobody_when_it_costs_the_connection() {
    let mut lab = Lab::new("missing-much").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let config = AmqpConfig::new(proxy.uri()).unwrap().with_exchange(&lab.exchange);
    let publisher = AmqpPublisher::new(config.with_route("lost", Route::to(unique("nowhere"))));
    publisher.ready().await.unwrap();
    let mut batch: Vec<Message> =
        (0..400).map(|i| Message::binary("fine", i.to_string(), vec![0; 100_000]).unwrap()).collect();
    batch[0] = message("lost", "0");
    proxy.stall_up_after(10_000);
    let (results, ()) = tokio::join!(publisher.publish_batch(&batch), async {
        proxy.stalled().await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        proxy.resume();
    });
    expect_error(&results[0], Failed, "no exchange");
    for result in &results[1..] {
        assert!(result.is_ok(), "{result:?}");
    }
    let mut arrived = lab.drain(&queue, 399).await;
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len(), 399);
    assert_eq!(proxy.connections(), 2);
    lab.end().await;
}
