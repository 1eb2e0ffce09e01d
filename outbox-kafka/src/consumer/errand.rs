use std::sync::Arc;
use std::time::Duration;

use outbox_core::relay::Backoff;
use outbox_core::subscriber::{Stop, after};
use outbox_core::wire::{Epitaph, NoMsgId};
use outbox_core::{Consumer, Disposition, Message};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;

use crate::membership::{Letter, Place, Shared};
use crate::post::post;
use crate::session::Session;

/// What all errands share.
pub(super) struct Office {
    pub(super) consumer: Consumer,
    /// For dead letters.
    pub(super) session: Session,
    pub(super) dead_letters: String,
    pub(super) slots: Arc<Semaphore>,
    pub(super) shared: Shared,
    pub(super) stop: Stop,
}

/// How a delivery left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// Handled or given up: its offset is done.
    Answered,
    /// Not handled: the group's next member gets it.
    Returned,
    /// Its partition has left, so that it is delivered again whatever became of it here.
    Lost,
}

/// One delivery on its way to an answer.
pub(super) struct Errand {
    pub(super) office: Arc<Office>,
    pub(super) letter: Letter,
    pub(super) place: Place,
}

impl Errand {
    pub(super) async fn run(self, message: Result<Message, NoMsgId>) -> Left {
        match message {
            Ok(message) => self.handle(message).await,
            Err(problem) => self.refuse_unreadable(problem).await,
        }
    }

    /// Tries in place, so that those who wait behind it keep their order.
    async fn handle(&self, message: Message) -> Left {
        let mut attempts = 0;
        loop {
            let Some(slot) = self.slot().await else { return Left::Returned };
            if self.is_lost() {
                return Left::Lost;
            }
            let disposition = self.office.consumer.process(message.clone(), attempts).await;
            drop(slot);
            let delay = match disposition {
                Disposition::Ack => return Left::Answered,
                Disposition::DeadLetter { reason } => return self.bury(&reason, attempts + 1).await,
                Disposition::RetryLater { delay, attempts: charged } => {
                    attempts = charged;
                    delay
                }
            };
            if !self.office.stop.wait_until(after(delay)).await {
                return Left::Returned;
            }
        }
    }

    async fn refuse_unreadable(&self, problem: NoMsgId) -> Left {
        let group = self.office.consumer.group().to_owned();
        warn!(group, %problem, place = ?self.place, "unreadable: to the dead letters");
        metrics::counter!("outbox_consumed_total", "group" => group, "outcome" => "unreadable").increment(1);
        self.bury(&problem.to_string(), 0).await
    }

    /// Tries until the broker has it, for as long as there is use in it.
    async fn bury(&self, reason: &str, attempts: u32) -> Left {
        let Office { session, dead_letters, consumer, .. } = &*self.office;
        let attempts = attempts.min(consumer.config().retry().max_attempts());
        let epitaph = Epitaph { group: consumer.group(), reason, attempts };
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        loop {
            match post(session, dead_letters, || self.letter.dead(dead_letters, &epitaph)).await {
                Ok(()) => return Left::Answered,
                Err(error) => warn!(%error, "a dead letter is not stored; trying again"),
            }
            if self.is_lost() {
                return Left::Lost;
            }
            if !self.office.stop.wait_until(after(backoff.pause())).await {
                return Left::Returned;
            }
        }
    }

    fn is_lost(&self) -> bool {
        !self.office.shared.board().has(&self.place)
    }

    /// The right to run a handler; none when the consumer stops.
    async fn slot(&self) -> Option<OwnedSemaphorePermit> {
        tokio::select! {
            biased;
            () = self.office.stop.asked() => None,
            slot = self.office.slots.clone().acquire_owned() => slot.ok(),
        }
    }
}
