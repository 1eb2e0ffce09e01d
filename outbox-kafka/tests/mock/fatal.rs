//! Errors after which a producer can never send again.

use outbox_core::PublishErrorKind::Unavailable;
use outbox_core::Publisher;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::cluster::{Cluster, TOPIC, expect_all, expect_error, expect_stored, messages, numbers};

const REFUSED: RDKafkaRespErr = RDKafkaRespErr::RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED;

#[tokio::test]
async fn mock_fatal_error_charges_nothing_and_the_next_call_has_a_new_producer() {
    let cluster = Cluster::new();
    let publisher = cluster.publisher();
    cluster.0.request_errors(RDKafkaApiKey::InitProducerId, &[REFUSED]);
    let batch = messages(5);
    expect_all(&publisher.publish_batch(&batch).await, Unavailable, "cannot go on");
    expect_stored(publisher.publish_batch(&batch).await);
    assert_eq!(cluster.drain(TOPIC, 5), numbers(5));
}

#[tokio::test]
async fn mock_fatal_error_makes_ready_unavailable_once() {
    let cluster = Cluster::new();
    let publisher = cluster.publisher();
    cluster.0.request_errors(RDKafkaApiKey::InitProducerId, &[REFUSED]);
    expect_error(&publisher.publish(&messages(1)[0]).await, Unavailable, "cannot go on");
    publisher.ready().await.unwrap();
}
