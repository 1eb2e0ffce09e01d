//! A consumer's process that is killed, as `kill -9` kills.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use outbox_core::consumer::{Delivery, HandlerError, NoReceipts, handler_fn};
use outbox_core::{Consumer, Message};
use outbox_kafka::{KafkaConfig, KafkaConsumer, KafkaConsumerConfig};
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::desk::{order, publish};
use crate::lab::{Lab, servers, unique};

/// Set for the process that is to be killed: topic, group and the file of its effects.
const VICTIM: &str = "OUTBOX_TEST_VICTIM";

/// Is killed when it is dropped, so that it dies with the test.
struct Victim(Child);

impl Drop for Victim {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn spawn(topic: &str, group: &str, effects: &Path) -> Victim {
    let this = "killed::kafka_process_that_is_killed_again_and_again_loses_nothing";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", this, "--include-ignored", "--nocapture"])
        .env(VICTIM, format!("{topic} {group} {}", effects.display()))
        .stdout(Stdio::null())
        .spawn();
    Victim(child.unwrap())
}

/// The life of the victim.
async fn consume(order: &str) -> ! {
    let [topic, group, effects] = order.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let effects = PathBuf::from(effects);
    let handler = handler_fn(move |delivery: Delivery<Value>| {
        let effects = effects.clone();
        async move {
            sleep(Duration::from_millis(5)).await;
            // Whole lines of a few bytes go in one piece.
            let mut file = std::fs::OpenOptions::new().append(true).create(true).open(effects).unwrap();
            std::io::Write::write_all(&mut file, format!("{}\n", delivery.biz_id()).as_bytes()).unwrap();
            Ok::<(), HandlerError>(())
        }
    });
    let kafka = KafkaConfig::new(servers()).unwrap().with_property("session.timeout.ms", "6000").unwrap();
    let consumer = Consumer::new(group, handler, NoReceipts);
    // Commits as fast as it can, so that one before its time would show.
    let config = KafkaConsumerConfig::default().with_commit_interval(Duration::from_millis(2));
    let _handle = KafkaConsumer::new(kafka, [topic], consumer).with_config(config).spawn();
    std::future::pending().await
}

fn seen(effects: &Path) -> Vec<usize> {
    let text = std::fs::read_to_string(effects).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

#[tokio::test]
#[ignore = "needs Kafka: run scripts/test.sh"]
async fn kafka_process_that_is_killed_again_and_again_loses_nothing() {
    if let Ok(order) = std::env::var(VICTIM) {
        consume(&order).await;
    }
    const ALL: usize = 3_000;
    let mut lab = Lab::new();
    let topic = lab.topic("killed", 2, &[]).await;
    let messages: Vec<Message> =
        (0..ALL).map(|i| order(&topic, &format!("k{}", i % 30), i, json!({}))).collect();
    publish(&lab, &messages).await;
    let (group, effects) = (unique("group"), std::env::temp_dir().join(unique("effects")));
    for kill_at in [200, 700, 1_500, usize::MAX] {
        let victim = spawn(&topic, &group, &effects);
        let patience = Instant::now() + Duration::from_secs(60);
        let distinct = || seen(&effects).into_iter().collect::<std::collections::BTreeSet<_>>().len();
        while distinct() < kill_at.min(ALL) {
            assert!(Instant::now() < patience, "only {} of {ALL} were handled", distinct());
            sleep(Duration::from_millis(20)).await;
        }
        drop(victim);
    }
    let seen = seen(&effects);
    std::fs::remove_file(&effects).unwrap();
    let twice = seen.len() - ALL;
    assert!(twice <= 3 * 2 * 100, "{twice} were handled twice, more than the prefetch of both partitions");
    lab.end().await;
}
