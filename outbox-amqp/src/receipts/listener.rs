use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use outbox_core::OutboxStore;
use outbox_core::relay::Backoff;
use outbox_core::slip::{self, Fate};
use outbox_core::subscriber::{Stop, SubscriberHandle, SubscriberShutdown, after};
use outbox_core::wire::Epitaph;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};

use super::config::ReceiptListenerConfig;
use crate::config::AmqpConfig;
use crate::letter::Letter;
use crate::shelf::Shelf;
use crate::subscription::{Stay, Subscription};

/// What stands for a group on the dead letters of receipts.
const GROUP: &str = "outbox.receipts";

/// Takes the receipts that [`AmqpReceiptSink`](super::AmqpReceiptSink)s and others have sent to a queue, and
/// gives them to the producer's store, many in one call.
///
/// A receipt is acknowledged when the store has it. While the store is away, nothing is acknowledged, and the
/// listener tries again and again. What is no receipt, or what the store refuses although it takes others, goes
/// to the dead letters, `<queue>.dead`, with the reason in the header `outbox-dead-reason`. Any number of
/// listeners may share a queue.
///
/// RabbitMQ takes back what is not acknowledged within 30 minutes, and from version 4.0 on gives up, from a quorum
/// queue, what it took back 20 times: the listener declares its queue so that this goes to the dead letters too,
/// from where it can be put back. Whoever else declares the queue says so too, since RabbitMQ refuses two that
/// differ: `Queue::quorum("receipts").with_dead_letter_queue("receipts.dead")`. For stores that may be away for
/// hours, raise the limit, with a policy's `delivery-limit`.
pub struct ReceiptListener {
    amqp: AmqpConfig,
    queue: String,
    store: Arc<dyn OutboxStore>,
    config: ReceiptListenerConfig,
}

impl ReceiptListener {
    /// Reads `queue` for `store`. Declares both queues, unless told [not
    /// to](ReceiptListenerConfig::without_declaring), and the topology of `amqp`.
    #[must_use]
    pub fn new(amqp: AmqpConfig, queue: impl Into<String>, store: impl OutboxStore) -> Self {
        let config = ReceiptListenerConfig::default();
        Self { amqp, queue: queue.into(), store: Arc::new(store), config }
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
        let Self { amqp, queue, store, config } = self;
        let shelf = Shelf::new(amqp.clone(), &queue, config.queue_kind, config.declares);
        let subscription = shelf.beside(Subscription::new(amqp, &queue, config.prefetch()));
        let subscription = if config.declares { subscription.with_queue(shelf.own()) } else { subscription };
        SubscriberHandle::spawn(subscription.subscribed(), |stop| {
            let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
            Listening { subscription, shelf, store, config, stop, backoff, dropped: 0 }.run()
        })
    }
}

impl fmt::Debug for ReceiptListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceiptListener")
            .field("amqp", &self.amqp)
            .field("queue", &self.queue)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// The task of a listener.
struct Listening {
    subscription: Subscription,
    shelf: Shelf,
    store: Arc<dyn OutboxStore>,
    config: ReceiptListenerConfig,
    stop: Stop,
    backoff: Backoff,
    /// Letters that were at the store when the deadline came.
    dropped: usize,
}

/// Letters that are not answered yet, in the order in which they came.
type Batch = Vec<Letter>;

impl Listening {
    async fn run(mut self) -> SubscriberShutdown {
        let mut last = None;
        while let Some(mut stay) = self.subscription.open(last, &self.stop).await {
            let batch = self.serve(&mut stay).await;
            if self.stop.is_asked() {
                return self.wind_up(Some((stay, batch))).await;
            }
            last = Some(stay.end().await);
        }
        self.wind_up(None).await
    }

