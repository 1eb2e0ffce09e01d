use std::future::{Future, pending};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use outbox::{Message, PublishError, Publisher};
use tokio::sync::watch;

/// The two worst moments for a relay to die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// It has claimed messages; the broker has not seen them.
    BeforePublish,
    /// The broker has confirmed them; the database does not know.
    AfterPublish,
}

/// A publisher that can be told to stop for good at a certain moment, so that its relay is killed exactly
/// there and not by luck.
pub struct Gate {
    publisher: Arc<dyn Publisher>,
    closed: Mutex<Option<Moment>>,
    held: watch::Sender<usize>,
}

impl Gate {
    pub fn new(publisher: Arc<dyn Publisher>) -> Self {
        Self { publisher, closed: Mutex::default(), held: watch::Sender::default() }
    }

    /// From now on nothing gets past this moment.
    pub fn close_at(&self, moment: Moment) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = Some(moment);
    }

    /// Waits until messages are held; answers how many.
    pub async fn holding(&self) -> usize {
        let mut held = self.held.subscribe();
        held.wait_for(|messages| *messages > 0).await.map_or(0, |messages| *messages)
    }

    async fn around<T>(&self, messages: usize, publishing: impl Future<Output = T>) -> T {
        self.pass(Moment::BeforePublish, messages).await;
        let answer = publishing.await;
        self.pass(Moment::AfterPublish, messages).await;
        answer
    }

    async fn pass(&self, moment: Moment, messages: usize) {
        if *self.closed.lock().unwrap_or_else(PoisonError::into_inner) == Some(moment) {
            self.held.send_modify(|held| *held += messages);
            pending().await
        }
    }
}

#[async_trait]
impl Publisher for Gate {
    async fn publish(&self, message: &Message) -> Result<(), PublishError> {
        self.around(1, self.publisher.publish(message)).await
    }

    async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        self.around(messages.len(), self.publisher.publish_batch(messages)).await
    }

    async fn ready(&self) -> Result<(), PublishError> {
        self.publisher.ready().await
    }

    async fn close(&self) -> Result<(), PublishError> {
        self.publisher.close().await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use outbox::memory::MemoryBroker;
    use tokio::time::timeout;

    use super::*;

    /// Publishes two messages through a gate that is closed at `moment`; how many the broker then has.
    async fn stored(moment: Moment) -> usize {
        let broker = MemoryBroker::new();
        let gate = Gate::new(Arc::new(broker.clone()));
        gate.close_at(moment);
        let messages = [1, 2].map(|n| Message::json("order.created", "A-1", &n).unwrap());
        tokio::select! {
            _ = gate.publish_batch(&messages) => panic!("got through"),
            held = gate.holding() => assert_eq!(held, 2),
        }
        broker.delivered().len()
    }

    #[tokio::test]
    async fn closed_before_publish_the_broker_sees_nothing() {
        assert_eq!(stored(Moment::BeforePublish).await, 0);
    }

    #[tokio::test]
    async fn closed_after_publish_the_broker_has_everything() {
        assert_eq!(stored(Moment::AfterPublish).await, 2);
    }

    #[tokio::test]
    async fn open_it_lets_through_and_holds_nothing() {
        let gate = Gate::new(Arc::new(MemoryBroker::new()));
        gate.publish(&Message::json("order.created", "A-1", &1).unwrap()).await.unwrap();
        assert!(timeout(Duration::from_millis(50), gate.holding()).await.is_err());
    }
}
