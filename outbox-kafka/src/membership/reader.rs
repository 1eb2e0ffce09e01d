use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer, ConsumerContext, Rebalance, StreamConsumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{ClientContext, Offset, TopicPartitionList};
use tokio::sync::{oneshot, watch};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::board::{Board, Partition, Place};
use super::letter::Letter;
use crate::config::KafkaConfig;
use crate::line::log;
use crate::trouble::Trouble;

/// For how long leaving the group is waited for.
pub(crate) const LEAVING: Duration = Duration::from_secs(10);
/// After an error that passes by itself.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// A member of the group.
pub(crate) struct Reader {
    /// Always there until the reader is dropped.
    consumer: Option<StreamConsumer<Member>>,
}

/// What the reader and librdkafka's callbacks share.
#[derive(Clone, Default)]
pub(crate) struct Shared {
    board: Arc<Mutex<Board>>,
    subscribed: watch::Sender<bool>,
}

impl Shared {
    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a letter that has come. When its partition is as far ahead as `prefetch`, pauses it.
    pub(crate) fn arrive(&self, letter: &Letter, prefetch: usize, reader: &Reader) -> Place {
        let mut board = self.board();
        let place = board.arrive(letter.partition.clone(), letter.offset);
        if board.pauses(&place.partition, prefetch) {
            reader.pause(&place.partition);
        }
        place
    }

    /// Notes that one is done, and resumes its partition when there is room again.
    pub(crate) fn done(&self, place: &Place, prefetch: usize, reader: Option<&Reader>) {
        let mut board = self.board();
        board.done(place);
        if let Some(reader) = reader.filter(|_| board.resumes(&place.partition, prefetch)) {
            reader.resume(&place.partition);
        }
    }

    pub(crate) fn set_subscribed(&self, subscribed: bool) {
        self.subscribed.send_replace(subscribed);
    }

    pub(crate) fn subscribed(&self) -> watch::Receiver<bool> {
        self.subscribed.subscribe()
    }
}

impl Reader {
    /// Joins the group in the background.
    pub(crate) fn open(
        config: &KafkaConfig,
        group: &str,
        topics: &[String],
        shared: Shared,
    ) -> Result<Self, Trouble> {
        let client = config.consumer(group);
        let consumer = StreamConsumer::from_config_and_context(&client, Member::new(shared));
        let consumer: StreamConsumer<Member> = consumer.map_err(Trouble::creating)?;
        let topics: Vec<&str> = topics.iter().map(String::as_str).collect();
        consumer.subscribe(&topics).map_err(Trouble::subscribing)?;
        Ok(Self { consumer: Some(consumer) })
    }

    fn consumer(&self) -> KafkaResult<&StreamConsumer<Member>> {
        self.consumer.as_ref().ok_or(KafkaError::Canceled)
    }

    /// The next record; none when the membership has ended. It must be waited for always, even while nothing is
    /// wanted: that is what keeps the membership. Safe to drop.
    pub(crate) async fn next(&self) -> Option<Letter> {
        loop {
            match self.receive().await {
                Ok(letter) => return Some(letter),
                Err(error) if self.is_over() => {
                    warn!(%error, "the membership has ended; joining again");
                    return None;
                }
                Err(error) => warn!(%error, "nothing can be read; trying again"),
            }
            sleep(AFTER_ERROR).await;
        }
    }

    /// After a fatal error, which comes under more than one code.
    fn is_over(&self) -> bool {
        self.consumer.as_ref().is_none_or(|consumer| consumer.client().fatal_error().is_some())
    }

    async fn receive(&self) -> KafkaResult<Letter> {
        Ok(Letter::new(&self.consumer()?.recv().await?))
    }

    pub(crate) fn pause(&self, partition: &Partition) {
        self.note("pause", self.consumer().and_then(|consumer| consumer.pause(&list([(partition, None)]))));
    }

    pub(crate) fn resume(&self, partition: &Partition) {
        self.note("resume", self.consumer().and_then(|consumer| consumer.resume(&list([(partition, None)]))));
    }

    /// Fails where the partition has just left, which ends the pause as well.
    fn note(&self, what: &str, result: KafkaResult<()>) {
        if let Err(error) = result {
            debug!(%error, what, "not done");
        }
    }

