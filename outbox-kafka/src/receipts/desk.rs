use std::sync::Arc;

use outbox_core::OutboxStore;
use outbox_core::slip::{self, Fate};
use outbox_core::wire::Epitaph;
use tracing::warn;

use crate::membership::{Letter, Place};
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
    /// How many receipts go to the store in one call, at most.
    pub(super) batch: usize,
}

impl Desk {
    /// What is done, because the store or the dead letters have it, and the rest.
    pub(super) async fn settle(self: Arc<Self>, batch: Vec<Held>) -> (Vec<Place>, Vec<Held>) {
        let bodies = batch.iter().map(|(letter, _)| letter.body());
        let fates = slip::apply(&*self.store, bodies, self.batch).await;
        let (mut done, mut rest) = (Vec::new(), Vec::new());
        for ((letter, place), fate) in batch.into_iter().zip(fates) {
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
