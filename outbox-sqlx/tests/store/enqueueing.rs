use chrono::TimeDelta;
use outbox_core::{Clock, Enqueue, Filter, Limits, Message, OutboxStore, Payload, StoreErrorKind};
use serde_json::json;

use crate::harness::{Env, TestDb, ids, message, messages, request, row};
use crate::on_every_database;

on_every_database!(
    everything_a_message_has_comes_back,
    rolled_back_messages_never_existed,
    outside_of_a_transaction_is_refused,
    duplicate_is_named_and_writes_nothing,
    idempotent_enqueue_says_how_many_were_new,
    batch_of_many_statements_is_all_or_nothing,
    invalid_messages_are_refused_before_anything_is_written,
    article_only_insert_is_delivered,
    delayed_message_waits,
    no_messages_are_no_error,
);

async fn everything_a_message_has_comes_back<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let text = Message::json("order.created", "A-1001", &json!({"amount": 990, "名": "é\u{1F600}\\u0000"}))
        .and_then(|m| m.with_header("tenant", "acme \"\u{7f}\n"))
        .and_then(|m| m.with_header("trace", "00-1"))
        .and_then(|m| m.with_ordering_key("A-1001"))
        .and_then(|m| m.with_content_type("application/vnd.order+json"))
        .unwrap();
    let bytes = Message::binary("blob", "B-1", vec![0, 159, 146, 150, 255]).unwrap();
    let empty = Message::binary("blob", "B-2", Vec::new()).unwrap();
    // One alone and two together: two forms of the statement.
    env.commit(&store, std::slice::from_ref(&text)).await;
    env.commit(&store, &[bytes.clone(), empty.clone()]).await;

    let claimed = store.claim(&request(10)).await.unwrap();
    for (sent, got) in [&text, &bytes, &empty].into_iter().zip(&claimed) {
        let got = &got.message;
        assert_eq!(got.msg_id(), sent.msg_id());
        assert_eq!((got.biz_type(), got.biz_id()), (sent.biz_type(), sent.biz_id()));
        assert_eq!(got.headers(), sent.headers());
        assert_eq!(got.explicit_content_type(), sent.explicit_content_type());
        assert_eq!(got.ordering_key(), sent.ordering_key());
        assert_eq!(got.created_at(), Some(env.clock.now()));
        assert_eq!(got.claim_no(), 1);
        match (sent.payload(), got.payload()) {
            (Payload::Json(_), Payload::Json(_)) => {
                let decode = |m: &Message| m.decode::<serde_json::Value>().unwrap();
                assert_eq!(decode(sent), decode(got));
            }
            (sent, got) => assert_eq!(sent, got),
        }
    }
    assert_eq!(claimed.len(), 3);
}

async fn rolled_back_messages_never_existed<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let mut tx = env.begin().await;
    store.enqueue(&mut tx, &messages(3)).await.unwrap();
    tx.rollback().await.unwrap();
    let mut dropped = env.begin().await;
    store.enqueue(&mut dropped, &messages(3)).await.unwrap();
    drop(dropped);
    assert!(store.find(&Filter::default()).await.unwrap().is_empty());
    env.commit(&store, &messages(3)).await;
}

async fn outside_of_a_transaction_is_refused<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let mut conn = env.pool.acquire().await.unwrap();
    for error in [
        store.enqueue(&mut conn, &messages(1)).await.unwrap_err(),
        store.enqueue_idempotent(&mut conn, &messages(1)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), StoreErrorKind::NotInTransaction);
        assert!(error.to_string().contains("begin()"), "{error}");
    }
    drop(conn);
    assert!(store.find(&Filter::default()).await.unwrap().is_empty());
}

async fn duplicate_is_named_and_writes_nothing<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &[message("twice")]).await;
    for batch in [vec![message("twice")], vec![message("new"), message("twice")]] {
        let mut tx = env.begin().await;
        let error = store.enqueue(&mut tx, &batch).await.unwrap_err();
        tx.rollback().await.unwrap();
        assert_eq!(error.kind(), StoreErrorKind::Duplicate, "{error}");
        // SQLite says only that there is one.
        let named = batch.len() == 1 || DB::NAME != "SQLite";
        assert!(!named || error.to_string().contains("msg_id \"twice\""), "{error}");
        assert!(!error.is_transient());
    }

    let mut tx = env.begin().await;
    let error = store.enqueue(&mut tx, &[message("self"), message("self")]).await.unwrap_err();
    tx.rollback().await.unwrap();
    assert_eq!(error.kind(), StoreErrorKind::Duplicate, "{error}");
    assert_eq!(store.find(&Filter::default()).await.unwrap().len(), 1);
}

