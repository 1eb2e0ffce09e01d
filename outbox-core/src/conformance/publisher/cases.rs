use std::time::{Duration, Instant};

use super::{PublisherFixture, Received};
use crate::clock::Timestamp;
use crate::message::{Message, StoredMessage};
use crate::publisher::{PublishError, PublishErrorKind, Publisher};
use crate::wire;

/// As the relay hands it over: read back from a store, under a claim.
fn stored(message: Message) -> Message {
    Message::from_stored(StoredMessage {
        msg_id: message.msg_id().to_owned(),
        biz_type: message.biz_type().to_owned(),
        biz_id: message.biz_id().to_owned(),
        payload: message.payload().clone(),
        content_type: message.explicit_content_type().map(str::to_owned),
        headers: message.headers().clone(),
        ordering_key: message.ordering_key().map(str::to_owned),
        created_at: Timestamp::from_timestamp_micros(1_901_149_199_999_999).unwrap(),
        claim_no: 7,
    })
}

fn json<F: PublisherFixture>(fixture: &F) -> Message {
    stored(Message::json(fixture.biz_type(), "A-1", &serde_json::json!({"amount": 990})).unwrap())
}

fn jsons<F: PublisherFixture>(fixture: &F, count: usize) -> Vec<Message> {
    (0..count).map(|_| json(fixture)).collect()
}

fn binary<F: PublisherFixture>(fixture: &F, bytes: usize) -> Message {
    let payload: Vec<u8> = (0..=255).cycle().take(bytes).collect();
    stored(Message::binary(fixture.biz_type(), "A-1", payload).unwrap())
}

fn assert_same(received: &Received, sent: &Message) {
    assert!(received.payload == sent.payload().as_bytes(), "the payload of {} differs", sent.msg_id());
    assert_eq!(received.content_type, sent.content_type());
    for (name, value) in wire::headers(sent) {
        assert_eq!(received.headers.get(name), Some(&value), "header {name}");
    }
}

fn msg_id(received: &Received) -> String {
    received.headers.get(wire::MSG_ID).expect("every message carries its id").clone()
}

async fn receive_ids<F: PublisherFixture>(fixture: &F, count: usize) -> Vec<String> {
    let mut received = Vec::new();
    while received.len() < count {
        received.push(msg_id(&fixture.receive().await.expect("a confirmed message is received")));
    }
    assert_eq!(fixture.receive().await, None, "nothing else is received");
    received.sort_unstable();
    received
}

fn sorted_ids<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Vec<String> {
    let mut ids: Vec<String> = messages.into_iter().map(|message| message.msg_id().to_owned()).collect();
    ids.sort_unstable();
    ids
}

fn kinds(answers: Vec<Result<(), PublishError>>) -> Vec<Option<PublishErrorKind>> {
    answers.into_iter().map(|answer| answer.err().map(|error| error.kind())).collect()
}

async fn arrives<F: PublisherFixture>(fixture: &F, message: &Message) {
    fixture.publisher().publish(message).await.expect("the broker takes it");
    assert_same(&fixture.receive().await.expect("a confirmed message is received"), message);
}

pub async fn confirmed_is_received_once_with_all_fields<F: PublisherFixture>(fixture: &F) {
    let message = Message::json(fixture.biz_type(), "A-1", &serde_json::json!({"amount": 990}))
        .and_then(|message| message.with_content_type("application/vnd.acme+json"))
        .and_then(|message| message.with_ordering_key("A-1"))
        .and_then(|message| message.with_header("tenant", "acme"))
        .and_then(|message| message.with_header("region", "eu"))
        .unwrap();
    fixture.publisher().ready().await.expect("the broker is there");
    arrives(fixture, &stored(message)).await;
    assert_eq!(fixture.receive().await, None, "it is received once");
}

pub async fn unicode_and_odd_texts_arrive<F: PublisherFixture>(fixture: &F) {
    let message = Message::json(fixture.biz_type(), "заказ № 1 🦀", &"Grüße, 世界 🦀 \" \\ \n")
        .and_then(|message| message.with_msg_id("ид-1'"))
        .and_then(|message| message.with_ordering_key("ключ"))
        .and_then(|message| message.with_header("имя", "Ärzte \" ' \\ \n\t{}"))
        .and_then(|message| message.with_header("empty", ""))
        .unwrap();
    arrives(fixture, &stored(message)).await;
}

pub async fn empty_payload_arrives<F: PublisherFixture>(fixture: &F) {
    arrives(fixture, &binary(fixture, 0)).await;
}

pub async fn big_payload_arrives<F: PublisherFixture>(fixture: &F) {
    let bytes = fixture.too_large().map_or(512 * 1024, |limit| (limit / 2).min(512 * 1024));
    arrives(fixture, &binary(fixture, bytes)).await;
}

pub async fn empty_batch_is_answered<F: PublisherFixture>(fixture: &F) {
    assert_eq!(kinds(fixture.publisher().publish_batch(&[]).await), []);
}

