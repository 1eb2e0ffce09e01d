use std::fmt;

use async_trait::async_trait;
use outbox_core::consumer::ReceiptError;
use outbox_core::{Receipt, ReceiptSink, slip};

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
        slip::send(&self.publisher, receipts).await
    }
}

impl fmt::Debug for KafkaReceiptSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KafkaReceiptSink").field("publisher", &self.publisher).finish()
    }
}