async fn idempotent_enqueue_says_how_many_were_new<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &[message("a")]).await;
    let mut tx = env.begin().await;
    let batch = [message("a"), message("b"), message("b"), message("c")];
    assert_eq!(store.enqueue_idempotent(&mut tx, &batch).await.unwrap(), 2);
    assert_eq!(store.enqueue_idempotent(&mut tx, &batch[..1]).await.unwrap(), 0);
    tx.commit().await.unwrap();
    assert_eq!(ids(&store.claim(&request(10)).await.unwrap()), ["a", "b", "c"]);
}

/// More rows than fit into one statement on SQLite, more bytes than fit on any.
async fn batch_of_many_statements_is_all_or_nothing<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await.with_limits(Limits::default().with_payload(64 << 20));
    // MariaDB refuses packets past 16 MB by default.
    let size = if DB::NAME == "MySQL" { 3 << 20 } else { 20 << 20 };
    let big = |id: &str| Message::binary("a", "b", vec![7; size]).unwrap().with_msg_id(id).unwrap();
    let mut batch = vec![big("big1"), big("big2")];
    batch.extend(messages(3_000));
    env.commit(&store, &batch).await;
    assert_eq!(store.stats().await.unwrap().rows.values().sum::<u64>(), 3_002);

    let mut again: Vec<Message> = (0..3_000).map(|n| message(&format!("again{n}"))).collect();
    again.push(message("m1"));
    let mut tx = env.begin().await;
    store.enqueue(&mut tx, &[message("before")]).await.unwrap();
    let error = store.enqueue(&mut tx, &again).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Duplicate);
    // On SQLite the transaction can go on.
    if tx.commit().await.is_ok() && DB::NAME == "SQLite" {
        assert_eq!(row(&store, "before").await.message.msg_id(), "before");
    }
    let found = store.find(&Filter::default().with_msg_id("again0")).await.unwrap();
    assert!(found.is_empty());
}

async fn invalid_messages_are_refused_before_anything_is_written<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await.with_limits(Limits::default().with_payload(10));
    let mut tx = env.begin().await;
    let long = Message::json("a", "b", &"0123456789").unwrap();
    let error = store.enqueue(&mut tx, &[message("ok"), long]).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::InvalidMessage);
    assert!(error.to_string().contains("payload has 12 bytes; the limit is 10"), "{error}");
    tx.commit().await.unwrap();
    assert!(store.find(&Filter::default()).await.unwrap().is_empty());

    let widest = Message::json("t".repeat(Limits::BIZ_TYPE), "b".repeat(Limits::BIZ_ID), &1)
        .and_then(|m| m.with_msg_id("m".repeat(Limits::MSG_ID)))
        .and_then(|m| m.with_ordering_key("é".repeat(Limits::ORDERING_KEY / 2)))
        .and_then(|m| m.with_content_type("c".repeat(Limits::CONTENT_TYPE)))
        .unwrap();
    env.commit(&store, &[widest]).await;
}

async fn article_only_insert_is_delivered<DB: TestDb>(env: Env<DB>) {
    env.migrated().await;
    let store = env.real_time_store();
    let insert = "INSERT INTO {t} (msg_id, biz_type, biz_id, payload) VALUES ('x', 'order.created', 'A-1', '{\"n\": 1}')";
    env.exec(insert).await.unwrap();
    let claimed = store.claim(&request(10)).await.unwrap();
    assert_eq!(ids(&claimed), ["x"]);
    let message = &claimed[0].message;
    assert_eq!(message.decode::<serde_json::Value>().unwrap(), json!({"n": 1}));
    assert_eq!(message.content_type(), "application/json");
    let age = store.clock().now() - message.created_at().unwrap();
    assert!(age.abs() < TimeDelta::seconds(60), "{age}");
}

async fn delayed_message_waits<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let due = env.clock.now() + TimeDelta::seconds(90);
    env.commit(&store, &[message("later").with_deliver_after(due), message("now")]).await;
    env.commit(&store, &[message("never").with_deliver_after(chrono::DateTime::<chrono::Utc>::MAX_UTC)])
        .await;
    assert_eq!(ids(&store.claim(&request(10)).await.unwrap()), ["now"]);
    assert_eq!(row(&store, "later").await.next_retry_time, due);
    env.clock.set(due);
    assert!(ids(&store.claim(&request(10)).await.unwrap()).contains(&"later"));
}

async fn no_messages_are_no_error<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let mut tx = env.begin().await;
    store.enqueue(&mut tx, &[]).await.unwrap();
    assert_eq!(store.enqueue_idempotent(&mut tx, &[]).await.unwrap(), 0);
}
