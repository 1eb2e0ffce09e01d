use std::sync::Arc;
use std::time::Duration;

use outbox_core::relay::Backoff;
use outbox_core::subscriber::{Stop, after};
use outbox_core::wire::{Epitaph, NoMsgId};
use outbox_core::{Consumer, Disposition, Message};
use tokio::time::Instant;
use tracing::warn;

use super::config::{AmqpConsumerConfig, Order};
use super::ledger::{Held, Ledger};
use super::slots::{Slot, Slots, Turn};
use super::suspicion::Suspicion;
use crate::letter::Letter;
use crate::shelf::Shelf;

/// What all errands share.
pub(super) struct Office {
    pub(super) consumer: Consumer,
    pub(super) config: AmqpConsumerConfig,
    pub(super) shelf: Shelf,
    pub(super) slots: Slots,
    pub(super) ledger: Ledger,
    pub(super) stop: Stop,
}

impl Office {
    /// What is known of a letter that was here before. One that is delivered for the first time was put into the
    /// queue anew, so it starts anew.
    pub(super) fn known(&self, letter: &Letter, message: &Message) -> Option<Held> {
        letter.is_redelivered().then(|| self.ledger.get(message)).flatten()
    }

    /// Remembers a letter, in case its channel ends.
    pub(super) fn hold(&self, letter: &Letter, message: &Message) -> Held {
        let known = self.known(letter, message);
        let held = Held {
            attempts: letter.attempts().max(known.map_or(0, |held| held.attempts)),
            due: known.map_or_else(Instant::now, |held| held.due),
            returns: letter.returns() + 1,
        };
        self.ledger.note(message, held);
        held
    }
}

/// How a delivery left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Left {
    /// Handled, put off or given up, and off the queue.
    Answered,
    /// Back in the queue, unanswered, for another process.
    Returned,
    /// Its channel has ended, so it is delivered again whatever became of it here.
    Lost,
}

/// One delivery on its way to an answer.
pub(super) struct Errand {
    pub(super) office: Arc<Office>,
    pub(super) letter: Letter,
    pub(super) suspicion: Suspicion,
    /// Whether others may wait for it.
    pub(super) ordered: bool,
}

/// Where a message goes that is not handled now.
enum Aside {
    PutOff { delay: Duration, attempts: u32 },
    Bury { reason: String, attempts: u32 },
}

impl Errand {
    /// The letter is acknowledged last of all, so that a crash at any await leaves it in the broker.
    pub(super) async fn run(self, message: Result<Message, NoMsgId>, turn: Turn) -> Left {
        match message {
            Ok(message) => self.handle(message, turn).await,
            Err(problem) => {
                // Its place is for a handler.
                drop(turn);
                self.refuse_unreadable(problem).await
            }
        }
    }

    async fn handle(&self, message: Message, mut turn: Turn) -> Left {
        let mut held = self.office.hold(&self.letter, &message);
        if held.due > Instant::now() {
            // A turn that has come would keep a slot from others.
            drop(turn);
            let Held { attempts, due, .. } = held;
            if !self.stays(attempts > self.letter.attempts()) {
                let delay = due.saturating_duration_since(Instant::now());
                return self.set_aside(&message, Aside::PutOff { delay, attempts }).await;
            }
            if !self.office.stop.wait_until(due).await {
                return self.give_back().await;
            }
            turn = self.line_up().await;
        }
        loop {
            let Some(slot) = self.slot(&mut turn).await else { return self.give_back().await };
            if self.letter.is_lost() {
                return Left::Lost;
            }
            let disposition = self.process(&message, held.attempts).await;
            drop(slot);
            let (delay, charged) = match disposition {
                Disposition::Ack => return self.answer(&message).await,
                Disposition::DeadLetter { reason } => {
                    let attempts = self.run_so_far(held.attempts);
                    self.office.ledger.note(&message, Held { attempts, ..held });
                    return self.set_aside(&message, Aside::Bury { reason, attempts }).await;
                }
                Disposition::RetryLater { delay, attempts } => (delay, attempts),
            };
            let stays = self.stays(charged > held.attempts);
            held = Held { attempts: charged, due: after(delay), ..held };
            self.office.ledger.note(&message, held);
            if !stays {
                return self.set_aside(&message, Aside::PutOff { delay, attempts: charged }).await;
            }
            if !self.office.stop.wait_until(held.due).await {
                return self.give_back().await;
            }
            turn = self.line_up().await;
        }
    }

