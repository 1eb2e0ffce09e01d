use std::fmt;

use async_trait::async_trait;
use outbox_core::{Message, PublishError, Publisher};

use crate::batch::Batch;
use crate::config::KafkaConfig;
use crate::session::Session;
use crate::trouble::Trouble;

/// Publishes to Kafka with `acks=all`, idempotently, and with all messages of a batch in flight together, in
/// order.
///
/// The producer is made by the first call, and made anew, by the next call, after a fatal error or when no
/// broker answered. Calls may run concurrently; they share it. Dropping a call takes nothing back: its
/// messages are published, or given up when the confirm timeout has passed. At most
/// `queue.buffering.max.kbytes` (64 MiB) are in the producer; calls wait for room.
pub struct KafkaPublisher {
    session: Session,
}

impl KafkaPublisher {
    /// Connects to nothing yet; [`ready`](Publisher::ready) does.
    #[must_use]
    pub fn new(config: KafkaConfig) -> Self {
        Self { session: Session::new(config) }
    }
}

#[async_trait]
impl Publisher for KafkaPublisher {
    async fn publish(&self, message: &Message) -> Result<(), PublishError> {
        let mut verdicts = self.publish_batch(std::slice::from_ref(message)).await;
        verdicts.pop().unwrap_or_else(|| Err(Trouble::purged().error()))
    }

    async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        Batch::new(&self.session, messages).run().await
    }

    /// Asks any broker for its metadata, within the connect timeout.
    async fn ready(&self) -> Result<(), PublishError> {
        let line = self.session.line().map_err(Trouble::error)?;
        line.probe(self.session.config.connect_timeout).await.map_err(Trouble::error)
    }

    /// Waits, within the connect timeout, until everything was answered for.
    async fn close(&self) -> Result<(), PublishError> {
        self.session.close().await.map_err(Trouble::error)
    }
}

impl fmt::Debug for KafkaPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaPublisher").field("config", &self.session.config).finish_non_exhaustive()
    }
}
