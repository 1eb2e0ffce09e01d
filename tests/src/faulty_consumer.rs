use std::time::Duration;

use async_trait::async_trait;
use outbox_core::consumer::ReceiptError;
use outbox_core::{Begin, DedupError, DedupKey, DedupStore, DedupToken, Receipt, ReceiptSink};

use crate::fault::{Fault, FaultPoint};

/// A dedup store with the point after the marker.
pub(crate) struct FaultyDedup<D> {
    dedup: D,
    fault: Fault,
}

impl<D> FaultyDedup<D> {
    pub(crate) fn new(dedup: D, fault: Fault) -> Self {
        Self { dedup, fault }
    }
}

#[async_trait]
impl<D: DedupStore> DedupStore for FaultyDedup<D> {
    async fn begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError> {
        self.dedup.begin(key, lease).await
    }

    async fn renew(&self, key: &DedupKey, token: DedupToken, lease: Duration) -> Result<bool, DedupError> {
        self.dedup.renew(key, token, lease).await
    }

    async fn finish(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        let finished = self.dedup.finish(key, token).await?;
        self.fault.at(FaultPoint::AfterMarker, 1).await;
        Ok(finished)
    }

    async fn abandon(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.dedup.abandon(key, token).await
    }

    async fn is_done(&self, key: &DedupKey) -> Result<bool, DedupError> {
        self.dedup.is_done(key).await
    }

    fn retention(&self) -> Duration {
        self.dedup.retention()
    }
}

/// A sink of receipts with the point after the receipt.
pub(crate) struct FaultySink {
    sink: Box<dyn ReceiptSink>,
    fault: Fault,
}

impl FaultySink {
    pub(crate) fn new(sink: Box<dyn ReceiptSink>, fault: Fault) -> Self {
        Self { sink, fault }
    }
}

#[async_trait]
impl ReceiptSink for FaultySink {
    async fn record(&self, receipts: &[Receipt]) -> Result<(), ReceiptError> {
        self.sink.record(receipts).await?;
        self.fault.at(FaultPoint::AfterReceipt, receipts.len()).await;
        Ok(())
    }
}
