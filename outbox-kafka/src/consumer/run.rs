use std::sync::Arc;
use std::time::Duration;

use outbox_core::Message;
use outbox_core::relay::Backoff;
use outbox_core::wire::NoMsgId;
use rdkafka::error::KafkaError;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tracing::{info, warn};

use super::board::{Partition, Place};
use super::config::{KafkaConsumerConfig, Order};
use super::errand::{Errand, Left, Office};
use super::lanes::Lanes;
use super::letter::Letter;
use super::reader::Reader;
use crate::handle::SubscriberShutdown;

/// For how long leaving the group is waited for.
const LEAVING: Duration = Duration::from_secs(10);
/// After an error that passes by itself.
const AFTER_ERROR: Duration = Duration::from_millis(100);

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
    pub(super) office: Arc<Office>,
    pub(super) config: KafkaConsumerConfig,
    pub(super) topics: Vec<String>,
    lanes: Lanes<Lane, (Letter, Place)>,
    errands: JoinSet<(Lane, Place, Left)>,
    report: SubscriberShutdown,
}

impl Run {
    pub(super) fn new(office: Arc<Office>, config: KafkaConsumerConfig, topics: Vec<String>) -> Self {
        Self {
            office,
            config,
            topics,
            lanes: Lanes::new(),
            errands: JoinSet::new(),
            report: SubscriberShutdown::default(),
        }
    }

    /// Until it is told to stop; then at most until the deadline.
    pub(super) async fn run(mut self) -> SubscriberShutdown {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        loop {
            match self.open() {
                Ok(reader) => {
                    let since = Instant::now();
                    self.serve(&reader).await;
                    if self.office.stop.is_asked() {
                        return self.wind_up(Some(reader)).await;
                    }
                    if since.elapsed() > Duration::from_secs(60) {
                        backoff.reset();
                    }
                }
                Err(error) => warn!(%error, "no consumer; trying again"),
            }
            if !self.office.stop.wait_until(Instant::now() + backoff.pause()).await {
                return self.wind_up(None).await;
            }
        }
    }

    fn open(&self) -> Result<Reader, outbox_core::PublishError> {
        let Office { session, consumer, shared, .. } = &*self.office;
        let reader = Reader::open(&session.config, consumer.group(), &self.topics, shared.clone());
        reader.map_err(|trouble| trouble.error())
    }

    /// Until the membership is over or the consumer is to stop.
    async fn serve(&mut self, reader: &Reader) {
        let mut ticks = interval(self.config.commit_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.office.stop.asked() => return,
                Some(ended) = self.errands.join_next() => self.ended(ended, Some(reader)),
                _ = ticks.tick() => self.commit(reader),
                record = reader.next() => match record {
                    Ok(letter) => self.take(letter, reader),
                    Err(error) if is_final(&error) => {
                        warn!(%error, "the membership has ended; joining again");
                        return;
                    }
                    Err(error) => {
                        warn!(%error, "nothing can be read; trying again");
                        sleep(AFTER_ERROR).await;
                    }
                },
            }
        }
    }

    fn commit(&self, reader: &Reader) {
        let offsets = self.office.shared.board().take_uncommitted();
        reader.commit(&offsets);
    }

    fn take(&mut self, letter: Letter, reader: &Reader) {
        let message = letter.message();
        let lane = self.lane(&letter, &message);
        let place = {
            let mut board = self.office.shared.board();
            let place = board.arrive(letter.partition.clone(), letter.offset);
            if board.pauses(&place.partition, self.config.prefetch) {
                reader.pause(&place.partition);
            }
            place
        };
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
        let mut board = self.office.shared.board();
        match left {
            Left::Answered => {
                board.done(place);
                self.report.answered += usize::from(self.office.stop.is_asked());
            }
            Left::Returned => self.report.returned += 1,
            Left::Lost => {}
        }
        if let Some(reader) = reader.filter(|_| board.resumes(&place.partition, self.config.prefetch)) {
            reader.resume(&place.partition);
        }
    }

    /// Takes nothing new, drops what has not begun, lets what runs end, commits, and drops what does not end.
    async fn wind_up(mut self, reader: Option<Reader>) -> SubscriberShutdown {
        let stop = self.office.stop.clone();
        self.report.returned += self.lanes.clear().len();
        self.report.ended = stop.bound(self.drain()).await.is_some();
        self.report.dropped = self.errands.len();
        self.errands.shutdown().await;
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

fn is_final(error: &KafkaError) -> bool {
    matches!(error, KafkaError::MessageConsumptionFatal(_) | KafkaError::Canceled)
}
