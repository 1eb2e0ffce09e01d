use std::fmt;

use async_trait::async_trait;
use outbox_core::consumer::ReceiptError;
use outbox_core::{Message, Publisher, Receipt, ReceiptSink, slip};

use crate::config::KafkaConfig;
use crate::publisher::KafkaPublisher;
use crate::route::Route;

/// Sends receipts to a topic, from which the producer's [`ReceiptListener`](crate::ReceiptListener) takes them,
/// all of a call in flight at once.
///
/// Receipts are ordinary messages of the `biz_type` `outbox.receipt`, one for each, so that consumers in other
/// languages can send them too; [`outbox_core::slip`] has the format. Their key is the `msg_id` of what was
/// handled.
pub struct KafkaReceiptSink {
    publisher: KafkaPublisher,
}

impl KafkaReceiptSink {
    /// Sends them to `topic`, whatever `kafka` says of routes. The topic must be there: a receipt that is not
    /// stored is an error, and its message is not acknowledged.
    #[must_use]
    pub fn new(kafka: KafkaConfig, topic: impl Into<String>) -> Self {
        let route = Route::to(topic);
        Self { publisher: KafkaPublisher::new(kafka.with_router(move |_| route.clone())) }
    }
}

#[async_trait]
impl ReceiptSink for KafkaReceiptSink {
    async fn record(&self, receipts: &[Receipt]) -> Result<(), ReceiptError> {
        let messages: Result<Vec<Message>, _> = receipts.iter().map(slip::message).collect();
        let messages = messages.map_err(|error| ReceiptError::new("not encodable").with_source(error))?;
        let results = self.publisher.publish_batch(&messages).await;
        let mut errors = results.into_iter().filter_map(Result::err);
        let Some(first) = errors.next() else { return Ok(()) };
        let (failed, all) = (1 + errors.count(), receipts.len());
        Err(ReceiptError::new(format!("{failed} of {all} were not stored by Kafka")).with_source(first))
    }
}

impl fmt::Debug for KafkaReceiptSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaReceiptSink").field("publisher", &self.publisher).finish()
    }
}
