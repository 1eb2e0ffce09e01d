//! Messages that Kafka does not take: each is judged by itself.

use std::time::{Duration, Instant};

use outbox_core::PublishErrorKind::{Failed, Rejected, Unavailable};
use outbox_core::{Message, Publisher};
use outbox_kafka::{KafkaPublisher, Route};
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::cluster::{Cluster, TOPIC, expect_error, expect_stored, message, messages, numbers};

const TOO_LARGE: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_MSG_SIZE_TOO_LARGE;

async fn stored_soon(publisher: &KafkaPublisher, message: &Message) {
    let patience = Instant::now() + Duration::from_secs(20);
    while let Err(error) = publisher.publish(message).await {
        assert_eq!(error.kind(), Failed, "{error}");
        assert!(Instant::now() < patience, "never stored: {error}");
    }
}

#[tokio::test]
async fn mock_missing_topic_is_failed_until_it_is_there() {
    let cluster = Cluster::new();
    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART;
    cluster.0.topic_error("missing", unknown).unwrap();
    let fast = cluster.config().with_property("topic.metadata.propagation.max.ms", "500").unwrap();
    let fast = fast.with_property("topic.metadata.refresh.interval.ms", "300").unwrap();
    let publisher = KafkaPublisher::new(fast);
    let batch = [message(TOPIC, "0"), message("missing", "1"), message(TOPIC, "1")];
    let results = publisher.publish_batch(&batch).await;
    assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
    expect_error(&results[1], Failed, "create it, or correct the route");
    expect_error(&publisher.publish(&batch[1]).await, Failed, "\"missing\"");
    assert_eq!(cluster.drain(TOPIC, 2), numbers(2));
    cluster.0.topic_error("missing", RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).unwrap();
    stored_soon(&publisher, &batch[1]).await;
}

#[tokio::test]
async fn mock_larger_than_the_producer_takes_is_rejected_alone() {
    let cluster = Cluster::new();
    let publisher = KafkaPublisher::new(cluster.config().with_property("message.max.bytes", "2000").unwrap());
    let large = Message::binary(TOPIC, "large", vec![0; 2_001]).unwrap();
    let batch = [message(TOPIC, "0"), large, message(TOPIC, "1")];
    let results = publisher.publish_batch(&batch).await;
    assert!(results[0].is_ok() && results[2].is_ok(), "{results:?}");
    expect_error(&results[1], Rejected, "max.message.bytes");
    assert_eq!(cluster.drain(TOPIC, 2), numbers(2));
}

#[tokio::test]
async fn mock_too_large_together_are_stored_one_by_one() {
    let cluster = Cluster::new();
    let publisher = cluster.publisher();
    cluster.0.request_errors(RDKafkaApiKey::Produce, &[TOO_LARGE]);
    expect_stored(publisher.publish_batch(&messages(50)).await);
    let mut stored = cluster.drain(TOPIC, 50);
    stored.sort_by_key(|number| number.parse::<u32>().unwrap());
    assert_eq!(stored, numbers(50));
}

#[tokio::test]
async fn mock_too_large_by_itself_is_rejected() {
    let cluster = Cluster::new();
    let publisher = cluster.publisher();
    cluster.0.request_errors(RDKafkaApiKey::Produce, &[TOO_LARGE, TOO_LARGE]);
    expect_error(&publisher.publish(&message(TOPIC, "0")).await, Rejected, "max.message.bytes");
    publisher.publish(&message(TOPIC, "1")).await.unwrap();
}

#[tokio::test]
async fn mock_topic_that_is_closed_to_this_user_is_failed_until_it_is_opened() {
    let cluster = Cluster::new();
    let fast = cluster.config().with_property("topic.metadata.refresh.interval.ms", "300").unwrap();
    let publisher = KafkaPublisher::new(fast);
    let closed = RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED;
    cluster.0.request_errors(RDKafkaApiKey::Produce, &[closed]);
    expect_error(&publisher.publish(&message(TOPIC, "0")).await, Failed, "allow this user");
    stored_soon(&publisher, &message(TOPIC, "1")).await;
}

#[tokio::test]
async fn mock_name_that_cannot_be_a_topic_is_rejected() {
    let cluster = Cluster::new();
    let publisher = KafkaPublisher::new(cluster.config().with_route("bad.#", Route::to("no topic")));
    let results = publisher.publish_batch(&[message("bad.a", "1"), message(TOPIC, "0")]).await;
    expect_error(&results[0], Rejected, "correct the route");
    assert!(results[1].is_ok(), "{results:?}");
}

#[tokio::test]
async fn mock_settings_that_contradict_each_other_are_unavailable() {
    let cluster = Cluster::new();
    let config = cluster.config().with_property("max.in.flight", "6").unwrap();
    let publisher = KafkaPublisher::new(config.with_property("sasl.password", "s3cret").unwrap());
    expect_error(&publisher.ready().await, Unavailable, "max.in.flight");
    expect_error(&publisher.publish(&message(TOPIC, "0")).await, Unavailable, "max.in.flight");
    assert!(!format!("{publisher:?}").contains("s3cret"));
}
