use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use tokio::sync::watch;

use super::lock;
use super::subscription::{Queue, Subscription};
use crate::message::Message;
use crate::pattern::Pattern;
use crate::publisher::{PublishError, Publisher};

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
#[derive(Debug, Clone)]
pub struct MemoryBroker(Arc<Shared>);

#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    delivered: Vec<Message>,
    queues: Vec<Queue>,
    rules: VecDeque<Rule>,
    max_bytes: Option<usize>,
    away: bool,
    outages: u64,
    releases: u64,
}

#[derive(Debug)]
struct Rule {
    pattern: Pattern,
    fault: BrokerFault,
    left: usize,
}

/// How publishing a message goes on after the broker has seen it.
enum Reply {
    Now(Result<(), PublishError>),
    Delayed(Duration, Outage),
    Held(Outage, Release),
    Hanging(Outage, Release),
}

#[derive(Clone, Copy)]
struct Outage(u64);
#[derive(Clone, Copy)]
struct Release(u64);

impl Default for MemoryBroker {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryBroker {
    /// A broker that takes everything.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Rejects payloads of more than `bytes`.
    #[must_use]
    pub fn with_max_payload(self, bytes: usize) -> Self {
        lock(&self.0.state).max_bytes = Some(bytes);
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
        lock(&self.0.state).rules.push_front(rule);
    }

    /// Forgets all faults; what hangs, hangs on until [`release`](Self::release).
    pub fn heal(&self) {
        lock(&self.0.state).rules.clear();
    }

    /// Answers everything that hangs now.
    pub fn release(&self) {
        self.0.change(|state| state.releases += 1);
    }

    /// Cuts all connections and takes no new ones: publishing is unavailable, unacknowledged deliveries go
    /// back to their queues. What is stored stays.
    pub fn go_away(&self) {
        self.0.change(|state| {
            state.away = true;
            state.outages += 1;
            state.queues.iter_mut().for_each(Queue::take_back);
        });
    }

    /// Takes connections again.
    pub fn come_back(&self) {
        self.0.change(|state| state.away = false);
    }

    /// A new queue, with everything stored so far and from now on.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        let mut state = lock(&self.0.state);
        let queue = Queue::new(&state.delivered);
        state.queues.push(queue);
        Subscription::new(Arc::clone(&self.0), state.queues.len() - 1)
    }

    /// Everything stored, in order; a message that was published twice is there twice.
    #[must_use]
    pub fn delivered(&self) -> Vec<Message> {
        lock(&self.0.state).delivered.clone()
    }

    /// How often a message was stored.
    #[must_use]
    pub fn times_delivered(&self, msg_id: &str) -> usize {
        lock(&self.0.state).delivered.iter().filter(|message| message.msg_id() == msg_id).count()
    }

    async fn answer(&self, message: &Message, reply: Reply) -> Result<(), PublishError> {
        match reply {
            Reply::Now(answer) => answer,
            Reply::Delayed(delay, Outage(outage)) => {
                let cut = self.0.wait_until(|state| (state.outages > outage).then_some(()));
                match tokio::time::timeout(delay, cut).await {
                    Ok(()) => Err(connection_lost()),
                    Err(_) => Ok(()),
                }
            }
            Reply::Held(outage, release) => self.0.released(outage, release, |_| ()).await,
            Reply::Hanging(outage, release) => {
                self.0.released(outage, release, |state| state.store(message)).await
            }
        }
    }
}

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let answer = change(&mut lock(&self.state));
        self.changed.send_replace(());
        answer
    }

    async fn wait_until<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(answer) = ready(&mut lock(&self.state)) {
                return answer;
            }
            // The sender lives as long as `self`: this never fails.
            _ = changed.changed().await;
        }
    }

    async fn released(
        &self,
        Outage(outage): Outage,
        Release(release): Release,
        mut then: impl FnMut(&mut State),
    ) -> Result<(), PublishError> {
        let answer = self.wait_until(|state| {
            if state.outages > outage {
                return Some(Err(connection_lost()));
            }
            (state.releases > release).then(|| {
                then(state);
                Ok(())
            })
        });
        let answer = answer.await;
        self.changed.send_replace(());
        answer
    }

    pub(super) fn with_queue<T>(&self, index: usize, use_it: impl FnOnce(&mut Queue) -> T) -> Option<T> {
        self.change(|state| state.queues.get_mut(index).map(use_it))
    }

    /// Waits until `use_it` gets something out of the queue; gets nothing while the broker is away.
    pub(super) async fn wait_for_queue<T>(
        &self,
        index: usize,
        mut use_it: impl FnMut(&mut Queue) -> Option<T>,
    ) -> T {
        self.wait_until(|state| {
            if state.away {
                return None;
            }
            state.queues.get_mut(index).and_then(&mut use_it)
        })
        .await
    }
}

