use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lapin::BasicProperties;
use outbox_core::wire::Epitaph;
use tokio::time::timeout;

use crate::config::AmqpConfig;
use crate::letter::Letter;
use crate::post::{NotStored, Post};
use crate::session::Session;
use crate::stamp;
use crate::subscription::Subscription;
use crate::topology::{Queue, Topology};
use crate::trouble::Trouble;

/// The longest delay: RabbitMQ's own limit is 49 days.
const LONGEST_DELAY: Duration = Duration::from_secs(1 << 21);

/// The type of the queues that a consumer declares beside its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueueKind {
    /// Replicated. What has waited for its retry moves on only when the other queue has confirmed it. Needs
    /// RabbitMQ 3.10.
    #[default]
    Quorum,
    /// On one node. A node that fails at the moment at which a message has waited for its retry can lose it.
    Classic,
}

/// The queues beside a queue: one for each length of delay, and one for the dead letters. Whoever puts a
/// message there takes it off its own queue only after that, so a crash in between doubles it and loses none.
pub(crate) struct Shelf {
    /// A connection of its own: the broker stops reading from one that publishes while it is out of memory,
    /// and then would see no acknowledgements either.
    session: Session,
    queue: String,
    kind: QueueKind,
    declares: bool,
    declared: Mutex<HashSet<String>>,
}

impl Shelf {
    pub(crate) fn new(mut config: AmqpConfig, queue: &str, kind: QueueKind, declares: bool) -> Self {
        config.topology = Topology::default();
        config.connection_name += " (retries and dead letters)";
        let session = Session::new(config);
        Self { session, queue: queue.to_owned(), kind, declares, declared: Mutex::default() }
    }

    /// Stores `letter` so that it comes to its queue again after `delay`, with `attempts` charged to it.
    pub(crate) async fn put_off(
        &self,
        letter: &Letter,
        delay: Duration,
        attempts: u32,
    ) -> Result<(), Trouble> {
        let delay = delay.clamp(Duration::from_millis(1), LONGEST_DELAY);
        let properties = stamp::for_retry(letter, delay, attempts);
        self.store(&self.waiting_room(bucket(delay)), properties, letter.body()).await
    }

    /// Stores `letter` with the dead letters.
    pub(crate) async fn bury(&self, letter: &Letter, epitaph: &Epitaph<'_>) -> Result<(), Trouble> {
        let properties = stamp::for_burial(letter, epitaph);
        self.store(&self.cemetery(), properties, letter.body()).await
    }

    async fn store(&self, queue: &Queue, properties: BasicProperties, body: &[u8]) -> Result<(), Trouble> {
        self.declare(queue).await?;
        match (Post { queue: queue.name(), properties, body }).store(&self.session).await {
            Ok(()) => Ok(()),
            Err(NotStored::Trouble(trouble)) => Err(trouble),
            Err(NotStored::Unroutable) => {
                // Somebody has deleted it: the next try declares it anew.
                self.declared().remove(queue.name());
                Err(Trouble::unroutable(queue.name()))
            }
        }
    }

    async fn declare(&self, queue: &Queue) -> Result<(), Trouble> {
        if !self.declares || self.declared().contains(queue.name()) {
            return Ok(());
        }
        let link = self.session.link().await?;
        let declaring = async {
            let channel = link.open_channel().await.map_err(Trouble::lost)?;
            queue.declare(&channel).await.map_err(Trouble::declaring)
        };
        let declared = timeout(self.session.config.connect_timeout, declaring).await;
        declared.map_err(|_| Trouble::not_declared_in_time())??;
        self.declared().insert(queue.name().to_owned());
        Ok(())
    }

    fn declared(&self) -> MutexGuard<'_, HashSet<String>> {
        self.declared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where messages wait that are due within `bucket`. Each has its own expiration, which RabbitMQ looks at
    /// only when the message is the first of its queue: so a queue for each length of delay, whose messages
    /// are never kept for longer than that by one another.
    fn waiting_room(&self, bucket: Duration) -> Queue {
        let milliseconds = i64::try_from(bucket.as_millis()).unwrap_or(i64::MAX);
        let queue = self
            .of_kind(format!("{}.retry.{milliseconds}", self.queue))
            .with_argument("x-message-ttl", milliseconds)
            .with_dead_letter_queue(&self.queue);
        match self.kind {
            QueueKind::Classic => queue,
            QueueKind::Quorum => queue
                .with_argument("x-dead-letter-strategy", "at-least-once")
                .with_argument("x-overflow", "reject-publish"),
        }
    }

    /// The queue of dead letters.
    fn cemetery(&self) -> Queue {
        self.of_kind(self.dead())
    }

    fn dead(&self) -> String {
        format!("{}.dead", self.queue)
    }

    /// The queue itself, where the consumer is the one to declare it. What RabbitMQ gives up of its own accord,
    /// at the queue's delivery limit, is with the dead letters too.
    pub(crate) fn own(&self) -> Queue {
        self.of_kind(self.queue.clone()).with_dead_letter_queue(self.dead())
    }

    fn of_kind(&self, name: String) -> Queue {
        match self.kind {
            QueueKind::Quorum => Queue::quorum(name),
            QueueKind::Classic => Queue::classic(name),
        }
    }

    /// Has the dead letters declared, or else looked for, when `subscription` subscribes: a message that has
    /// nowhere to go is noticed at the start.
    pub(crate) fn beside(&self, subscription: Subscription) -> Subscription {
        let dead = self.cemetery();
        if self.declares { subscription.with_queue(dead) } else { subscription.with_companion(dead.name()) }
    }

    pub(crate) async fn close(&self) {
        if let Err(trouble) = self.session.close().await {
            tracing::warn!(%trouble, "the connection was not closed in good order");
        }
    }
}

/// The shortest of 1, 2, 4, 8 … seconds that is not shorter than `delay`.
fn bucket(delay: Duration) -> Duration {
    let seconds = delay.as_secs() + u64::from(delay.subsec_nanos() > 0);
    Duration::from_secs(seconds.next_power_of_two())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_share_few_queues_and_none_is_cut_short() {
        let seconds = |delay| bucket(delay).as_secs();
        assert_eq!(seconds(Duration::from_millis(1)), 1);
        assert_eq!(seconds(Duration::from_secs(1)), 1);
        assert_eq!(seconds(Duration::from_millis(1_001)), 2);
        assert_eq!(seconds(Duration::from_secs(66)), 128);
        assert_eq!(bucket(LONGEST_DELAY), LONGEST_DELAY);
    }
}
