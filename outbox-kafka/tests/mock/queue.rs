//! The producer's queue is bounded; calls wait for room.

use std::time::Duration;

use outbox_core::PublishErrorKind::Unavailable;
use outbox_core::Publisher;
use outbox_kafka::{KafkaConfig, KafkaPublisher};

use crate::cluster::{ALL_BROKERS, Cluster, TOPIC, expect_all, expect_stored, messages, numbers};

fn small(config: KafkaConfig) -> KafkaPublisher {
    KafkaPublisher::new(config.with_property("queue.buffering.max.messages", "7").unwrap())
}

#[tokio::test]
async fn mock_full_queue_is_waited_for_and_keeps_the_order() {
    let cluster = Cluster::new();
    let publisher = small(cluster.config());
    expect_stored(publisher.publish_batch(&messages(300)).await);
    assert_eq!(cluster.drain(TOPIC, 300), numbers(300));
}

#[tokio::test]
async fn mock_queue_that_stays_full_is_unavailable() {
    let cluster = Cluster::new();
    let publisher = small(cluster.config());
    cluster.0.broker_down(ALL_BROKERS).unwrap();
    expect_all(&publisher.publish_batch(&messages(300)).await, Unavailable, "");
}

#[tokio::test]
async fn mock_calls_at_the_same_time_share_the_queue() {
    let cluster = Cluster::new();
    let publisher = small(cluster.config());
    let batch = messages(40);
    let calls = (0..10).map(|_| publisher.publish_batch(&batch));
    for results in futures_util::future::join_all(calls).await {
        expect_stored(results);
    }
    assert_eq!(cluster.drain(TOPIC, 400).len(), 400);
}

#[tokio::test]
async fn mock_close_confirms_what_a_dropped_call_left() {
    let cluster = Cluster::new();
    let publisher = KafkaPublisher::new(cluster.config().with_connect_timeout(Duration::from_secs(20)));
    publisher.ready().await.unwrap();
    let batch = messages(20);
    // Polled once: all are in the queue, none is confirmed.
    let dropped = futures_util::FutureExt::now_or_never(publisher.publish_batch(&batch));
    assert!(dropped.is_none());
    publisher.close().await.unwrap();
    assert_eq!(cluster.drain(TOPIC, 20), numbers(20));
}
