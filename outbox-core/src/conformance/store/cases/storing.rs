//! What comes back is what was written.

use serde_json::{Value, json};

use super::super::StoreFixture;
use super::super::scene::{MAX_PAYLOAD, Scene, ids, mail};
use crate::message::{Limits, Message};
use crate::payload::Payload;
use crate::store::{Filter, OutboxStore, Row};

pub async fn fields_round_trip<F: StoreFixture>(scene: &Scene<F>) {
    let json = json!({
        "text": "Grüße, 世界 🦀 \" \\ \u{7f} \n", "none": null, "yes": true,
        "numbers": [0, -1, 0.25, i64::MAX, i64::MIN], "deep": {"": [[], {}]},
    });
    let bytes: Vec<u8> = (0..=255).collect();
    let messages = [
        Message::json("mail.welcome", "A-1", &json).unwrap(),
        Message::json("mail.welcome", "A-1", "only a text").unwrap(),
        Message::new("mail.welcome", "A-1", Payload::json_text(" null ").unwrap()).unwrap(),
        Message::binary("mail.welcome", "A-1", bytes).unwrap(),
        Message::binary("mail.welcome", "A-1", Vec::new()).unwrap(),
        Message::json("Почта.🦀", "заказ № 1 ' \" \\ %_", &1).unwrap().with_msg_id("ид-1'").unwrap(),
        mail().with_content_type("application/vnd.acme+json; charset=\"utf-8\"").unwrap(),
        mail().with_ordering_key("заказ 1").unwrap(),
        mail().with_header("tenant", "Ärzte \" ' \\ \n\t{}").unwrap().with_header("🦀", "").unwrap(),
    ];
    scene.put(&messages).await;
    let rows = scene.rows().await;
    assert_eq!(ids(rows.iter().map(|row| &row.message)), ids(&messages));
    for (row, message) in rows.iter().zip(&messages) {
        assert_same(&row.message, message, 0);
    }
    let claimed = scene.claim(messages.len()).await;
    assert_eq!(ids(claimed.iter().map(|claimed| &claimed.message)), ids(&messages));
    for (claimed, message) in claimed.iter().zip(&messages) {
        assert_same(&claimed.message, message, 1);
        assert_eq!(claimed.message.created_at(), Some(scene.now()));
    }
}

fn assert_same(stored: &Message, sent: &Message, claim_no: u64) {
    let named = |m: &Message| [m.biz_type(), m.biz_id(), m.content_type()].map(str::to_owned);
    assert_eq!(named(stored), named(sent));
    assert_eq!(stored.headers(), sent.headers());
    assert_eq!(stored.ordering_key(), sent.ordering_key());
    assert_eq!(stored.claim_no(), claim_no);
    assert_same_payload(stored.payload(), sent.payload());
}

/// JSON columns may change spaces and the order of fields; bytes stay as they are.
pub(super) fn assert_same_payload(stored: &Payload, sent: &Payload) {
    match (stored, sent) {
        (Payload::Json(_), Payload::Json(_)) => {
            assert_eq!(stored.decode::<Value>().unwrap(), sent.decode::<Value>().unwrap());
        }
        _ => assert!(stored == sent, "{stored:?} is not {sent:?}"),
    }
}

pub async fn longest_fields_are_taken<F: StoreFixture>(scene: &Scene<F>) {
    let full = |bytes: usize| "x".repeat(bytes);
    let message = Message::binary(full(Limits::BIZ_TYPE), full(Limits::BIZ_ID), vec![7; MAX_PAYLOAD])
        .and_then(|message| message.with_msg_id(full(Limits::MSG_ID)))
        .and_then(|message| message.with_ordering_key(full(Limits::ORDERING_KEY)))
        .and_then(|message| message.with_content_type(full(Limits::CONTENT_TYPE)))
        .and_then(|message| {
            message.with_header(full(Limits::HEADER_NAME), full(Limits::HEADERS - Limits::HEADER_NAME))
        })
        .unwrap();
    let text = Message::json("mail.welcome", "A-1", &full(MAX_PAYLOAD - 2)).unwrap();
    scene.put(&[message.clone(), text.clone()]).await;
    assert_same(&scene.row(&message).await.message, &message, 0);
    assert_same(&scene.row(&text).await.message, &text, 0);
}

/// Neither case, nor accents, nor spaces at the end make ids equal.
pub async fn ids_are_compared_exactly<F: StoreFixture>(scene: &Scene<F>) {
    let messages = ["order-a", "Order-A", "order-a ", " order-a", "örder-a", "order-á"].map(|id| {
        Message::json(format!("type.{id}"), id, &1).and_then(|message| message.with_msg_id(id)).unwrap()
    });
    scene.put(&messages).await;
    for message in &messages {
        let filters = [
            Filter::default().with_msg_id(message.msg_id()),
            Filter::default().with_biz_id(message.biz_id()),
            Filter::default().with_biz_type(message.biz_type()),
        ];
        for filter in filters {
            let rows: Vec<Row> = scene.store().find(&filter).await.unwrap();
            assert_eq!(ids(rows.iter().map(|row| &row.message)), [message.msg_id()]);
        }
    }
}
