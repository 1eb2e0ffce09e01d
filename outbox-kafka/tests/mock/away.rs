//! Brokers that are down or do not answer.

use std::time::{Duration, Instant};

use outbox_core::PublishErrorKind::{Failed, Unavailable};
use outbox_core::Publisher;
use outbox_kafka::{KafkaConfig, KafkaPublisher};

use crate::cluster::{ALL_BROKERS, Cluster, TOPIC, expect_all, expect_error, expect_stored, messages};

/// The confirm timeout and twice the connect timeout, as `with_confirm_timeout` says, and something for the
/// machine.
const BOUND: Duration = Duration::from_secs(4 + 2 + 2);

async fn comes_back(publisher: &KafkaPublisher) {
    let patience = Instant::now() + Duration::from_secs(20);
    while let Err(error) = publisher.ready().await {
        assert!(Instant::now() < patience, "never came back: {error}");
    }
}

#[tokio::test]
async fn mock_broker_down_is_unavailable_until_it_is_up() {
    let cluster = Cluster::new();
    let publisher = cluster.publisher();
    expect_stored(publisher.publish_batch(&messages(3)).await);
    cluster.0.broker_down(ALL_BROKERS).unwrap();
    let since = Instant::now();
    expect_all(&publisher.publish_batch(&messages(3)).await, Unavailable, "no Kafka broker answers");
    assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
    expect_error(&publisher.ready().await, Unavailable, "no Kafka broker answers");
    cluster.0.broker_up(ALL_BROKERS).unwrap();
    comes_back(&publisher).await;
    expect_stored(publisher.publish_batch(&messages(3)).await);
}

#[tokio::test]
async fn mock_what_was_given_up_is_not_sent_later() {
    let cluster = Cluster::new();
    // librdkafka alone would keep the messages for a quarter of an hour.
    let publisher = KafkaPublisher::new(cluster.config().with_confirm_timeout(Duration::from_secs(1_200)));
    cluster.0.broker_down(ALL_BROKERS).unwrap();
    expect_all(&publisher.publish_batch(&messages(3)).await, Unavailable, "no Kafka broker answers");
    cluster.0.broker_up(ALL_BROKERS).unwrap();
    comes_back(&publisher).await;
    assert!(cluster.drain_for(TOPIC, Duration::from_secs(3)).is_empty());
}

#[tokio::test]
async fn mock_nobody_listens_is_unavailable() {
    let config = KafkaConfig::new("127.0.0.1:1").unwrap().with_connect_timeout(Duration::from_secs(1));
    let publisher = KafkaPublisher::new(config.with_confirm_timeout(Duration::from_secs(4)));
    expect_error(&publisher.ready().await, Unavailable, "Connection refused");
    expect_all(&publisher.publish_batch(&messages(2)).await, Unavailable, "127.0.0.1:1");
}

#[tokio::test]
async fn mock_silent_brokers_are_unavailable_within_the_bound() {
    let cluster = Cluster::new();
    let publisher = cluster.publisher();
    expect_stored(publisher.publish_batch(&messages(1)).await);
    cluster.0.broker_round_trip_time(ALL_BROKERS, Duration::from_secs(60)).unwrap();
    let since = Instant::now();
    let results = publisher.publish_batch(&messages(10)).await;
    assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
    expect_all(&results, Unavailable, "no Kafka broker answers");
    cluster.0.broker_round_trip_time(ALL_BROKERS, Duration::ZERO).unwrap();
    comes_back(&publisher).await;
    expect_stored(publisher.publish_batch(&messages(10)).await);
}

#[tokio::test]
async fn mock_partition_without_a_leader_is_failed_because_kafka_answers() {
    let cluster = Cluster::new();
    let publisher = cluster.publisher();
    cluster.0.partition_leader(TOPIC, 0, None).unwrap();
    let since = Instant::now();
    expect_all(&publisher.publish_batch(&messages(3)).await, Failed, "though Kafka answers");
    assert!(since.elapsed() < BOUND, "{:?}", since.elapsed());
    cluster.0.partition_leader(TOPIC, 0, Some(2)).unwrap();
    let patience = Instant::now() + Duration::from_secs(20);
    while publisher.publish(&messages(1)[0]).await.is_err() {
        assert!(Instant::now() < patience, "never found the new leader");
    }
}

#[tokio::test]
async fn mock_order_and_number_are_kept_when_the_leader_moves() {
    let cluster = Cluster::new();
    let publisher = cluster.publisher();
    cluster.0.partition_leader(TOPIC, 0, Some(1)).unwrap();
    publisher.ready().await.unwrap();
    cluster.0.broker_round_trip_time(ALL_BROKERS, Duration::from_millis(20)).unwrap();
    let batch = messages(2_000);
    let (results, ()) = tokio::join!(publisher.publish_batch(&batch), async {
        tokio::time::sleep(Duration::from_millis(30)).await;
        cluster.0.partition_leader(TOPIC, 0, Some(2)).unwrap();
    });
    expect_stored(results);
    cluster.0.broker_round_trip_time(ALL_BROKERS, Duration::ZERO).unwrap();
    assert_eq!(cluster.drain(TOPIC, 2_000), crate::cluster::numbers(2_000));
}
