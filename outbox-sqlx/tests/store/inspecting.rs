use std::time::Duration;

use outbox_core::{Filter, Message, OutboxStore, Outcome, Stats, Status};

use crate::harness::{Env, TestDb, confirmed, failed, ids, message, messages, request, settle};
use crate::on_every_database;

on_every_database!(find_filters_and_pages, stats_count_and_age, debug_shows_no_payload);

fn found(rows: &[outbox_core::Row]) -> Vec<&str> {
    rows.iter().map(|row| row.message.msg_id()).collect()
}

async fn find_filters_and_pages<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let other = Message::json("mail.sent", "M-1", &1).unwrap().with_msg_id("mail").unwrap();
    env.commit(&store, &[messages(5), vec![other]].concat()).await;
    let claimed = store.claim(&request(2)).await.unwrap();
    settle(&store, &claimed[1..], &failed("x")).await;

    let first = store.find(&Filter::default().with_limit(2)).await.unwrap();
    assert_eq!(found(&first), ["m0", "m1"]);
    let rest = store.find(&Filter::default().with_after(first[1].id)).await.unwrap();
    assert_eq!(found(&rest), ["m2", "m3", "m4", "mail"]);
    for (filter, expected) in [
        (Filter::default().with_status(Status::Failed), vec!["m1"]),
        (Filter::default().with_status(Status::Sent), vec![]),
        (Filter::default().with_biz_type("mail.sent"), vec!["mail"]),
        (Filter::default().with_biz_id("A-1").with_status(Status::Pending), vec!["m0", "m2", "m3", "m4"]),
        (Filter::default().with_msg_id("m3").with_biz_id("M-1"), vec![]),
        (Filter::default().with_msg_id("' OR 1 = 1 --\0"), vec![]),
        (Filter::default().with_limit(0), vec![]),
        (Filter::default().with_limit(usize::MAX).with_biz_id("M-1"), vec!["mail"]),
    ] {
        assert_eq!(found(&store.find(&filter).await.unwrap()), expected, "{filter:?}");
    }
}

async fn stats_count_and_age<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let empty = store.stats().await.unwrap();
    assert_eq!((empty.rows.values().sum::<u64>(), empty.oldest_due), (0, None));
    env.commit(&store, &messages(6)).await;
    let later = chrono::TimeDelta::seconds(100);
    let later = outbox_core::Clock::now(&env.clock) + later;
    env.commit(&store, &[message("later").with_deliver_after(later)]).await;
    let claimed = store.claim(&request(4)).await.unwrap();
    settle(&store, &claimed[..1], &confirmed(&["g"])).await;
    settle(&store, &claimed[1..2], &confirmed(&[])).await;
    settle(&store, &claimed[2..3], &failed("x")).await;
    env.clock.advance(Duration::from_millis(1_500));
    let Stats { rows, oldest_due } = store.stats().await.unwrap();
    assert_eq!(oldest_due, Some(Duration::from_millis(1_500)));
    let counts = [(Status::Pending, 4), (Status::Sent, 1), (Status::Completed, 1), (Status::Failed, 1)];
    assert_eq!(rows, counts.into());

    settle(&store, &claimed[3..], &Outcome::Released).await;
    let rest = store.claim(&request(9)).await.unwrap();
    assert_eq!(ids(&rest), ["m3", "m4", "m5"]);
    settle(&store, &rest, &confirmed(&[])).await;
    assert_eq!(store.stats().await.unwrap().oldest_due, None);
}

async fn debug_shows_no_payload<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let secret = Message::json("a", "b", &"hunter2").unwrap();
    env.commit(&store, &[secret]).await;
    let claimed = store.claim(&request(9)).await.unwrap();
    assert!(!format!("{store:?} {claimed:?}").contains("hunter2"));
}
