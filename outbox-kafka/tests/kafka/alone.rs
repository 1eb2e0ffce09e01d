//! A broker that is killed and restarted in the middle of everything.

use std::process::Command;
use std::time::{Duration, Instant};

use outbox_core::{Message, PublishErrorKind, Publisher};
use outbox_kafka::KafkaConsumerConfig;

use crate::desk::{Desk, fine, until};
use crate::lab::Lab;

fn ctl(verb: &'static str) {
    let ctl = std::env::var("OUTBOX_SERVICES_CTL").expect("OUTBOX_SERVICES_CTL; scripts/test.sh sets it");
    assert!(Command::new(ctl).args([verb, "kafka"]).status().unwrap().success(), "{verb}");
}

async fn kill_and_start() {
    tokio::task::spawn_blocking(|| {
        ctl("kill");
        ctl("start");
    })
    .await
    .unwrap();
}

/// As a relay does it: the next of a key only after the one before it.
async fn publish_in_order(publisher: &impl Publisher, messages: Vec<Message>) {
    let patience = Instant::now() + Duration::from_secs(180);
    for message in messages {
        while let Err(error) = publisher.publish(&message).await {
            assert_ne!(error.kind(), PublishErrorKind::Rejected, "{error}");
            assert!(Instant::now() < patience, "{error}");
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn alone_kafka_broker_that_is_killed_costs_no_message_and_no_order() {
    let mut lab = Lab::new();
    let topic = lab.topic("restart", 3, &[]).await;
    let keys = ["a", "b", "c", "d"];
    let messages = |key: &str| (0..500).map(|i| fine(&topic, key, format!("{key}{i:03}"))).collect();
    let desk = Desk::new();
    let handle = desk.join(&topic, KafkaConsumerConfig::default()).await;
    let publisher = lab.publisher();
    let publishing = keys.map(|key| publish_in_order(&publisher, messages(key)));
    let killing = async {
        for handled in [200, 800] {
            until("some are handled", || desk.handled().len() > handled).await;
            kill_and_start().await;
        }
    };
    tokio::join!(futures_util::future::join_all(publishing), killing);
    let all = keys.len() * 500;
    until("all are handled", || desk.handled().len() >= all).await;
    for key in keys {
        let mut of: Vec<String> = desk.handled().into_iter().filter(|id| id.starts_with(key)).collect();
        assert!(of.is_sorted(), "{key} is not in order");
        of.dedup();
        assert_eq!(of.len(), 500, "{key}");
    }
    assert_eq!(desk.handled().len(), all, "the dedup store lets nothing through twice");
    handle.shutdown(Duration::from_secs(20)).await;
    lab.end().await;
}
