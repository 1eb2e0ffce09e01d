use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::time::sleep;
use tracing::{debug, error};

use super::backoff::Backoff;
use super::batch::Published;
use super::context::Context;
use crate::claim::Settlement;

/// Writes outcomes, everything that waits in one go.
pub(crate) struct Settling {
    pub(crate) context: Arc<Context>,
}

impl Settling {
    /// Runs until the last outcome is written, then closes the publisher.
    pub(crate) async fn run(self, mut published: mpsc::Receiver<Published>) {
        let mut waiting = Vec::new();
        while published.recv_many(&mut waiting, usize::MAX).await > 0 {
            let settlements: Vec<Settlement> =
                waiting.iter_mut().flat_map(|batch| std::mem::take(&mut batch.settlements)).collect();
            self.settle(&settlements).await;
            self.context.pulse.gave(settlements.len());
            waiting.drain(..).for_each(Published::done);
        }
        if let Err(error) = self.context.publisher.close().await {
            error!(error = &error as &dyn std::error::Error, "the publisher did not close in good order");
        }
    }

    /// Tries until it works. A lease that has run out meanwhile does not matter: as long as nobody else has
    /// claimed the row, the outcome still counts, and if somebody has, it changes nothing.
    async fn settle(&self, settlements: &[Settlement]) {
        if settlements.is_empty() {
            return;
        }
        let mut trouble = Backoff::new(self.context.config.backoff_min, self.context.config.backoff_max);
        loop {
            match self.context.ask("settle", self.context.store.settle(settlements)).await {
                Ok(settled) => {
                    metrics::counter!("outbox_claim_lost_total").increment(settled.lost as u64);
                    return;
                }
                Err(error) => {
                    debug!(error = &error as &dyn std::error::Error, "settle failed");
                    sleep(trouble.pause()).await;
                }
            }
        }
    }
}
