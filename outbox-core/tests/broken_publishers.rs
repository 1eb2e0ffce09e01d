//! Publishers with one flaw each, and the cases of the publisher suite that catch it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod backends;
mod broken;

use std::sync::Arc;

use async_trait::async_trait;
use backends::BrokerFixture;
use broken::caught;
use outbox_core::conformance::{PublisherFixture, Received};
use outbox_core::memory::MemoryBroker;
use outbox_core::{Message, PublishError, PublishErrorKind, Publisher};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    ConfirmsWhatLeadsNowhere,
    ConfirmsWhileAway,
    FailsTheWholeBatch,
    AnswersInAnotherOrder,
    DropsTheLast,
    PublishesTwice,
    DropsHeaders,
    RetriesTheRejected,
}

caught! {
    run_publisher_case, broken,
    confirms_what_leads_nowhere_is_caught: ConfirmsWhatLeadsNowhere => [
        publisher::unroutable_is_failed,
        publisher::batch_is_answered_in_order_and_received,
        publisher::bad_messages_harm_no_batch_mate,
    ]
    confirms_while_away_is_caught: ConfirmsWhileAway => [publisher::gone_broker_is_unavailable_and_comes_back]
    fails_the_whole_batch_is_caught: FailsTheWholeBatch => [
        publisher::bad_messages_harm_no_batch_mate,
        publisher::batch_is_answered_in_order_and_received,
    ]
    answers_in_another_order_is_caught: AnswersInAnotherOrder => [
        publisher::batch_is_answered_in_order_and_received,
    ]
    drops_the_last_is_caught: DropsTheLast => [
        publisher::large_batch_is_received_whole,
        publisher::everything_confirmed_before_close_is_received,
    ]
    publishes_twice_is_caught: PublishesTwice => [
        publisher::confirmed_is_received_once_with_all_fields,
        publisher::concurrent_publishes_are_received_once_each,
    ]
    drops_headers_is_caught: DropsHeaders => [
        publisher::confirmed_is_received_once_with_all_fields,
        publisher::unicode_and_odd_texts_arrive,
    ]
    retries_the_rejected_is_caught: RetriesTheRejected => [publisher::too_large_is_rejected]
}

fn broken(flaw: Flaw) -> impl AsyncFn() -> Fixture {
    async move || {
        let inner = BrokerFixture::new().await;
        let broken = Broken { inner: inner.publisher(), flaw };
        Fixture { inner, broken: Arc::new(broken) }
    }
}

struct Broken {
    inner: Arc<MemoryBroker>,
    flaw: Flaw,
}

impl Broken {
    fn change(&self, answer: Result<(), PublishError>) -> Result<(), PublishError> {
        match (self.flaw, answer.as_ref().err().map(PublishError::kind)) {
            (Flaw::ConfirmsWhatLeadsNowhere, Some(PublishErrorKind::Failed)) => Ok(()),
            (Flaw::ConfirmsWhileAway, Some(PublishErrorKind::Unavailable)) => Ok(()),
            (Flaw::RetriesTheRejected, Some(PublishErrorKind::Rejected)) => {
                Err(PublishError::failed("again"))
            }
            _ => answer,
        }
    }

    fn to_publish(&self, messages: &[Message]) -> Vec<Message> {
        let mut messages = messages.to_vec();
        match self.flaw {
            Flaw::DropsTheLast => _ = messages.pop(),
            Flaw::PublishesTwice => messages.extend(messages.clone()),
            Flaw::DropsHeaders => messages.iter_mut().for_each(|message| *message = without_headers(message)),
            _ => {}
        }
        messages
    }
}

fn without_headers(message: &Message) -> Message {
    Message::new(message.biz_type(), message.biz_id(), message.payload().clone())
        .and_then(|bare| bare.with_msg_id(message.msg_id()))
        .and_then(|bare| bare.with_content_type(message.content_type()))
        .unwrap()
}

#[async_trait]
impl Publisher for Broken {
    async fn publish(&self, message: &Message) -> Result<(), PublishError> {
        self.publish_batch(std::slice::from_ref(message)).await.remove(0)
    }

    async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        let mut answers = self.inner.publish_batch(&self.to_publish(messages)).await;
        answers.truncate(messages.len());
        answers.resize_with(messages.len(), || Ok(()));
        if self.flaw == Flaw::AnswersInAnotherOrder {
            answers.reverse();
        }
        if self.flaw == Flaw::FailsTheWholeBatch && answers.iter().any(Result::is_err) {
            answers.fill_with(|| Err(PublishError::failed("one of the batch is bad")));
        }
        answers.into_iter().map(|answer| self.change(answer)).collect()
    }

    async fn ready(&self) -> Result<(), PublishError> {
        self.inner.ready().await
    }
}

struct Fixture {
    inner: BrokerFixture,
    broken: Arc<Broken>,
}

impl PublisherFixture for Fixture {
    type Publisher = Broken;

    fn publisher(&self) -> Arc<Broken> {
        Arc::clone(&self.broken)
    }

    fn biz_type(&self) -> String {
        self.inner.biz_type()
    }

    fn unroutable(&self) -> Option<String> {
        self.inner.unroutable()
    }

    fn too_large(&self) -> Option<usize> {
        self.inner.too_large()
    }

    async fn receive(&self) -> Option<Received> {
        self.inner.receive().await
    }

    async fn go_away(&self) -> bool {
        self.inner.go_away().await
    }

    async fn come_back(&self) {
        self.inner.come_back().await;
    }
}
