use std::ops::Range;
use std::panic::AssertUnwindSafe;

use futures_util::FutureExt;
use tracing::{debug, warn};

use super::format::read;
use crate::receipt::{Receipt, ReceiptReport};
use crate::store::{OutboxStore, StoreError, StoreErrorKind};

/// What the store made of a receipt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It has it.
    Applied,
    /// The store takes others, and not this one.
    Refused(String),
    /// Not applied, or not known to be: to be tried again.
    Kept,
}

/// Reads the bodies and gives the receipts among them to the store, up to `batch` in one call; what became of each
/// body. If the store refuses a call, finds the receipt that is the cause, so that the others do not wait for it.
/// What cannot be read is refused.
pub async fn apply<'a>(
    store: &dyn OutboxStore,
    bodies: impl IntoIterator<Item = &'a [u8]>,
    batch: usize,
) -> Vec<Fate> {
    let read: Vec<Result<Receipt, String>> = bodies.into_iter().map(read).collect();
    let receipts: Vec<Receipt> = read.iter().flatten().cloned().collect();
    let given = AssertUnwindSafe(give(store, &receipts, batch)).catch_unwind().await;
    // After a panic of the store all are kept.
    let mut fates = given.unwrap_or_default().into_iter();
    let fate = |read: Result<Receipt, String>| match read {
        Ok(_) => fates.next().unwrap_or(Fate::Kept),
        Err(problem) => Fate::Refused(problem),
    };
    read.into_iter().map(fate).collect()
}

async fn give(store: &dyn OutboxStore, receipts: &[Receipt], batch: usize) -> Vec<Fate> {
    let mut fates = vec![Fate::Kept; receipts.len()];
    let batch = batch.max(1);
    let starts = (0..receipts.len()).step_by(batch).rev();
    let mut open: Vec<Range<usize>> = starts.map(|start| start..receipts.len().min(start + batch)).collect();
    while let Some(part) = open.pop() {
        match store.record_receipts(&receipts[part.clone()]).await {
            Ok(report) => {
                measure(report);
                fates[part].fill(Fate::Applied);
            }
            Err(error) if !lies_in_a_receipt(&error) => {
                warn!(%error, "receipts are not applied; trying again");
                break;
            }
            Err(error) if part.len() == 1 => fates[part.start] = Fate::Refused(error.to_string()),
            Err(error) => {
                debug!(%error, receipts = part.len(), "refused together; looking for the cause");
                let middle = part.start + part.len() / 2;
                open.extend([middle..part.end, part.start..middle]);
            }
        }
    }
    acquit(fates)
}

/// A store that takes nothing at all is itself the cause.
fn acquit(mut fates: Vec<Fate>) -> Vec<Fate> {
    if !fates.contains(&Fate::Applied) {
        for fate in &mut fates {
            if let Fate::Refused(problem) = fate {
                warn!(problem, "the store takes no receipt; trying again");
                *fate = Fate::Kept;
            }
        }
    }
    fates
}

fn lies_in_a_receipt(error: &StoreError) -> bool {
    matches!(error.kind(), StoreErrorKind::InvalidMessage | StoreErrorKind::Other)
}

fn measure(report: ReceiptReport) {
    let ReceiptReport { recorded, stale, unknown, completed } = report;
    debug!(%report, "receipts applied");
    for (outcome, count) in [("recorded", recorded), ("stale", stale), ("unknown", unknown)] {
        metrics::counter!("outbox_receipts_total", "outcome" => outcome).increment(count as u64);
    }
    metrics::counter!("outbox_completed_total").increment(completed as u64);
}
