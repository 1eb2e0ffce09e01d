use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use outbox_core::slip::{self, Fate};
use outbox_core::{OutboxStore, Receipt};
use tracing::warn;

use crate::membership::{Epitaph, Letter, Place};
use crate::post::post;
use crate::session::Session;

/// What stands for a group on the dead letters of receipts.
const GROUP: &str = "outbox.receipts";

/// A receipt and where it came from.
pub(super) type Held = (Letter, Place);

/// Where receipts are dealt with.
pub(super) struct Desk {
    pub(super) store: Arc<dyn OutboxStore>,
    pub(super) session: Session,
    pub(super) dead_letters: String,
}

impl Desk {
    /// What is done, because the store or the dead letters have it, and the rest.
    pub(super) async fn settle(self: Arc<Self>, batch: Vec<Held>) -> (Vec<Place>, Vec<Held>) {
        let read: Vec<_> = batch.iter().map(|(letter, _)| slip::read(letter.body())).collect();
        let receipts: Vec<Receipt> = read.iter().flatten().cloned().collect();
        let applying = AssertUnwindSafe(slip::apply(&*self.store, &receipts)).catch_unwind();
        // After a panic of the store all are kept.
        let mut fates = applying.await.unwrap_or_default().into_iter();
        let (mut done, mut rest) = (Vec::new(), Vec::new());
        for ((letter, place), read) in batch.into_iter().zip(read) {
            let fate = match read {
                Ok(_) => fates.next().unwrap_or(Fate::Kept),
                Err(problem) => Fate::Refused(problem),
            };
            let is_done = match fate {
                Fate::Applied => true,
                Fate::Refused(problem) => self.bury(&letter, &problem).await,
                Fate::Kept => false,
            };
            if is_done { done.push(place) } else { rest.push((letter, place)) }
        }
        (done, rest)
    }

    async fn bury(&self, letter: &Letter, reason: &str) -> bool {
        let epitaph = Epitaph { group: GROUP, reason, attempts: 0 };
        let topic = &self.dead_letters;
        match post(&self.session, topic, || letter.dead(topic, &epitaph)).await {
            Ok(()) => {
                warn!(reason, "a receipt went to the dead letters");
                metrics::counter!("outbox_receipts_total", "outcome" => "dead_letter").increment(1);
                true
            }
            Err(error) => {
                warn!(reason, %error, "a receipt for the dead letters is not stored there; trying again");
                false
            }
        }
    }
}
