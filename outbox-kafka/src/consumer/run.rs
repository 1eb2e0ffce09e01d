use std::sync::Arc;

use outbox_core::Message;
use outbox_core::subscriber::{Lanes, SubscriberShutdown, drop_tasks};
use outbox_core::wire::NoMsgId;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{info, warn};

use super::config::{KafkaConsumerConfig, Order};
use super::errand::{Errand, Left, Office};
use crate::membership::{LEAVING, Letter, Membership, Partition, Place, Reader};

/// What waits for what.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    OfKey(Vec<u8>),
    OfPartition(Partition),
    /// So that a message that comes again after a rebalance does not run beside itself.
    OfMessage(String),
    /// A message without an id.
    Own(i64, Partition),
}

/// The task of a consumer: takes records, gives each to a task of its own, commits what is done, and starts
/// over when the membership ends.
pub(super) struct Run {
    office: Arc<Office>,
    membership: Membership,
    config: KafkaConsumerConfig,
    lanes: Lanes<Lane, (Letter, Place)>,
    errands: JoinSet<(Lane, Place, Left)>,
    report: SubscriberShutdown,
}

impl Run {
    pub(super) fn new(office: Arc<Office>, membership: Membership, config: KafkaConsumerConfig) -> Self {
        Self {
            office,
            membership,
            config,
            lanes: Lanes::default(),
            errands: JoinSet::new(),
            report: SubscriberShutdown::default(),
        }
    }

    /// Until it is told to stop; then at most until the deadline.
    pub(super) async fn run(mut self) -> SubscriberShutdown {
        while let Some(reader) = self.membership.join(&self.office.stop).await {
            self.serve(&reader).await;
            if self.office.stop.is_asked() {
                return self.wind_up(Some(reader)).await;
            }
        }
        self.wind_up(None).await
    }

    /// Until the membership is over or the consumer is to stop.
    async fn serve(&mut self, reader: &Reader) {
        let mut ticks = interval(self.config.commit_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.office.stop.asked() => return,
                _ = ticks.tick() => reader.commit(&self.office.shared.board().take_uncommitted()),
                Some(ended) = self.errands.join_next() => self.ended(ended, Some(reader)),
                letter = reader.next() => match letter {
                    Some(letter) => self.take(letter, reader),
                    None => return,
                },
            }
        }
    }

    fn take(&mut self, letter: Letter, reader: &Reader) {
        let message = letter.message();
        let lane = self.lane(&letter, &message);
        let place = self.office.shared.arrive(&letter, self.config.prefetch, reader);
        if let Some((letter, place)) = self.lanes.enter(lane.clone(), (letter, place)) {
            self.start(lane, letter, place, message);
        }
    }

    fn lane(&self, letter: &Letter, message: &Result<Message, NoMsgId>) -> Lane {
        match (self.config.order, &letter.key, message) {
            (Order::ByPartition, ..) => Lane::OfPartition(letter.partition.clone()),
            (Order::ByKey, Some(key), _) => Lane::OfKey(key.clone()),
            (_, _, Ok(message)) => Lane::OfMessage(message.msg_id().to_owned()),
            (_, _, Err(_)) => Lane::Own(letter.offset, letter.partition.clone()),
        }
    }

    fn start(&mut self, lane: Lane, letter: Letter, place: Place, message: Result<Message, NoMsgId>) {
        let errand = Errand { office: self.office.clone(), letter, place: place.clone() };
        self.errands.spawn(async move { (lane, place, errand.run(message).await) });
    }

    fn ended(&mut self, ended: Result<(Lane, Place, Left), JoinError>, reader: Option<&Reader>) {
        let Ok((lane, place, left)) = ended else {
            warn!("the task of a delivery ended before its time; its partition waits for it until a restart");
            return;
        };
        self.answer(&place, left, reader);
        while let Some((letter, place)) = self.lanes.leave(&lane) {
            if self.office.shared.board().has(&place) {
                let message = letter.message();
                return self.start(lane, letter, place, message);
            }
        }
    }

    fn answer(&mut self, place: &Place, left: Left, reader: Option<&Reader>) {
        let stops = self.office.stop.is_asked();
        match left {
            Left::Answered => {
                self.office.shared.done(place, self.config.prefetch, reader);
                self.report.answered += usize::from(stops);
            }
            Left::Returned => self.report.returned += 1,
            Left::Lost => {}
        }
    }

    /// Takes nothing new, drops what has not begun, lets what runs end, commits, and drops what does not end.
    async fn wind_up(mut self, reader: Option<Reader>) -> SubscriberShutdown {
        let stop = self.office.stop.clone();
        self.report.returned += self.lanes.clear().len();
        self.report.ended = stop.bound(self.drain()).await.is_some();
        self.report.dropped = self.errands.len();
        if !drop_tasks(&mut self.errands).await {
            warn!("a handler blocks its thread; the group is left under it");
        }
        if let Some(reader) = reader {
            let offsets = self.office.shared.board().take_uncommitted();
            reader.close(offsets, LEAVING).await;
        }
        if let Err(error) = self.office.session.close().await {
            warn!(error = %error.error(), "the producer of dead letters was not ended in good order");
        }
        info!(group = self.office.consumer.group(), report = ?self.report, "the consumer has stopped");
        self.report
    }

    async fn drain(&mut self) {
        while let Some(ended) = self.errands.join_next().await {
            self.ended(ended, None);
        }
    }
}