impl State {
    fn accept(&mut self, message: &Message) -> Reply {
        let bytes = message.payload().len();
        if self.away {
            return Reply::Now(Err(PublishError::unavailable("the broker is away; it may come back")));
        }
        if let Some(max) = self.max_bytes.filter(|max| bytes > *max) {
            let problem = format!("the payload has {bytes} bytes; the broker takes {max}");
            return Reply::Now(Err(PublishError::rejected(problem)));
        }
        let fault = self.fault_for(message);
        let (outage, release) = (Outage(self.outages), Release(self.releases));
        match fault {
            Some(BrokerFault::Nack) => failed("the broker refused it; trying again may help"),
            Some(BrokerFault::Unroutable) => failed("no queue is bound; declare one"),
            Some(BrokerFault::Reject) => {
                Reply::Now(Err(PublishError::rejected("the broker was told to reject it")))
            }
            Some(BrokerFault::Hang) => Reply::Hanging(outage, release),
            stored => {
                self.store(message);
                match stored {
                    Some(BrokerFault::LoseConfirm) => failed("no confirmation came; it may be stored"),
                    Some(BrokerFault::DelayConfirm(delay)) => Reply::Delayed(delay, outage),
                    Some(BrokerFault::HoldConfirm) => Reply::Held(outage, release),
                    _ => Reply::Now(Ok(())),
                }
            }
        }
    }

    fn fault_for(&mut self, message: &Message) -> Option<BrokerFault> {
        let matching = |rule: &&mut Rule| rule.left > 0 && rule.pattern.matches(message.biz_type());
        let rule = self.rules.iter_mut().find(matching)?;
        rule.left -= 1;
        Some(rule.fault)
    }

    fn store(&mut self, message: &Message) {
        self.delivered.push(message.clone());
        self.queues.iter_mut().for_each(|queue| queue.push(message));
    }
}

fn failed(problem: &str) -> Reply {
    Reply::Now(Err(PublishError::failed(problem)))
}

