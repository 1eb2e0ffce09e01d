//! Logging in, several hosts, the topology, closing.

use std::time::Duration;

use lapin::options::{ExchangeDeclareOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use outbox_amqp::{AmqpConfig, AmqpPublisher, Exchange, Queue, Route, Topology};
use outbox_core::PublishErrorKind::{Failed, Unavailable};
use outbox_core::Publisher;

use crate::lab::{Lab, expect_error, message, messages, unique, uri};
use crate::proxy::Proxy;

fn to(change: impl FnOnce(&mut lapin::uri::AMQPUri)) -> AmqpPublisher {
    let mut uri: lapin::uri::AMQPUri = uri().parse().unwrap();
    change(&mut uri);
    AmqpPublisher::new(AmqpConfig::new(uri.to_string()).unwrap())
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_wrong_password_is_unavailable_and_not_shown() {
    let publisher = to(|uri| uri.authority.userinfo.password = "s3cret".into());
    let error = publisher.ready().await;
    expect_error(&error, Unavailable, "check user name and password");
    let shown = format!("{:?} {publisher:?}", error.unwrap_err());
    assert!(!shown.contains("s3cret"), "{shown}");
    expect_error(&publisher.publish(&message("a", "0")).await, Unavailable, "was not let in");
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_unknown_vhost_is_unavailable_with_a_hint() {
    let publisher = to(|uri| uri.vhost = "no-such-vhost".into());
    expect_error(&publisher.ready().await, Unavailable, "vhost \"no-such-vhost\" cannot be opened");
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_unknown_host_is_unavailable() {
    let publisher = to(|uri| uri.authority.host = "no-such-host.invalid".into());
    expect_error(
        &publisher.ready().await,
        Unavailable,
        "cannot connect to amqp://guest@no-such-host.invalid",
    );
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_hosts_are_tried_in_turn() {
    let mut lab = Lab::new("hosts").await;
    lab.queue("#").await;
    let (mut first, mut second) = (Proxy::start().await, Proxy::start().await);
    first.refuse().await;
    let config = AmqpConfig::new(first.uri()).unwrap().with_host(second.uri()).unwrap();
    let publisher = AmqpPublisher::new(config.with_exchange(&lab.exchange));
    publisher.publish(&message("a", "0")).await.unwrap();

    second.refuse().await;
    while publisher.publish(&message("a", "1")).await.is_ok() {}
    let error = publisher.ready().await;
    for proxy in [&first, &second] {
        expect_error(&error, Unavailable, &proxy.address().port().to_string());
    }
    first.accept().await;
    publisher.publish(&message("a", "2")).await.unwrap();
    assert_eq!((first.connections(), second.connections()), (1, 1));
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_silent_host_is_passed_over() {
    let mut lab = Lab::new("silent-host").await;
    lab.queue("#").await;
    let silent = Proxy::start().await;
    silent.stall();
    let config = AmqpConfig::new(silent.uri()).unwrap().with_host(uri()).unwrap();
    let publisher = AmqpPublisher::new(
        config.with_exchange(&lab.exchange).with_connect_timeout(Duration::from_millis(300)),
    );
    publisher.publish(&message("a", "0")).await.unwrap();
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_topology_is_declared_at_each_connection() {
    let lab = Lab::new("topology").await;
    let (events, all, dead) = (unique("events"), unique("all"), unique("dead"));
    let (orders, buried) = (unique("orders"), unique("buried"));
    let topology = Topology::default()
        .with_exchange(Exchange::topic(&events))
        .with_exchange(Exchange::fanout(&all).with_alternate(&dead))
        .with_exchange(Exchange::direct(&dead))
        .with_queue(
            Queue::from(orders.as_str()).with_dead_letter_exchange(&dead).with_argument("x-max-length", 5),
        )
        .with_queue(Queue::classic(&buried))
        .with_exchange_binding(&all, "", &events)
        .with_binding(&events, "order.*", &orders)
        .with_binding(&dead, "order.created", &buried);
    let proxy = Proxy::start().await;
    let config = AmqpConfig::new(proxy.uri()).unwrap().with_exchange(&all).with_topology(topology.clone());
    let publisher = AmqpPublisher::new(config);
    for result in publisher.publish_batch(&messages("order.created", 6)).await {
        result.unwrap();
    }
    assert_eq!(lab.drain(&buried, 1).await, ["0"], "the sixth pushes the first into the dead letters");
    assert_eq!(lab.drain(&orders, 5).await, ["1", "2", "3", "4", "5"]);

    lab.channel.queue_delete(orders.as_str().into(), Default::default()).await.unwrap();
    expect_error(&publisher.publish(&message("order.created", "7")).await, Failed, "NO_ROUTE");
    proxy.cut();
    while publisher.publish(&message("order.created", "8")).await.is_err() {}
    assert_eq!(lab.drain(&orders, 1).await, ["8"]);

    let differs = topology.with_queue(Queue::classic(&orders));
    let refused = AmqpPublisher::new(AmqpConfig::new(uri()).unwrap().with_topology(differs));
    expect_error(&refused.ready().await, Unavailable, "the topology cannot be declared");
    expect_error(&refused.publish(&message("a", "0")).await, Unavailable, "PRECONDITION_FAILED");

    for queue in [orders, buried] {
        lab.channel.queue_delete(queue.as_str().into(), Default::default()).await.unwrap();
    }
    for exchange in [events, all, dead] {
        lab.channel.exchange_delete(exchange.as_str().into(), Default::default()).await.unwrap();
    }
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_refused_access_fails_only_its_own_messages() {
    let mut lab = Lab::new("access").await;
    let queue = lab.queue("#").await;
    let internal = unique("internal");
    let options = ExchangeDeclareOptions { internal: true, ..Default::default() };
    let declaring = lab.channel.exchange_declare(
        internal.as_str().into(),
        Default::default(),
        options,
        FieldTable::default(),
    );
    declaring.await.unwrap();
    let publisher = AmqpPublisher::new(lab.config().with_route("inner", Route::to(&internal)));
    let mut batch = messages("fine", 50);
    batch[20] = message("inner", "20");
    for (i, result) in publisher.publish_batch(&batch).await.iter().enumerate() {
        match i {
            20 => expect_error(result, Failed, "cannot publish to internal exchange"),
            _ => assert!(result.is_ok(), "{i}: {result:?}"),
        }
    }
    let mut arrived = lab.drain(&queue, 49).await;
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len(), 49);
    lab.channel.exchange_delete(internal.as_str().into(), Default::default()).await.unwrap();
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_connection_is_named_and_closed_in_good_order() {
    let mut lab = Lab::new("closing").await;
    lab.queue("#").await;
    let proxy = Proxy::start().await;
    let config = AmqpConfig::new(proxy.uri()).unwrap().with_exchange(&lab.exchange);
    let publisher = AmqpPublisher::new(config);
    publisher.close().await.unwrap();
    assert_eq!(proxy.connections(), 0);
    publisher.publish(&message("a", "0")).await.unwrap();
    publisher.close().await.unwrap();
    publisher.close().await.unwrap();
    publisher.publish(&message("a", "1")).await.unwrap();
    assert_eq!(proxy.connections(), 2);
    proxy.stall();
    expect_error(&publisher.close().await, Unavailable, "did not answer");
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_dropped_call_leaves_the_publisher_in_order() {
    let mut lab = Lab::new("dropped").await;
    let queue = lab.queue("bound").await;
    let publisher = lab.publisher();
    publisher.ready().await.unwrap();
    for round in 0..20 {
        let batch = messages("unbound", 200);
        let limit = Duration::from_micros(500 * round);
        let _ = tokio::time::timeout(limit, publisher.publish_batch(&batch)).await;
        publisher.publish(&message("bound", &round.to_string())).await.unwrap();
        expect_error(&publisher.publish(&message("unbound", "x")).await, Failed, "NO_ROUTE");
    }
    assert_eq!(lab.drain(&queue, 20).await.len(), 20);
    lab.channel
        .queue_declare(
            queue.as_str().into(),
            QueueDeclareOptions { passive: true, ..Default::default() },
            FieldTable::default(),
        )
        .await
        .unwrap();
    lab.end().await;
}
