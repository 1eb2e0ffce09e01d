use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::exchange::{Exchange, Reply, Rule, Ticket};
use super::subscription::Subscription;
use super::watched::Watched;
use crate::message::Message;
use crate::pattern::Pattern;
use crate::publisher::{PublishError, Publisher};

#[cfg(test)]
mod tests;

/// How the broker treats a message badly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerFault {
    /// Not stored; the publisher is told to try again.
    Nack,
    /// Not stored: no queue is bound.
    Unroutable,
    /// Not stored, never acceptable.
    Reject,
    /// Stored, but the publisher is told that no confirmation came.
    LoseConfirm,
    /// Stored; the confirmation comes late.
    DelayConfirm(Duration),
    /// Stored; no answer until [`MemoryBroker::release`].
    HoldConfirm,
    /// Neither stored nor answered until [`MemoryBroker::release`]; then both.
    Hang,
}

/// A broker in memory: a [`Publisher`] whose messages can be [consumed](Self::subscribe) in the same
/// process. Clones share everything.
#[derive(Debug, Clone, Default)]
pub struct MemoryBroker(Arc<Watched<Exchange>>);

impl MemoryBroker {
    /// A broker that takes everything.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Rejects payloads of more than `bytes`.
    #[must_use]
    pub fn with_max_payload(self, bytes: usize) -> Self {
        self.0.change(|exchange| exchange.max_payload = Some(bytes));
        self
    }

    /// Treats every message with a matching `biz_type` like that, until [`heal`](Self::heal). The rule added
    /// last goes first.
    pub fn fail(&self, pattern: impl Into<Pattern>, fault: BrokerFault) {
        self.fail_next(usize::MAX, pattern, fault);
    }

    /// Treats the next `messages` with a matching `biz_type` like that.
    pub fn fail_next(&self, messages: usize, pattern: impl Into<Pattern>, fault: BrokerFault) {
        let rule = Rule { pattern: pattern.into(), fault, left: messages };
        self.0.change(|exchange| exchange.rules.push_front(rule));
    }

    /// Forgets all faults; what hangs, hangs on until [`release`](Self::release).
    pub fn heal(&self) {
        self.0.change(|exchange| exchange.rules.clear());
    }

    /// Answers everything that hangs now.
    pub fn release(&self) {
        self.0.change(|exchange| exchange.releases += 1);
    }

    /// Cuts all connections and takes no new ones: publishing is unavailable, unacknowledged deliveries go
    /// back to their queues. What is stored stays.
    pub fn go_away(&self) {
        self.0.change(Exchange::go_away);
    }

    /// Takes connections again.
    pub fn come_back(&self) {
        self.0.change(|exchange| exchange.away = false);
    }

    /// A new queue, with everything stored so far and from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        Subscription::new(Arc::clone(&self.0), self.0.change(Exchange::bind))
    }

    /// Everything stored, in order; a message that was published twice is there twice.
    #[must_use]
    pub fn delivered(&self) -> Vec<Message> {
        self.0.change(|exchange| exchange.stored.clone())
    }

    /// How often a message was stored.
    #[must_use]
    pub fn times_delivered(&self, msg_id: &str) -> usize {
        let is_it = |message: &&Message| message.msg_id() == msg_id;
        self.0.change(|exchange| exchange.stored.iter().filter(is_it).count())
    }

    async fn answer(&self, message: &Message, reply: Reply) -> Result<(), PublishError> {
        match reply {
            Reply::Now(answer) => answer,
            Reply::Delayed(delay, ticket) => {
                // Nothing but an outage ends the wait early.
                let outage = self.0.wait_until(|exchange| exchange.cut(ticket));
                tokio::time::timeout(delay, outage).await.map_or(Ok(()), Err)
            }
            Reply::Held(ticket) => self.released(ticket).await,
            Reply::Hanging(ticket) => {
                self.released(ticket).await?;
                self.0.change(|exchange| exchange.store(message));
                Ok(())
            }
        }
    }

    async fn released(&self, ticket: Ticket) -> Result<(), PublishError> {
        self.0.wait_until(|exchange| exchange.released(ticket)).await
    }
}

#[async_trait]
impl Publisher for MemoryBroker {
    async fn publish(&self, message: &Message) -> Result<(), PublishError> {
        let answers = self.publish_batch(std::slice::from_ref(message)).await;
        answers.into_iter().next().unwrap_or(Ok(()))
    }

    /// Stores the messages in their order.
    async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        tokio::task::yield_now().await;
        let accept = |exchange: &mut Exchange| messages.iter().map(|m| exchange.accept(m)).collect();
        let replies: Vec<Reply> = self.0.change(accept);
        tokio::task::yield_now().await;
        join_all(messages.iter().zip(replies).map(|(message, reply)| self.answer(message, reply))).await
    }

    async fn ready(&self) -> Result<(), PublishError> {
        self.0.change(|exchange| exchange.there())
    }
}