pub async fn batch_is_answered_in_order_and_received<F: PublisherFixture>(fixture: &F) {
    let mut messages = jsons(fixture, 10);
    let mut expected = vec![None; messages.len()];
    if let Some(nowhere) = fixture.unroutable() {
        for index in [0, 4, 9] {
            messages[index] = stored(Message::json(nowhere.as_str(), "A-1", &1).unwrap());
            expected[index] = Some(PublishErrorKind::Failed);
        }
    }
    assert_eq!(kinds(fixture.publisher().publish_batch(&messages).await), expected);
    let good: Vec<&Message> = messages.iter().filter(|m| m.biz_type() == fixture.biz_type()).collect();
    assert_eq!(receive_ids(fixture, good.len()).await, sorted_ids(good));
}

pub async fn large_batch_is_received_whole<F: PublisherFixture>(fixture: &F) {
    let messages = jsons(fixture, 1_000);
    let answers = kinds(fixture.publisher().publish_batch(&messages).await);
    assert_eq!(answers, vec![None; messages.len()]);
    assert_eq!(receive_ids(fixture, messages.len()).await, sorted_ids(&messages));
}

pub async fn concurrent_publishes_are_received_once_each<F: PublisherFixture>(fixture: &F) {
    let messages = jsons(fixture, 100);
    let publish = |message: Message| {
        let publisher = fixture.publisher();
        tokio::spawn(async move { publisher.publish(&message).await })
    };
    let publishing: Vec<_> = messages.iter().cloned().map(publish).collect();
    for answer in publishing {
        answer.await.unwrap().expect("the broker takes it");
    }
    assert_eq!(receive_ids(fixture, messages.len()).await, sorted_ids(&messages));
}

pub async fn unroutable_is_failed<F: PublisherFixture>(fixture: &F) {
    let Some(nowhere) = fixture.unroutable() else { return };
    let message = stored(Message::json(nowhere, "A-1", &1).unwrap());
    let error = fixture.publisher().publish(&message).await.expect_err("it leads nowhere");
    assert_eq!(error.kind(), PublishErrorKind::Failed, "{error}");
    arrives(fixture, &json(fixture)).await;
}

pub async fn too_large_is_rejected<F: PublisherFixture>(fixture: &F) {
    let Some(bytes) = fixture.too_large() else { return };
    let error = fixture.publisher().publish(&binary(fixture, bytes)).await.expect_err("it is too large");
    assert_eq!(error.kind(), PublishErrorKind::Rejected, "{error}");
    arrives(fixture, &json(fixture)).await;
}

/// A batch-mate may come back as unavailable, which charges it nothing, but never as failed or rejected,
/// and what is confirmed is received.
pub async fn bad_messages_harm_no_batch_mate<F: PublisherFixture>(fixture: &F) {
    let mut messages = jsons(fixture, 30);
    if let Some(nowhere) = fixture.unroutable() {
        messages.insert(10, stored(Message::json(nowhere, "A-1", &1).unwrap()));
    }
    if let Some(bytes) = fixture.too_large() {
        messages.insert(20, binary(fixture, bytes));
    }
    let is_good =
        |m: &Message| m.biz_type() == fixture.biz_type() && fixture.too_large() != Some(m.payload().len());
    let answers = kinds(fixture.publisher().publish_batch(&messages).await);
    assert_eq!(answers.len(), messages.len());
    let mut confirmed = Vec::new();
    for (message, answer) in messages.iter().zip(answers) {
        match answer {
            None => confirmed.push(message.msg_id().to_owned()),
            Some(PublishErrorKind::Unavailable) => {}
            Some(kind) => assert!(!is_good(message), "a good message is {kind:?}"),
        }
    }
    let mut received = Vec::new();
    while let Some(message) = fixture.receive().await {
        received.push(msg_id(&message));
    }
    assert!(confirmed.iter().all(|id| received.contains(id)), "what is confirmed is received");
    assert!(messages.iter().filter(|m| !is_good(m)).all(|m| !confirmed.contains(&m.msg_id().to_owned())));
}

pub async fn gone_broker_is_unavailable_and_comes_back<F: PublisherFixture>(fixture: &F) {
    let publisher = fixture.publisher();
    arrives(fixture, &json(fixture)).await;
    if !fixture.go_away().await {
        return;
    }
    // The first call may only find the connection gone while the message is under way.
    let error = publisher.publish(&json(fixture)).await.expect_err("the broker is away");
    assert_ne!(error.kind(), PublishErrorKind::Rejected, "{error}");
    let answers = kinds(publisher.publish_batch(&jsons(fixture, 3)).await);
    assert_eq!(answers, [Some(PublishErrorKind::Unavailable); 3]);
    assert_eq!(publisher.ready().await.unwrap_err().kind(), PublishErrorKind::Unavailable);
    fixture.come_back().await;
    let since = Instant::now();
    while let Err(error) = publisher.ready().await {
        assert!(since.elapsed() < Duration::from_secs(60), "it does not come back: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let message = json(fixture);
    publisher.publish(&message).await.expect("the broker is back");
    // What was under way when the broker went may have been stored.
    while msg_id(&fixture.receive().await.expect("it is received")) != message.msg_id() {}
}

pub async fn everything_confirmed_before_close_is_received<F: PublisherFixture>(fixture: &F) {
    let messages = jsons(fixture, 50);
    let answers = kinds(fixture.publisher().publish_batch(&messages).await);
    assert_eq!(answers, vec![None; messages.len()]);
    fixture.publisher().close().await.expect("it closes in good order");
    assert_eq!(receive_ids(fixture, messages.len()).await, sorted_ids(&messages));
}
