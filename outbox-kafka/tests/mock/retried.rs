//! Errors that pass: librdkafka sends again, and nothing is stored twice or out of order.

use outbox_core::PublishErrorKind::Failed;
use outbox_core::Publisher;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr as Error};

use crate::cluster::{Cluster, TOPIC, expect_all, expect_stored, messages, numbers};

#[tokio::test]
async fn mock_errors_for_a_while_are_overcome_in_order_and_once() {
    let cluster = Cluster::new();
    let publisher = cluster.publisher();
    let errors = [
        Error::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        Error::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        Error::RD_KAFKA_RESP_ERR__TRANSPORT,
        Error::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
    ];
    cluster.0.request_errors(RDKafkaApiKey::Produce, &errors);
    expect_stored(publisher.publish_batch(&messages(200)).await);
    assert_eq!(cluster.drain(TOPIC, 200), numbers(200));
}

#[tokio::test]
async fn mock_errors_for_too_long_are_failed_because_kafka_answers() {
    let cluster = Cluster::new();
    let publisher = cluster.publisher();
    let errors = [Error::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS; 500];
    cluster.0.request_errors(RDKafkaApiKey::Produce, &errors);
    expect_all(&publisher.publish_batch(&messages(3)).await, Failed, "though Kafka answers");
    cluster.0.clear_request_errors(RDKafkaApiKey::Produce);
    expect_stored(publisher.publish_batch(&messages(3)).await);
}
