use std::error::Error as StdError;

use async_trait::async_trait;

use crate::receipt::Receipt;
use crate::store::OutboxStore;

/// The way of receipts back to the producer. Every [`OutboxStore`] is one, for a consumer that reaches the
/// producer's table.
///
/// # Contract for implementors
/// - `Ok` means that all of them are stored, durably, where the producer will find them.
/// - They come in any order and any number of times.
#[async_trait]
pub trait ReceiptSink: Send + Sync + 'static {
    /// Stores receipts.
    ///
    /// # Errors
    /// When some are not stored, or not known to be. All will be sent again.
    async fn record(&self, receipts: &[Receipt]) -> Result<(), ReceiptError>;
}

#[async_trait]
impl<S: OutboxStore + ?Sized> ReceiptSink for S {
    async fn record(&self, receipts: &[Receipt]) -> Result<(), ReceiptError> {
        match self.record_receipts(receipts).await {
            Ok(_) => Ok(()),
            Err(error) => Err(ReceiptError::new("the producer's table did not take them").with_source(error)),
        }
    }
}

/// For messages whose producer waits for no receipt.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoReceipts;

#[async_trait]
impl ReceiptSink for NoReceipts {
    async fn record(&self, _: &[Receipt]) -> Result<(), ReceiptError> {
        Ok(())
    }
}

/// Receipts that were not stored, or not known to be. The message is not acknowledged, and they are sent again.
#[derive(Debug, thiserror::Error)]
#[error("receipts: {message}")]
pub struct ReceiptError {
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl ReceiptError {
    /// Says what happened.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}
