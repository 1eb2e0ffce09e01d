use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::exchange::Exchange;
use super::watched::Watched;
use crate::message::Message;

/// The messages of one consumer group: those that wait, and those that are out and not acknowledged.
#[derive(Debug)]
pub(super) struct Queue {
    ready: VecDeque<Waiting>,
    out: BTreeMap<u64, Message>,
    last_tag: u64,
}

#[derive(Debug)]
struct Waiting {
    message: Message,
    redelivered: bool,
}

impl Queue {
    pub(super) fn new(stored: &[Message]) -> Self {
        let mut queue = Self { ready: VecDeque::new(), out: BTreeMap::new(), last_tag: 0 };
        stored.iter().for_each(|message| queue.push(message));
        queue
    }

    pub(super) fn push(&mut self, message: &Message) {
        self.ready.push_back(Waiting { message: message.clone(), redelivered: false });
    }

    /// Everything that is out goes back to the front, in its old order.
    pub(super) fn take_back(&mut self) {
        while let Some((_, message)) = self.out.pop_last() {
            self.ready.push_front(Waiting { message, redelivered: true });
        }
    }

    fn hand_out(&mut self) -> Option<(u64, Waiting)> {
        let waiting = self.ready.pop_front()?;
        self.last_tag += 1;
        self.out.insert(self.last_tag, waiting.message.clone());
        Some((self.last_tag, waiting))
    }

    fn acknowledge(&mut self, tag: u64) -> bool {
        self.out.remove(&tag).is_some()
    }

    fn hand_back(&mut self, tag: u64) {
        if let Some(message) = self.out.remove(&tag) {
            self.ready.push_front(Waiting { message, redelivered: true });
        }
    }
}

/// A queue of a [`MemoryBroker`](super::MemoryBroker). Clones compete for its messages.
#[derive(Debug, Clone)]
pub struct Subscription {
    broker: Arc<Watched<Exchange>>,
    queue: usize,
}

impl Subscription {
    pub(super) fn new(broker: Arc<Watched<Exchange>>, queue: usize) -> Self {
        Self { broker, queue }
    }

    /// The next message, as soon as there is one and the broker is there. Cancellation safe.
    pub async fn next(&self) -> Delivery {
        let hand_out = |exchange: &mut Exchange| match exchange.away {
            true => None,
            false => exchange.queues.get_mut(self.queue).and_then(Queue::hand_out),
        };
        let (tag, Waiting { message, redelivered }) = self.broker.wait_until(hand_out).await;
        Delivery { message, redelivered, tag, from: self.clone() }
    }

    /// How many messages wait or are out.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.on_queue(|queue| queue.ready.len() + queue.out.len()).unwrap_or(0)
    }

    fn on_queue<T>(&self, act: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        self.broker.change(|exchange| exchange.queues.get_mut(self.queue).map(act))
    }
}

/// A message in the hands of a consumer. Dropped without [`ack`](Self::ack), it is delivered again.
#[derive(Debug)]
pub struct Delivery {
    message: Message,
    redelivered: bool,
    tag: u64,
    from: Subscription,
}

impl Delivery {
    /// The message.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Whether it was delivered before and not acknowledged.
    #[must_use]
    pub fn redelivered(&self) -> bool {
        self.redelivered
    }

    /// Takes it off the queue; `false` if the broker went away meanwhile, and it will be delivered again.
    pub fn ack(self) -> bool {
        self.from.on_queue(|queue| queue.acknowledge(self.tag)).unwrap_or(false)
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.from.on_queue(|queue| queue.hand_back(self.tag));
    }
}
