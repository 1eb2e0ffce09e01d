//! What arrives, and what an unroutable, refused or unencodable message does to its batch-mates: nothing.

use std::sync::Arc;

use lapin::types::AMQPValue;
use outbox_amqp::{AmqpConfig, AmqpPublisher, Route};
use outbox_core::PublishErrorKind::{Failed, Rejected};
use outbox_core::{Message, Publisher};

use crate::lab::{Lab, expect_error, header, message, messages, size_limit, stored, unique, uri};

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_gets_every_property_of_a_message() {
    let mut lab = Lab::new("properties").await;
    let queue = lab.queue("order.created").await;
    let mut row = stored("order.created");
    row.ordering_key = Some("A".into());
    row.headers.insert("tenant".into(), "acmé".into());
    row.claim_no = 7;
    let sent = Message::from_stored(row);
    lab.publisher().publish(&sent).await.unwrap();

    let got = lab.get(&queue).await.unwrap();
    let properties = &got.properties;
    assert_eq!(got.data, b"\"x\"");
    assert_eq!(*properties.delivery_mode(), Some(2));
    assert_eq!(properties.message_id().as_ref().unwrap().as_str(), sent.msg_id());
    assert_eq!(properties.kind().as_ref().unwrap().as_str(), "order.created");
    assert_eq!(properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert_eq!(*properties.timestamp(), Some(1_770_091_506));
    assert_eq!(header(properties, "tenant"), "acmé");
    assert_eq!(header(properties, "outbox-msg-id"), sent.msg_id());
    assert_eq!(header(properties, "outbox-biz-type"), "order.created");
    assert_eq!(header(properties, "outbox-biz-id"), "A-1");
    assert_eq!(header(properties, "outbox-claim-no"), "7");
    assert_eq!(header(properties, "outbox-ordering-key"), "A");
    assert_eq!(header(properties, "outbox-created-at"), "2026-02-03T04:05:06.789012Z");
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_keeps_the_order_of_a_batch() {
    let mut lab = Lab::new("order").await;
    let queue = lab.queue("#").await;
    let publisher = lab.publisher();
    for result in publisher.publish_batch(&messages("a", 2_000)).await {
        result.unwrap();
    }
    let expected: Vec<String> = (0..2_000).map(|i| i.to_string()).collect();
    assert_eq!(lab.drain(&queue, 2_000).await, expected);
    assert!(publisher.publish_batch(&[]).await.is_empty());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_returns_only_the_unroutable() {
    let mut lab = Lab::new("returned").await;
    let queue = lab.queue("bound.#").await;
    let batch: Vec<Message> =
        (0..300).map(|i| message(if i % 3 == 0 { "unbound" } else { "bound.x" }, &i.to_string())).collect();
    let publisher = lab.publisher();
    for (i, result) in publisher.publish_batch(&batch).await.iter().enumerate() {
        match i % 3 {
            0 => expect_error(
                result,
                Failed,
                &format!("exchange {:?} with routing key \"unbound\"", lab.exchange),
            ),
            _ => assert!(result.is_ok(), "{i}: {result:?}"),
        }
    }
    assert_eq!(lab.drain(&queue, 200).await.len(), 200);

    lab.bind(&queue, "unbound").await;
    publisher.publish(&batch[0]).await.unwrap();
    assert_eq!(lab.drain(&queue, 1).await, ["0"]);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_nack_is_a_failed_attempt() {
    let mut lab = Lab::new("nack").await;
    let arguments = [
        ("x-max-length", AMQPValue::LongInt(1)),
        ("x-overflow", AMQPValue::LongString("reject-publish".into())),
    ];
    let full = lab.queue_with("full", "classic", &arguments).await;
    lab.queue("open").await;
    let publisher = lab.publisher();
    let batch = [message("full", "0"), message("open", "1"), message("full", "2"), message("full", "3")];
    let results = publisher.publish_batch(&batch).await;
    assert!(results[0].is_ok() && results[1].is_ok(), "{results:?}");
    expect_error(&results[2], Failed, "nack");
    expect_error(&results[3], Failed, "nack");
    assert_eq!(lab.drain(&full, 1).await, ["0"]);
    publisher.publish(&batch[2]).await.unwrap();
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_missing_exchange_fails_only_its_own_messages() {
    let mut lab = Lab::new("missing").await;
    let queue = lab.queue("#").await;
    let (nowhere, late) = (unique("nowhere"), unique("late"));
    let config = lab.config().with_route("lost.#", Route::to(&nowhere)).with_route("late", Route::to(&late));
    let publisher = AmqpPublisher::new(config);
    let batch: Vec<Message> = (0..400)
        .map(|i| match i % 100 {
            3 | 50 => message("lost.a", &i.to_string()),
            77 => message("late", &i.to_string()),
            _ => message("fine", &i.to_string()),
        })
        .collect();
    for (i, result) in publisher.publish_batch(&batch).await.iter().enumerate() {
        match i % 100 {
            3 | 50 => expect_error(result, Failed, &format!("no exchange '{nowhere}'")),
            77 => expect_error(result, Failed, &format!("no exchange '{late}'")),
            _ => assert!(result.is_ok(), "{i}: {result:?}"),
        }
    }
    let mut arrived = lab.drain(&queue, 388).await;
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len(), 388);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_finds_a_culprit_that_the_broker_does_not_name() {
    let mut lab = Lab::new("culprit").await;
    let queue = lab.queue("#").await;
    let mut batch = messages("fine", 500);
    for bad in [7, 300] {
        batch[bad] = message("fine", &bad.to_string()).with_header("CC", "not an array").unwrap();
    }
    for (i, result) in lab.publisher().publish_batch(&batch).await.iter().enumerate() {
        match i {
            7 | 300 => expect_error(result, Rejected, "PRECONDITION_FAILED"),
            _ => assert!(result.is_ok(), "{i}: {result:?}"),
        }
    }
    let mut arrived = lab.drain(&queue, 498).await;
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len(), 498);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_oversize_is_rejected_at_once_with_the_brokers_reason() {
    let mut lab = Lab::new("oversize").await;
    let queue = lab.queue("#").await;
    let limit = size_limit();
    let mut batch = messages("fine", 20);
    batch[10] = Message::binary("fine", "10", vec![0; limit + 1]).unwrap();
    let results = lab.publisher().publish_batch(&batch).await;
    for (i, result) in results.iter().enumerate() {
        match i {
            10 => expect_error(result, Rejected, &format!("message size {} is larger", limit + 1)),
            _ => assert!(result.is_ok(), "{i}: {result:?}"),
        }
    }
    let mut arrived = lab.drain(&queue, 19).await;
    arrived.sort();
    arrived.dedup();
    assert_eq!(arrived.len(), 19);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_never_sees_what_amqp_cannot_encode() {
    let mut lab = Lab::new("encode").await;
    let queue = lab.queue("#").await;
    let mut long_header = stored("fine");
    long_header.headers.insert("h".repeat(256), "x".into());
    let mut huge_headers = stored("fine");
    huge_headers.headers.insert("h".into(), "x".repeat(200_000));
    let batch = [
        message("fine", "0"),
        Message::from_stored(stored(&"k".repeat(256))),
        Message::from_stored(long_header),
        Message::from_stored(huge_headers),
        message("fine", "4"),
    ];
    let results = lab.publisher().publish_batch(&batch).await;
    expect_error(&results[1], Rejected, "biz_type has 256 bytes");
    expect_error(&results[2], Rejected, "header name has 256 bytes");
    expect_error(&results[3], Rejected, "frames end at 131072");
    assert!(results[0].is_ok() && results[4].is_ok(), "{results:?}");
    assert_eq!(lab.drain(&queue, 2).await, ["0", "4"]);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_default_exchange_takes_the_biz_type_for_a_queue() {
    let mut lab = Lab::new("default").await;
    let queue = lab.queue("#").await;
    let publisher = AmqpPublisher::new(AmqpConfig::new(uri()).unwrap());
    publisher.publish(&message(&queue, "0")).await.unwrap();
    let lost = publisher.publish(&message(&unique("none"), "1")).await;
    expect_error(&lost, Failed, "NO_ROUTE");
    assert_eq!(lab.drain(&queue, 1).await, ["0"]);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_routes_by_rule_and_by_function() {
    let mut lab = Lab::new("routes").await;
    let (a, b) = (lab.queue("a").await, lab.queue("b").await);
    let rules = lab
        .config()
        .with_route("order.*", Route::to(&lab.exchange).with_routing_key("a"))
        .with_route("#", Route::to(&lab.exchange).with_routing_key("b"));
    let publisher = AmqpPublisher::new(rules);
    publisher.publish(&message("order.created", "0")).await.unwrap();
    publisher.publish(&message("order", "1")).await.unwrap();
    let exchange = lab.exchange.clone();
    let by_function = AmqpPublisher::new(
        lab.config().with_router(move |m| Route::to(&exchange).with_routing_key(m.biz_id())),
    );
    by_function.publish(&message("order.created", "b")).await.unwrap();
    assert_eq!(lab.drain(&a, 1).await, ["0"]);
    assert_eq!(lab.drain(&b, 2).await, ["1", "b"]);
    lab.end().await;
}

/// Batches of one and of many, whose confirmations come together.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_concurrent_calls_do_not_mix_up_their_returns() {
    let mut lab = Lab::new("concurrent").await;
    let queue = lab.queue("bound").await;
    let publisher = Arc::new(lab.publisher());
    let calls: Vec<_> = (0..400)
        .map(|call| {
            let publisher = publisher.clone();
            let size = if call % 2 == 0 { 1 } else { 50 };
            let key = |i: usize| if (call / 2 + i).is_multiple_of(2) { "bound" } else { "unbound" };
            let batch: Vec<Message> = (0..size).map(|i| message(key(i), "1")).collect();
            tokio::spawn(async move { (publisher.publish_batch(&batch).await, batch) })
        })
        .collect();
    let mut bound = 0;
    for call in calls {
        let (results, batch) = call.await.unwrap();
        for (result, message) in results.iter().zip(&batch) {
            match message.biz_type() {
                "bound" => assert!(result.is_ok(), "{result:?}"),
                _ => expect_error(result, Failed, "NO_ROUTE"),
            }
            bound += usize::from(result.is_ok());
        }
    }
    assert_eq!(lab.drain(&queue, bound).await.len(), 5_100);
    lab.end().await;
}
