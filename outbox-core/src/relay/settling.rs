use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tracing::{debug, error};

use super::backoff::Backoff;
use super::batch::Published;
use super::context::Context;
use crate::claim::Settlement;

/// One alone cannot keep up with a busy database: measured, it was what all others waited for.
const WRITES: usize = 2;

/// Writes outcomes, everything that waits in one go, while the write before may still be under way.
pub(crate) struct Settling {
    pub(crate) context: Arc<Context>,
}

impl Settling {
    /// Runs until the last outcome is written, then closes the publisher.
    pub(crate) async fn run(self, mut published: mpsc::Receiver<Published>) {
        let (mut waiting, mut writing) = (Vec::new(), FuturesUnordered::new());
        let mut open = true;
        while open || !writing.is_empty() {
            tokio::select! {
                count = published.recv_many(&mut waiting, usize::MAX), if open && writing.len() < WRITES => {
                    open = count > 0;
                    if open {
                        writing.push(self.write(std::mem::take(&mut waiting)));
                    }
                }
                Some(()) = writing.next() => {}
            }
        }
        if let Err(error) = self.context.publisher.close().await {
            error!(error = &error as &dyn std::error::Error, "the publisher did not close in good order");
        }
    }

    async fn write(&self, mut published: Vec<Published>) {
        let settlements: Vec<Settlement> =
            published.iter_mut().flat_map(|batch| std::mem::take(&mut batch.settlements)).collect();
        self.settle(&settlements).await;
        self.context.pulse.gave(settlements.len());
        published.into_iter().for_each(Published::done);
    }

    /// Tries until it works. A lease that has run out meanwhile does not matter: as long as nobody else has
    /// claimed the row, the outcome still counts, and if somebody has, it changes nothing.
    ///
    /// What the store refuses for another reason than its own troubles is split, until the one row that it
    /// cannot write stands alone; that one is given up after a lease.
    async fn settle(&self, settlements: &[Settlement]) {
        let mut trouble = Backoff::new(self.context.config.backoff_min, self.context.config.backoff_max);
        let give_up_at = Instant::now() + self.context.config.lease;
        let mut parts = vec![settlements];
        loop {
            let mut left = Vec::new();
            for part in parts.into_iter().filter(|part| !part.is_empty()) {
                left.extend(self.try_settle(part, give_up_at).await);
            }
            if left.is_empty() {
                return;
            }
            parts = left;
            sleep(trouble.pause()).await;
        }
    }

    /// Answers what is still to be settled, in parts.
    async fn try_settle<'a>(&self, part: &'a [Settlement], give_up_at: Instant) -> Vec<&'a [Settlement]> {
        let error = match self.context.ask("settle", self.context.store.settle(part)).await {
            Ok(settled) => {
                metrics::counter!("outbox_claim_lost_total").increment(settled.lost as u64);
                return Vec::new();
            }
            Err(error) => error,
        };
        let cause = &error as &dyn std::error::Error;
        if error.is_transient() || Instant::now() < give_up_at && part.len() == 1 {
            debug!(error = cause, "settle failed");
            return vec![part];
        }
        let [Settlement { claim, .. }] = part else {
            let (one, other) = part.split_at(part.len() / 2);
            return vec![one, other];
        };
        error!(id = %claim.id, error = cause, "an outcome cannot be written: the row goes again after its lease");
        Vec::new()
    }
}
