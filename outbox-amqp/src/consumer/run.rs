use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use outbox_core::Message;
use outbox_core::subscriber::{Lanes, Stop, SubscriberShutdown, drop_tasks};
use outbox_core::wire::NoMsgId;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tracing::{info, warn};

use super::config::Order;
use super::errand::{Errand, Left, Office};
use super::suspicion::{Judge, Suspicion};
use crate::letter::Letter;
use crate::subscription::{Stay, Subscription};

/// What waits for what. Every message has a lane, so that one that is delivered again, on a new connection,
/// does not run beside itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    OfKey(String),
    OfMessage(String),
    /// A message without an id.
    Own(u64),
}

/// The task of a consumer: takes deliveries, gives each to a task of its own, and starts over when the
/// subscription ends.
pub(super) struct Run {
    office: Arc<Office>,
    stop: Stop,
    /// Calls the errands in, once nothing comes any more.
    recall: watch::Sender<Option<Instant>>,
    subscription: Subscription,
    lanes: Lanes<Lane, Letter>,
    errands: JoinSet<(Lane, Left)>,
    judge: Judge,
    nameless: u64,
    report: SubscriberShutdown,
}

impl Run {
    /// `recall` is what the office's errands stop at.
    pub(super) fn new(
        office: Office,
        subscription: Subscription,
        stop: Stop,
        recall: watch::Sender<Option<Instant>>,
    ) -> Self {
        Self {
            judge: Judge::new(office.config.max_returns),
            office: Arc::new(office),
            stop,
            recall,
            subscription,
            lanes: Lanes::default(),
            errands: JoinSet::new(),
            nameless: 0,
            report: SubscriberShutdown::default(),
        }
    }

    /// Until it is told to stop; then at most until the deadline.
    pub(super) async fn run(mut self) -> SubscriberShutdown {
        let mut last = None;
        while let Some(mut stay) = self.subscription.open(last, &self.stop).await {
            self.serve(&mut stay).await;
            if self.stop.is_asked() {
                return self.wind_up(Some(stay)).await;
            }
            last = Some(stay.end().await);
            // What waits here unstarted comes again on the next channel.
            for letter in self.lanes.clear() {
                self.lose(&letter);
            }
        }
        self.wind_up(None).await
    }

    /// Until the stay is over or the consumer is to stop.
    async fn serve(&mut self, stay: &mut Stay) {
        loop {
            tokio::select! {
                biased;
                () = self.stop.asked() => return,
                Some(ended) = self.errands.join_next() => self.ended(ended).await,
                letter = stay.next() => match letter {
                    Some(letter) => self.take(letter).await,
                    None => return,
                },
            }
        }
    }

    async fn take(&mut self, letter: Letter) {
        let message = letter.message();
        let lane = self.lane(&message);
        if let Some(letter) = self.lanes.enter(lane.clone(), letter) {
            self.start(lane, letter, message).await;
        }
    }

    fn lane(&mut self, message: &Result<Message, NoMsgId>) -> Lane {
        let Ok(message) = message else {
            self.nameless += 1;
            return Lane::Own(self.nameless);
        };
        let key = match self.office.config.order {
            Order::None => None,
            Order::ByOrderingKey => message.ordering_key(),
            Order::ByOrderingKeyOrBizId => {
                let biz_id = Some(message.biz_id()).filter(|id| !id.is_empty());
                message.ordering_key().or(biz_id)
            }
        };
        match key {
            Some(key) => Lane::OfKey(key.to_owned()),
            None => Lane::OfMessage(message.msg_id().to_owned()),
        }
    }

    async fn start(&mut self, lane: Lane, letter: Letter, message: Result<Message, NoMsgId>) {
        let known = message.as_ref().ok().and_then(|message| self.office.known(&letter, message));
        // This process has outlived those that it knows of.
        let returns = letter.returns().saturating_sub(known.map_or(0, |held| held.returns));
        let suspicion = self.judge.judge(returns);
        let turn = self.office.slots.line_up(suspicion != Suspicion::None).await;
        let ordered = matches!(lane, Lane::OfKey(_));
        let errand = Errand { office: self.office.clone(), letter, suspicion, ordered };
        self.errands.spawn(async move {
            let run = AssertUnwindSafe(errand.run(message, turn)).catch_unwind();
            (lane, run.await.unwrap_or(Left::Lost))
        });
    }

    async fn ended(&mut self, ended: Result<(Lane, Left), JoinError>) {
        // Errands are aborted only when the consumer ends.
        let Ok((lane, left)) = ended else { return };
        self.count(left);
        while let Some(letter) = self.lanes.leave(&lane) {
            if letter.is_lost() {
                self.lose(&letter);
                continue;
            }
            let message = letter.message();
            return self.start(lane, letter, message).await;
        }
    }

    fn lose(&self, letter: &Letter) {
        if let Ok(message) = letter.message() {
            self.office.hold(letter, &message);
        }
    }

    fn count(&mut self, left: Left) {
        if self.stop.is_asked() {
            match left {
                Left::Answered => self.report.answered += 1,
                Left::Returned => self.report.returned += 1,
                Left::Lost => {}
            }
        }
    }

    /// Takes nothing new, gives back what has not begun, lets what runs end, and drops what does not end.
    async fn wind_up(mut self, mut stay: Option<Stay>) -> SubscriberShutdown {
        let stop = self.stop.clone();
        self.report.ended = stop.bound(self.drain(stay.as_mut())).await.is_some();
        self.report.dropped = self.errands.len();
        if !drop_tasks(&mut self.errands).await {
            warn!("a handler blocks its thread; the connections are closed under it");
        }
        drop(stay);
        self.subscription.close().await;
        self.office.shelf.close().await;
        info!(group = self.office.consumer.group(), report = ?self.report, "the consumer has stopped");
        self.report
    }

    async fn drain(&mut self, stay: Option<&mut Stay>) {
        match self.office.config.order {
            Order::None => self.give_back(stay).await,
            // As with a letter of its own: when the channel ends.
            _ => {
                self.call_in();
                self.report.returned += self.lanes.clear().len();
            }
        }
        while let Some(ended) = self.errands.join_next().await {
            if let Ok((_, left)) = ended {
                self.count(left);
            }
        }
    }

    /// Not before the flow is stopped: what goes back would come again, and count as returned once more.
    async fn give_back(&mut self, mut stay: Option<&mut Stay>) {
        let stopped = match &mut stay {
            Some(stay) => stay.cancel().await,
            None => false,
        };
        self.call_in();
        for letter in self.lanes.clear() {
            self.report.returned += usize::from(letter.give_back().await);
        }
        if let Some(stay) = stay.filter(|_| stopped) {
            self.report.returned += stay.give_back_the_rest().await;
        }
    }

    fn call_in(&self) {
        self.recall.send_replace(Some(self.stop.deadline()));
    }
}