fn connection_lost() -> PublishError {
    PublishError::unavailable("the broker went away before it confirmed; the message may be stored")
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
        let accept = |state: &mut State| messages.iter().map(|message| state.accept(message)).collect();
        let replies: Vec<Reply> = self.0.change(accept);
        tokio::task::yield_now().await;
        join_all(messages.iter().zip(replies).map(|(message, reply)| self.answer(message, reply))).await
    }

    async fn ready(&self) -> Result<(), PublishError> {
        match lock(&self.0.state).away {
            true => Err(PublishError::unavailable("the broker is away; it may come back")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publisher::PublishErrorKind::{self, Failed, Rejected, Unavailable};

    fn message(biz_type: &str) -> Message {
        Message::json(biz_type, "A-1", &1).unwrap()
    }

    async fn kind_of(broker: &MemoryBroker, biz_type: &str) -> Option<PublishErrorKind> {
        broker.publish(&message(biz_type)).await.err().map(|error| error.kind())
    }

    async fn turns() {
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn each_fault_answers_and_stores_as_it_says() {
        let cases = [
            (BrokerFault::Nack, Some(Failed), 0),
            (BrokerFault::Unroutable, Some(Failed), 0),
            (BrokerFault::Reject, Some(Rejected), 0),
            (BrokerFault::LoseConfirm, Some(Failed), 1),
            (BrokerFault::DelayConfirm(Duration::from_millis(1)), None, 1),
        ];
        for (fault, kind, stored) in cases {
            let broker = MemoryBroker::new();
            broker.fail("order.*", fault);
            assert_eq!(kind_of(&broker, "order.created").await, kind, "{fault:?}");
            assert_eq!(broker.delivered().len(), stored, "{fault:?}");
            assert_eq!(kind_of(&broker, "point.granted").await, None, "{fault:?}");
            broker.heal();
            assert_eq!(kind_of(&broker, "order.created").await, None, "{fault:?}");
        }
    }

    #[tokio::test]
    async fn fail_next_counts_messages_of_a_batch() {
        let broker = MemoryBroker::new();
        broker.fail_next(2, "#", BrokerFault::Nack);
        let answers = broker.publish_batch(&[message("a"), message("b"), message("c")]).await;
        assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, false, true]);
    }

    #[tokio::test]
    async fn too_large_is_rejected() {
        let broker = MemoryBroker::new().with_max_payload(3);
        let answer = broker.publish(&Message::binary("a", "b", vec![0; 4]).unwrap()).await;
        assert_eq!(answer.unwrap_err().kind(), Rejected);
        broker.publish(&Message::binary("a", "b", vec![0; 3]).unwrap()).await.unwrap();
    }

    #[tokio::test]
    async fn what_hangs_is_answered_at_release() {
        for (fault, stored_before) in [(BrokerFault::Hang, 0), (BrokerFault::HoldConfirm, 1)] {
            let broker = MemoryBroker::new();
            broker.fail("a", fault);
            let publishing = tokio::spawn({
                let broker = broker.clone();
                async move { broker.publish(&message("a")).await }
            });
            turns().await;
            assert!(!publishing.is_finished());
            assert_eq!(broker.delivered().len(), stored_before);
            broker.release();
            publishing.await.unwrap().unwrap();
            assert_eq!(broker.delivered().len(), 1);
        }
    }

    #[tokio::test]
    async fn going_away_cuts_what_hangs_and_coming_back_heals() {
        for fault in [BrokerFault::Hang, BrokerFault::HoldConfirm, BrokerFault::DelayConfirm(Duration::MAX)] {
            let broker = MemoryBroker::new();
            broker.fail_next(1, "a", fault);
            let publishing = tokio::spawn({
                let broker = broker.clone();
                async move { kind_of(&broker, "a").await }
            });
            turns().await;
            broker.go_away();
            assert_eq!(publishing.await.unwrap(), Some(Unavailable));
            assert_eq!(kind_of(&broker, "a").await, Some(Unavailable));
            assert_eq!(broker.ready().await.unwrap_err().kind(), Unavailable);
            broker.come_back();
            broker.ready().await.unwrap();
            assert_eq!(kind_of(&broker, "a").await, None);
        }
    }

    #[tokio::test]
    async fn every_subscription_gets_everything_in_order() {
        let broker = MemoryBroker::new();
        broker.publish(&message("a")).await.unwrap();
        let (early, late) = (broker.subscribe(), broker.subscribe());
        let consuming = tokio::spawn(async move {
            let mut seen = Vec::new();
            for _ in 0..3 {
                let delivery = early.next().await;
                seen.push(delivery.message().biz_type().to_owned());
                assert!(!delivery.redelivered() && delivery.ack());
            }
            seen
        });
        turns().await;
        broker.publish_batch(&[message("b"), message("c")]).await;
        assert_eq!(consuming.await.unwrap(), ["a", "b", "c"]);
        assert_eq!(late.backlog(), 3);
    }

    #[tokio::test]
    async fn unacknowledged_deliveries_come_again() {
        let broker = MemoryBroker::new();
        let queue = broker.subscribe();
        broker.publish_batch(&[message("a"), message("b"), message("c")]).await;
        drop(queue.next().await);
        let (again, second) = (queue.next().await, queue.next().await);
        assert!(again.redelivered() && again.message().biz_type() == "a");
        assert!(!second.redelivered() && second.ack());
        broker.go_away();
        assert!(!again.ack(), "its connection is gone");
        let waiting = tokio::spawn(async move { queue.next().await.message().biz_type().to_owned() });
        turns().await;
        assert!(!waiting.is_finished());
        broker.come_back();
        assert_eq!(waiting.await.unwrap(), "a");
    }
}
