use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::OutboxStore;
use outbox_core::relay::Backoff;
use outbox_core::subscriber::{Stop, SubscriberHandle, SubscriberShutdown, after, drop_tasks};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tracing::{info, warn};

use super::config::ReceiptListenerConfig;
use super::desk::{Desk, Held};
use crate::config::KafkaConfig;
use crate::membership::{LEAVING, Letter, Membership, Place, Reader, Shared};
use crate::session::Session;

const COMMIT: Duration = Duration::from_secs(1);

/// Takes the receipts that [`KafkaReceiptSink`](super::KafkaReceiptSink)s and others have sent to a topic, and
/// gives them to the producer's store, many in one call.
///
/// An offset is committed when the store has the receipt and all before it. While the store is away, the
/// listener tries again and again, and reads no further than twice its batch. What is no receipt, or what the
/// store refuses although it takes others, goes to the dead letters, `<topic>.dead`, with the reason in the
/// header `outbox-dead-reason`. Any number of listeners may share a topic.
pub struct ReceiptListener {
    kafka: KafkaConfig,
    topic: String,
    store: Arc<dyn OutboxStore>,
    config: ReceiptListenerConfig,
}

impl ReceiptListener {
    /// Reads `topic` for `store`.
    #[must_use]
    pub fn new(kafka: KafkaConfig, topic: impl Into<String>, store: impl OutboxStore) -> Self {
        let config = ReceiptListenerConfig::default();
        Self { kafka, topic: topic.into(), store: Arc::new(store), config }
    }

    /// Other settings.
    #[must_use]
    pub fn with_config(mut self, config: ReceiptListenerConfig) -> Self {
        self.config = config;
        self
    }

    /// Starts to read, and goes on until it is [shut down](SubscriberHandle::shutdown): whatever is wrong with
    /// the broker or the store is logged, and tried again.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn spawn(self) -> SubscriberHandle {
        let Self { kafka, topic, store, config } = self;
        let or = |name: &Option<String>, end: &str| name.clone().unwrap_or_else(|| format!("{topic}.{end}"));
        let (group, dead_letters) = (or(&config.group, "listeners"), or(&config.dead_letters, "dead"));
        let shared = Shared::default();
        SubscriberHandle::spawn(shared.subscribed(), |stop| {
            let membership = Membership::new(kafka.clone(), group, vec![topic], shared);
            let desk =
                Arc::new(Desk { store, session: Session::new(kafka), dead_letters, batch: config.batch });
            Listening::new(membership, desk, config, stop).run()
        })
    }
}

impl fmt::Debug for ReceiptListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiptListener")
            .field("kafka", &self.kafka)
            .field("topic", &self.topic)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The task of a listener. It reads on while a batch is at the store, because that keeps the membership.
struct Listening {
    membership: Membership,
    desk: Arc<Desk>,
    config: ReceiptListenerConfig,
    stop: Stop,
    backoff: Backoff,
    waiting: VecDeque<Held>,
    /// When the next batch goes to the store, unless it is full before.
    due: Instant,
    /// Until then nothing is tried, because the store takes nothing.
    resting: bool,
    at_store: JoinSet<(Vec<Place>, Vec<Held>)>,
    report: SubscriberShutdown,
}

impl Listening {
    fn new(membership: Membership, desk: Arc<Desk>, config: ReceiptListenerConfig, stop: Stop) -> Self {
        Self {
            membership,
            desk,
            config,
            stop,
            backoff: Backoff::new(Duration::from_millis(100), Duration::from_secs(5)),
            waiting: VecDeque::new(),
            due: Instant::now(),
            resting: false,
            at_store: JoinSet::new(),
            report: SubscriberShutdown::default(),
        }
    }

    async fn run(mut self) -> SubscriberShutdown {
        while let Some(reader) = self.membership.join(&self.stop).await {
            self.serve(&reader).await;
            if self.stop.is_asked() {
                return self.wind_up(Some(reader)).await;
            }
        }
        self.wind_up(None).await
    }

    /// Until the membership is over or the listener is to stop.
    async fn serve(&mut self, reader: &Reader) {
        let mut ticks = interval(COMMIT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let stop = self.stop.clone();
        loop {
            tokio::select! {
                biased;
                () = stop.asked() => return,
                Some(settled) = self.at_store.join_next() => {
                    let (done, rest) = settled.unwrap_or_default();
                    self.settled(done, rest, reader);
                }
                _ = ticks.tick() => reader.commit(&self.membership.shared.board().take_uncommitted()),
                () = sleep_until(self.due), if self.has_work() => self.settle(),
                letter = reader.next() => match letter {
                    Some(letter) => self.take(letter, reader),
                    None => return,
                },
            }
        }
    }

    fn has_work(&self) -> bool {
        self.at_store.is_empty() && !self.waiting.is_empty()
    }

    fn take(&mut self, letter: Letter, reader: &Reader) {
        if self.waiting.is_empty() && self.at_store.is_empty() && !self.resting {
            self.due = after(self.config.wait);
        }
        let place = self.membership.shared.arrive(&letter, self.config.prefetch(), reader);
        self.waiting.push_back((letter, place));
        if self.waiting.len() >= self.config.batch && !self.resting {
            self.due = Instant::now();
        }
    }

    /// After some were kept it takes more than a batch: a receipt that the store applies shows that it is the
    /// others it refuses.
    fn settle(&mut self) {
        let most = if self.resting { self.config.prefetch() } else { self.config.batch };
        let batch = self.waiting.drain(..most.min(self.waiting.len())).collect();
        self.at_store.spawn(self.desk.clone().settle(batch));
    }

    fn settled(&mut self, done: Vec<Place>, rest: Vec<Held>, reader: &Reader) {
        let is_well = rest.is_empty();
        for place in done {
            self.membership.shared.done(&place, self.config.prefetch(), Some(reader));
        }
        rest.into_iter().rev().for_each(|held| self.waiting.push_front(held));
        let shared = self.membership.shared.clone();
        self.waiting.retain(|(_, place)| shared.board().has(place));
        self.resting = !is_well;
        if is_well {
            self.backoff.reset();
            self.due = Instant::now();
        } else {
            self.due = after(self.backoff.pause());
        }
    }

    /// Applies what is here, commits, and leaves the group.
    async fn wind_up(mut self, reader: Option<Reader>) -> SubscriberShutdown {
        let stop = self.stop.clone();
        self.report.ended = stop.bound(self.drain()).await.is_some();
        self.report.dropped = self.at_store.len();
        drop_tasks(&mut self.at_store).await;
        self.report.returned += self.waiting.len();
        if let Some(reader) = reader {
            let offsets = self.membership.shared.board().take_uncommitted();
            reader.close(offsets, LEAVING).await;
        }
        if let Err(trouble) = self.desk.session.close().await {
            warn!(error = %trouble.error(), "the producer of dead letters was not ended in good order");
        }
        info!(report = ?self.report, "the listener has stopped");
        self.report
    }

    /// What the store does not take now is left to the group's next member.
    async fn drain(&mut self) {
        loop {
            while let Some(settled) = self.at_store.join_next().await {
                let (done, rest) = settled.unwrap_or_default();
                self.report.answered += done.len();
                done.iter()
                    .for_each(|place| self.membership.shared.done(place, self.config.prefetch(), None));
                self.report.returned += rest.len();
            }
            if !self.has_work() {
                return;
            }
            self.settle();
        }
    }
}