    /// Until the stay is over or the listener is to stop; what is left then.
    async fn serve(&mut self, stay: &mut Stay) -> Batch {
        let mut batch = Batch::new();
        while self.gather(stay, &mut batch).await {
            let held = batch.len();
            let Some(rest) = self.stop.bound(self.settle(batch)).await else {
                self.dropped = held;
                return Batch::new();
            };
            batch = rest;
            if batch.is_empty() {
                self.backoff.reset();
            } else if !self.stop.wait_until(Instant::now() + self.backoff.pause()).await {
                break;
            }
        }
        batch
    }

    /// Fills the batch, or takes what comes in time. `false`: the stay is over, or the listener is to stop.
    ///
    /// One that is full of what was kept takes more: a receipt that the store applies shows that it is the
    /// others it refuses.
    async fn gather(&self, stay: &mut Stay, batch: &mut Batch) -> bool {
        let ReceiptListenerConfig { batch: size, .. } = self.config;
        let full = if batch.len() < size { size } else { usize::from(self.config.prefetch()) };
        let mut end = (!batch.is_empty()).then(|| after(self.config.wait));
        while batch.len() < full {
            let letter = tokio::select! {
                biased;
                () = self.stop.asked() => return false,
                letter = stay.next() => letter,
                () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => return true,
            };
            let Some(letter) = letter else { return false };
            batch.push(letter);
            end = end.or_else(|| Some(after(self.config.wait)));
        }
        true
    }

    /// Acknowledges what the store has, and what is with the dead letters; the rest.
    async fn settle(&self, batch: Batch) -> Batch {
        let fates = slip::apply(&*self.store, batch.iter().map(Letter::body), self.config.batch).await;
        let (mut done, mut rest) = (Batch::new(), Batch::new());
        for (letter, fate) in batch.into_iter().zip(fates) {
            let is_done = match fate {
                Fate::Applied => true,
                Fate::Refused(problem) => self.bury(&letter, &problem).await,
                Fate::Kept => false,
            };
            if is_done { done.push(letter) } else { rest.push(letter) }
        }
        acknowledge(&done, rest.is_empty()).await;
        rest
    }

    async fn bury(&self, letter: &Letter, reason: &str) -> bool {
        let epitaph = Epitaph { group: GROUP, reason, attempts: 0 };
        match self.shelf.bury(letter, &epitaph).await {
            Ok(()) => {
                warn!(reason, "a receipt went to the dead letters");
                metrics::counter!("outbox_receipts_total", "outcome" => "dead_letter").increment(1);
                true
            }
            Err(trouble) => {
                warn!(reason, %trouble, "a receipt for the dead letters is not stored there; trying again");
                false
            }
        }
    }

    /// Applies what is here once more, and gives the rest back.
    async fn wind_up(self, work: Option<(Stay, Batch)>) -> SubscriberShutdown {
        let mut report = SubscriberShutdown::default();
        let held = work.as_ref().map_or(0, |(_, batch)| batch.len());
        let finished = self.stop.bound(self.finish(work, &mut report)).await.is_some();
        report.dropped = if finished { self.dropped } else { held.saturating_sub(report.answered) };
        report.ended = finished && report.dropped == 0;
        self.subscription.close().await;
        self.shelf.close().await;
        info!(?report, "the listener has stopped");
        report
    }

    async fn finish(&self, work: Option<(Stay, Batch)>, report: &mut SubscriberShutdown) {
        let Some((mut stay, batch)) = work else { return };
        if stay.cancel().await {
            report.returned += stay.give_back_the_rest().await;
        }
        let held = batch.len();
        let rest = self.settle(batch).await;
        report.answered += held - rest.len();
        for letter in rest {
            report.returned += usize::from(letter.give_back().await);
        }
    }
}

/// With one acknowledgement, where nothing that came before is left.
async fn acknowledge(done: &[Letter], all: bool) {
    match done.last() {
        Some(last) if all => _ = last.ack_all_before().await,
        _ => {
            for letter in done {
                letter.ack().await;
            }
        }
    }
}
