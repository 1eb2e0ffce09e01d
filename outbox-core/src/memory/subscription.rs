use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::broker::Shared;
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
    broker: Arc<Shared>,
    queue: usize,
}

impl Subscription {
    pub(super) fn new(broker: Arc<Shared>, queue: usize) -> Self {
        Self { broker, queue }
    }

    /// The next message, as soon as there is one and the broker is there. Cancellation safe.
    pub async fn next(&self) -> Delivery {
        let (tag, waiting) = self.broker.wait_for_queue(self.queue, Queue::hand_out).await;
        let Waiting { message, redelivered } = waiting;
        Delivery { message, redelivered, tag, from: self.clone() }
    }

    /// How many messages wait or are out.
    #[must_use]
    pub fn backlog(&self) -> usize {
        self.broker.with_queue(self.queue, |queue| queue.ready.len() + queue.out.len()).unwrap_or(0)
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
        self.on_queue(|queue, tag| queue.acknowledge(tag)).unwrap_or(false)
    }

    fn on_queue<T>(&self, act: impl FnOnce(&mut Queue, u64) -> T) -> Option<T> {
        self.from.broker.with_queue(self.from.queue, |queue| act(queue, self.tag))
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        self.on_queue(Queue::hand_back);
    }
}