    /// Sends the offsets to the broker; whether it took them, [`Member`] is told.
    pub(crate) fn commit(&self, offsets: &[(Partition, i64)]) {
        if let Some(consumer) = self.consumer.as_ref().filter(|_| !offsets.is_empty()) {
            commit(consumer, offsets, CommitMode::Async);
        }
    }

    /// Commits, and leaves the group.
    pub(crate) async fn close(mut self, offsets: Vec<(Partition, i64)>, limit: Duration) {
        let Some(consumer) = self.consumer.take() else { return };
        let closing = elsewhere(move || {
            if !offsets.is_empty() {
                commit(&consumer, &offsets, CommitMode::Sync);
            }
            drop(consumer);
        });
        if timeout(limit, closing).await.is_err() {
            warn!("leaving the group takes long; it goes on by itself");
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(consumer) = self.consumer.take() {
            drop(elsewhere(move || drop(consumer)));
        }
    }
}

/// Does what blocks on a thread of its own, and not on one that the runtime waits for when it ends: a broker that
/// does not answer can take a minute.
fn elsewhere(work: impl FnOnce() + Send + 'static) -> oneshot::Receiver<()> {
    let (ended, end) = oneshot::channel();
    let thread = std::thread::Builder::new().name("outbox-kafka-end".into());
    let started = thread.spawn(move || {
        work();
        // Nobody may wait for it.
        let _ = ended.send(());
    });
    if let Err(error) = started {
        warn!(%error, "no thread to end a Kafka consumer; it was ended in place");
    }
    end
}

fn list<'a>(partitions: impl IntoIterator<Item = (&'a Partition, Option<i64>)>) -> TopicPartitionList {
    let mut list = TopicPartitionList::new();
    for ((topic, partition), offset) in partitions {
        let mut element = list.add_partition(topic, *partition);
        if let Some(offset) = offset
            && let Err(error) = element.set_offset(Offset::Offset(offset))
        {
            warn!(%error, offset, "not an offset");
        }
    }
    list
}

fn commit<C: Consumer<Member>>(consumer: &C, offsets: &[(Partition, i64)], mode: CommitMode) {
    let list = list(offsets.iter().map(|(partition, offset)| (partition, Some(*offset))));
    if let Err(error) = consumer.commit(&list, mode) {
        warn!(%error, "offsets are not committed; what was handled may be delivered again");
    }
}

/// Is called while the next record is waited for, and while the group is left.
struct Member {
    shared: Shared,
    membership: u64,
}

impl Member {
    fn new(shared: Shared) -> Self {
        let membership = shared.board().begin();
        Self { shared, membership }
    }

    /// The board, unless it is that of a membership that came after this one.
    fn board(&self) -> Option<MutexGuard<'_, Board>> {
        Some(self.shared.board()).filter(|board| board.is_in(self.membership))
    }
}

impl ClientContext for Member {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        log(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // The reader gets it as well, without the reason.
        debug!(%error, "librdkafka: {reason}");
    }
}

impl ConsumerContext for Member {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        let Rebalance::Revoke(leaving) = rebalance else { return };
        let leaving: Vec<Partition> = partitions(leaving);
        info!(partitions = leaving.len(), "partitions leave");
        let offsets: Vec<(Partition, i64)> = {
            let Some(mut board) = self.board() else { return };
            leaving.into_iter().filter_map(|gone| board.leave(&gone).map(|offset| (gone, offset))).collect()
        };
        // Partitions that were lost belong to somebody else already.
        if !offsets.is_empty() && !consumer.assignment_lost() {
            commit(consumer, &offsets, CommitMode::Async);
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(coming) = rebalance {
            info!(partitions = coming.count(), "partitions come");
            // One that was paused when it left would stay so.
            if let Err(error) = consumer.resume(coming) {
                debug!(%error, "not resumed");
            }
            self.shared.set_subscribed(true);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        let Err(error) = result else { return };
        debug!(%error, "offsets are not committed; trying again");
        let Some(mut board) = self.board() else { return };
        partitions(offsets).iter().for_each(|partition| board.not_committed(partition));
    }
}

fn partitions(list: &TopicPartitionList) -> Vec<Partition> {
    list.elements().iter().map(|element| (element.topic().to_owned(), element.partition())).collect()
}