    async fn process(&self, message: &Message, attempts: u32) -> Disposition {
        let (consumer, message) = (&self.office.consumer, message.clone());
        match self.suspicion {
            Suspicion::Guilty => consumer.give_up(message, attempts, self.accusation()).await,
            _ => consumer.process(message, attempts).await,
        }
    }

    fn accusation(&self) -> String {
        format!(
            "it came back {} times without an answer, so it may be what ends the process or its connection",
            self.letter.returns()
        )
    }

    /// How often the handler has run, after a refusal.
    fn run_so_far(&self, charged: u32) -> u32 {
        match self.suspicion {
            Suspicion::Guilty => charged,
            _ => (charged + 1).min(self.office.consumer.config().retry().max_attempts()),
        }
    }

    /// Whether the message waits here for its next try, or in a queue of its own. In order, it must wait here;
    /// while a service is away, it is to keep others from coming.
    fn stays(&self, charged: bool) -> bool {
        self.ordered || (!charged && self.letter.held_for() < self.office.config.hold)
    }

    async fn refuse_unreadable(&self, problem: NoMsgId) -> Left {
        let group = self.office.consumer.group().to_owned();
        warn!(group, %problem, "unreadable: to the dead letters");
        metrics::counter!("outbox_consumed_total", "group" => group, "outcome" => "unreadable").increment(1);
        let aside = Aside::Bury { reason: problem.to_string(), attempts: 0 };
        if self.store(&aside).await { self.acknowledge().await } else { self.give_back().await }
    }

    /// A letter that is lost comes again, and must not be there twice.
    async fn set_aside(&self, message: &Message, aside: Aside) -> Left {
        if self.letter.is_lost() {
            return Left::Lost;
        }
        if self.store(&aside).await { self.answer(message).await } else { self.give_back().await }
    }

    /// Tries until the broker has it; `false`: there is no time left, or no use.
    async fn store(&self, aside: &Aside) -> bool {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        loop {
            match self.try_to_store(aside).await {
                Ok(()) => return true,
                Err(trouble) => warn!(%trouble, "not stored, so not acknowledged; trying again"),
            }
            if self.letter.is_lost() || !self.office.stop.wait_until(Instant::now() + backoff.pause()).await {
                return false;
            }
        }
    }

    async fn try_to_store(&self, aside: &Aside) -> Result<(), crate::trouble::Trouble> {
        let Office { shelf, consumer, .. } = &*self.office;
        match aside {
            Aside::PutOff { delay, attempts } => shelf.put_off(&self.letter, *delay, *attempts).await,
            Aside::Bury { reason, attempts } => {
                let epitaph = Epitaph { group: consumer.group(), reason, attempts: *attempts };
                shelf.bury(&self.letter, &epitaph).await
            }
        }
    }

    async fn answer(&self, message: &Message) -> Left {
        let left = self.acknowledge().await;
        if left == Left::Answered {
            self.office.ledger.forget(message);
        }
        left
    }

    async fn acknowledge(&self) -> Left {
        if self.letter.ack().await { Left::Answered } else { Left::Lost }
    }

    /// In order, nothing goes back before the channel ends: then the broker takes back all of it at once, as it
    /// was, and no other consumer begins with a message while one before it runs here.
    async fn give_back(&self) -> Left {
        if self.office.config.order != Order::None {
            return if self.letter.is_lost() { Left::Lost } else { Left::Returned };
        }
        if self.letter.give_back().await { Left::Returned } else { Left::Lost }
    }

    async fn line_up(&self) -> Turn {
        self.office.slots.line_up(self.suspicion != Suspicion::None).await
    }

    /// A slot for the handler; none when the consumer stops.
    async fn slot(&self, turn: &mut Turn) -> Option<Slot> {
        tokio::select! {
            biased;
            () = self.office.stop.asked() => None,
            slot = turn => Some(slot),
        }
    }
}
