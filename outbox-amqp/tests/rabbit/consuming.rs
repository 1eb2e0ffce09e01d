//! What a consumer does with messages: all fields, concurrency, order, retries, dead letters.

use std::time::{Duration, Instant};

use lapin::BasicProperties;
use lapin::options::BasicNackOptions;
use lapin::types::{AMQPValue, FieldTable};
use outbox_amqp::{AmqpConsumerConfig, Order};
use outbox_core::consumer::{Delivery, HandlerError, NoReceipts, handler_fn};
use outbox_core::{Consumer, Message};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::desk::{Desk, GROUP, consume, end, fine, order, publish, quick, until};
use crate::lab::{Lab, header, stored};

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_message_is_handled_as_it_was_enqueued() {
    let mut lab = Lab::new("handled").await;
    let queue = lab.queue("order.created").await;
    let mut row = stored("order.created");
    row.ordering_key = Some("A".into());
    row.headers
        .insert("traceparent".into(), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    row.claim_no = 7;
    let sent = Message::from_stored(row);
    publish(&lab, std::slice::from_ref(&sent)).await;

    let (seen, mut got) = mpsc::unbounded_channel();
    let handler = handler_fn(move |delivery: Delivery<String>| {
        let seen = seen.clone();
        async move {
            let attempt = delivery.attempt();
            seen.send(delivery)?;
            if attempt == 1 { Err(HandlerError::retry("once more")) } else { Ok(()) }
        }
    });
    let consumer = Consumer::new(GROUP, handler, NoReceipts).with_config(quick());
    give_back(&lab, &queue).await;
    let handle = consume(&queue, consumer, AmqpConsumerConfig::default()).await;
    for attempt in 1..=2 {
        let delivery = got.recv().await.unwrap();
        assert_eq!(delivery.message(), &sent);
        assert_eq!((delivery.payload().as_str(), delivery.attempt(), delivery.claim_no()), ("x", attempt, 7));
        assert!(delivery.header("traceparent").is_some());
    }
    end(&lab, &queue, handle).await;
    assert!(got.try_recv().is_err(), "handled twice");
    lab.end().await;
}

/// Has the broker deliver the first message and take it back.
async fn give_back(lab: &Lab, queue: &str) {
    let letter = lab.channel.basic_get(queue.into(), Default::default()).await.unwrap().unwrap();
    letter.nack(BasicNackOptions { requeue: true, multiple: false }).await.unwrap();
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_concurrency_and_prefetch_are_kept() {
    let mut lab = Lab::new("concurrency").await;
    let queue = lab.queue("#").await;
    let messages: Vec<Message> = (0..40).map(|i| order(&i.to_string(), json!({"waits": true}))).collect();
    publish(&lab, &messages).await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_prefetch(10).with_concurrency(4);
    let handle = consume(&queue, desk.consumer(), config).await;
    until("four run", || desk.begun().len() == 4).await;
    assert_eq!(lab.drain(&queue, 30).await.len(), 30, "ten are with the consumer");
    assert_eq!(desk.begun().len(), 4);
    desk.gate.add_permits(10);
    until("ten are handled", || desk.handled().len() == 10).await;
    assert_eq!(desk.peak(), 4);
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_failure_comes_again_later_and_then_goes_to_the_dead_letters() {
    let mut lab = Lab::new("retries").await;
    let queue = lab.queue("#").await;
    let desk = Desk::new();
    let handle = consume(&queue, desk.consumer(), AmqpConsumerConfig::default()).await;
    let began = Instant::now();
    publish(&lab, &[order("once", json!({"fails": 1})), order("always", json!({"fails": 9})), fine("never")])
        .await;
    let dead = format!("{queue}.dead");
    until("the third attempt", || desk.begun().len() == 6).await;
    assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(desk.handled(), ["never", "once"]);
    let attempts: Vec<u32> = desk.begun().iter().filter(|(id, _)| id == "always").map(|(_, n)| *n).collect();
    assert_eq!(attempts, [1, 2, 3]);
    end(&lab, &queue, handle).await;

    let letter = lab.get(&dead).await.unwrap();
    let says = |name| header(&letter.properties, name);
    assert_eq!(says("outbox-biz-id"), "always");
    assert!(says("outbox-dead-reason").contains("gave up after 3 attempts: out of stock"));
    assert_eq!((says("outbox-dead-group"), says("outbox-dead-attempts")), ("points".into(), "3".into()));
    assert!(says("outbox-dead-at").starts_with("20"));
    assert_eq!(says("outbox-original-exchange"), lab.exchange);
    assert_eq!(says("outbox-original-routing-key"), "order.created");
    let headers = letter.properties.headers().as_ref().unwrap();
    for gone in ["outbox-attempts", "x-death", "x-first-death-queue"] {
        assert!(!headers.contains_key(gone), "{gone}: {headers:?}");
    }
    assert_eq!(letter.data, br#"{"fails":9}"#);
    assert_eq!(*letter.properties.delivery_mode(), Some(2));
    assert_eq!(letter.properties.content_type().as_ref().unwrap().as_str(), "application/json");
    assert!(letter.properties.expiration().is_none());
    assert!(lab.get(&dead).await.is_none(), "once");
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_rejection_and_panic_hurt_their_own_message_only() {
    let mut lab = Lab::new("rejected").await;
    let queue = lab.queue("#").await;
    let messages = [
        order("panics", json!({"panics": true})),
        order("rejects", json!({"rejects": true})),
        Message::binary("order.created", "unreadable", b"no JSON".to_vec()).unwrap(),
        fine("fine"),
    ];
    publish(&lab, &messages).await;
    let desk = Desk::new();
    let handle = consume(&queue, desk.consumer(), AmqpConsumerConfig::default()).await;
    until("the panic's third attempt", || desk.begun().iter().any(|run| *run == ("panics".into(), 3))).await;
    let mut reasons = Vec::new();
    let dead = format!("{queue}.dead");
    while reasons.len() < 3 {
        let Some(letter) = lab.get(&dead).await else { continue };
        reasons.push((
            header(&letter.properties, "outbox-biz-id"),
            header(&letter.properties, "outbox-dead-reason"),
        ));
    }
    reasons.sort();
    assert!(reasons[0].1.contains("the handler panicked: out of its mind"), "{reasons:?}");
    assert_eq!(reasons[1].1, "no such product");
    assert!(reasons[2].1.contains("the payload is no"), "{reasons:?}");
    assert_eq!(desk.handled(), ["fine"]);
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_message_without_an_id_goes_to_the_dead_letters_with_its_properties() {
    let mut lab = Lab::new("nameless").await;
    let queue = lab.queue("#").await;
    let mut headers = FieldTable::default();
    headers.insert("tenant".into(), AMQPValue::LongString("acme".into()));
    headers.insert("number".into(), AMQPValue::LongInt(7));
    headers.insert("CC".into(), AMQPValue::FieldArray(vec![AMQPValue::LongString("copies".into())].into()));
    let properties = BasicProperties::default()
        .with_headers(headers)
        .with_user_id("guest".into())
        .with_reply_to("somebody".into())
        .with_expiration("600000".into());
    let exchange = lab.exchange.as_str().into();
    lab.channel.basic_publish(exchange, "a.b".into(), Default::default(), b"x", properties).await.unwrap();
    let desk = Desk::new();
    let handle = consume(&queue, desk.consumer(), AmqpConsumerConfig::default()).await;
    let dead = format!("{queue}.dead");
    let letter = loop {
        if let Some(letter) = lab.get(&dead).await {
            break letter;
        }
    };
    assert_eq!(letter.data, b"x");
    assert!(header(&letter.properties, "outbox-dead-reason").contains("has no id"));
    assert_eq!(header(&letter.properties, "tenant"), "acme");
    assert_eq!(header(&letter.properties, "outbox-original-routing-key"), "a.b");
    let headers = letter.properties.headers().as_ref().unwrap().inner();
    assert_eq!(headers["number"], AMQPValue::LongInt(7));
    assert!(!headers.contains_key("CC"), "it would be routed by it");
    assert_eq!(letter.properties.reply_to().as_ref().unwrap().as_str(), "somebody");
    assert!(letter.properties.user_id().is_none() && letter.properties.expiration().is_none());
    end(&lab, &queue, handle).await;
    assert!(desk.begun().is_empty());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_unreadable_message_that_cannot_be_put_aside_takes_no_handlers_place() {
    let mut lab = Lab::new("unreadable").await;
    let queue = lab.queue("#").await;
    let dead = lab.companion(&format!("{queue}.dead")).await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_concurrency(1).without_declaring();
    let handle = consume(&queue, desk.consumer(), config).await;
    lab.channel.queue_delete(dead.as_str().into(), Default::default()).await.unwrap();
    let (exchange, nameless) = (lab.exchange.as_str(), BasicProperties::default());
    lab.channel.basic_publish(exchange.into(), "a".into(), Default::default(), b"x", nameless).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    publish(&lab, &[fine("0"), fine("1")]).await;
    until("the others are handled", || desk.handled() == ["0", "1"]).await;
    lab.companion(&dead).await;
    let letter = loop {
        if let Some(letter) = lab.get(&dead).await {
            break letter;
        }
    };
    assert_eq!(letter.data, b"x");
    end(&lab, &queue, handle).await;
    lab.end().await;
}

fn keyed(key: &str, biz_id: &str, act: Value) -> Message {
    order(biz_id, act).with_ordering_key(key).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_order_within_a_key_holds_over_failures_and_other_keys_go_on() {
    let mut lab = Lab::new("ordered").await;
    let queue = lab.queue("#").await;
    let mut messages = Vec::new();
    for i in 0..10 {
        let act = if i == 3 { json!({"fails": 2}) } else { json!({"takes": 5}) };
        messages.push(keyed("a", &format!("a{i}"), act));
        messages.push(keyed("b", &format!("b{i}"), json!({"takes": 2})));
    }
    publish(&lab, &messages).await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_order(Order::ByOrderingKey);
    let handle = consume(&queue, desk.consumer(), config).await;
    until("all are handled", || desk.handled().len() == 20).await;
    let handled = desk.handled();
    for key in ["a", "b"] {
        let of_key: Vec<&String> = handled.iter().filter(|id| id.starts_with(key)).collect();
        let expected: Vec<String> = (0..10).map(|i| format!("{key}{i}")).collect();
        assert_eq!(of_key, expected.iter().collect::<Vec<_>>());
    }
    let place = |id: &str| handled.iter().position(|other| other == id).unwrap();
    assert!(place("b9") < place("a3"), "b did not wait for a: {handled:?}");
    let attempts: Vec<u32> = desk.begun().iter().filter(|(id, _)| id == "a3").map(|(_, n)| *n).collect();
    assert_eq!(attempts, [1, 2, 3]);
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_order_by_biz_id_where_there_is_no_key() {
    let mut lab = Lab::new("ordered-biz").await;
    let queue = lab.queue("#").await;
    let first = order("A-1", json!({"waits": true}));
    publish(&lab, &[first, fine("A-1"), fine("A-2")]).await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_order(Order::ByOrderingKeyOrBizId);
    let handle = consume(&queue, desk.consumer(), config).await;
    until("the other is handled", || desk.handled() == ["A-2"]).await;
    assert_eq!(desk.begun_ids(), ["A-1", "A-2"]);
    desk.gate.add_permits(1);
    until("all are handled", || desk.handled().len() == 3).await;
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_poison_delays_nobody_else() {
    poison_delays_nobody_else(Order::None).await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_poison_without_a_key_delays_nobody_else_in_order_either() {
    poison_delays_nobody_else(Order::ByOrderingKey).await;
}

async fn poison_delays_nobody_else(order_by: Order) {
    let mut lab = Lab::new("poison").await;
    let queue = lab.queue("#").await;
    let poison = (0..5).map(|i| order(&format!("bad{i}"), json!({"fails": 9, "delay": 60_000})));
    let messages: Vec<Message> = poison.chain((0..50).map(|i| fine(&i.to_string()))).collect();
    publish(&lab, &messages).await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_prefetch(2).with_concurrency(2).with_order(order_by);
    let handle = consume(&queue, desk.consumer(), config).await;
    until("all others are handled", || desk.handled().len() == 50).await;
    assert_eq!(desk.begun().len(), 55);
    end(&lab, &queue, handle).await;
    let waiting = lab.drain(&format!("{queue}.retry.64000"), 5).await;
    assert_eq!(waiting.len(), 5);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_delays_are_kept_and_a_short_one_does_not_wait_behind_a_long_one() {
    let mut lab = Lab::new("delays").await;
    let queue = lab.queue("#").await;
    let messages = [
        order("long", json!({"fails": 1, "delay": 2_500})),
        order("short", json!({"fails": 1, "delay": 1_000})),
    ];
    publish(&lab, &messages).await;
    let desk = Desk::new();
    let began = Instant::now();
    let handle = consume(&queue, desk.consumer().with_config(quick()), AmqpConsumerConfig::default()).await;
    until("the short one", || !desk.handled().is_empty()).await;
    assert!(began.elapsed() < Duration::from_millis(2_400), "{:?}", began.elapsed());
    until("the long one", || desk.handled() == ["short", "long"]).await;
    let took = began.elapsed();
    assert!(
        (2_500..3_950).contains(&took.as_millis()),
        "{took:?}: not before its delay, and not when its queue says"
    );
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_headers_that_just_fit_do_not_keep_a_message_from_the_dead_letters() {
    let mut lab = Lab::new("headers").await;
    let queue = lab.queue("#").await;
    let mut row = stored("order.created");
    row.payload = outbox_core::Payload::json(&json!({"rejects": true})).unwrap();
    row.headers.insert("tenant".into(), "acme".into());
    row.headers.insert("long".into(), "x".repeat(129_000));
    publish(&lab, &[Message::from_stored(row)]).await;
    let desk = Desk::new();
    let handle = consume(&queue, desk.consumer(), AmqpConsumerConfig::default()).await;
    let dead = format!("{queue}.dead");
    let letter = loop {
        if let Some(letter) = lab.get(&dead).await {
            break letter;
        }
    };
    assert_eq!(header(&letter.properties, "tenant"), "acme");
    assert_eq!(header(&letter.properties, "outbox-dead-reason"), "no such product");
    assert!(!letter.properties.headers().as_ref().unwrap().contains_key("long"));
    end(&lab, &queue, handle).await;
    lab.end().await;
}
