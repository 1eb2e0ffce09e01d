use std::error::Error as StdError;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;

use crate::message::Message;

/// A way to a broker. Implement [`publish`](Self::publish) and [`ready`](Self::ready) for an in-house one.
///
/// # Contract for implementors
/// - `Ok` means that the broker stored the message durably and could route it; nothing less.
/// - A time-out is not proof of absence: say [`PublishError::failed`], and the message goes out again.
/// - Dropping a returned future may leave the message published; the relay counts it as not known.
/// - Bring an end to every call yourself, within half the relay's lease (30 s by default).
/// - Never put payloads or credentials into an error.
///
/// ```
/// use outbox_core::{Message, PublishError, Publisher};
///
/// struct Stdout;
///
/// #[async_trait::async_trait]
/// impl Publisher for Stdout {
///     async fn publish(&self, message: &Message) -> Result<(), PublishError> {
///         println!("{} {}", message.biz_type(), message.msg_id());
///         Ok(())
///     }
///     async fn ready(&self) -> Result<(), PublishError> {
///         Ok(())
///     }
/// }
/// ```
#[async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Publishes one message and waits for the broker's confirmation.
    ///
    /// # Errors
    /// See the three kinds of [`PublishError`].
    async fn publish(&self, message: &Message) -> Result<(), PublishError>;

    /// Publishes a batch with all confirmations in flight together, and answers for each, in order. One bad
    /// message must not harm its batch-mates. The default calls [`publish`](Self::publish) for all at once,
    /// which promises no order among them.
    async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        join_all(messages.iter().map(|message| self.publish(message))).await
    }

    /// Whether publishing can work now: the relay asks while its breaker is open.
    ///
    /// # Errors
    /// [`PublishError::unavailable`], saying what is wrong.
    async fn ready(&self) -> Result<(), PublishError>;

    /// Sends what is buffered and ends connections; called once, after the last publish. Does nothing by
    /// default.
    ///
    /// # Errors
    /// What could not be ended in good order.
    async fn close(&self) -> Result<(), PublishError> {
        Ok(())
    }
}

macro_rules! forward_publisher {
    ($pointer:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<P: Publisher + ?Sized> Publisher for $pointer<P> {
            async fn publish(&self, message: &Message) -> Result<(), PublishError> {
                (**self).publish(message).await
            }
            async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
                (**self).publish_batch(messages).await
            }
            async fn ready(&self) -> Result<(), PublishError> {
                (**self).ready().await
            }
            async fn close(&self) -> Result<(), PublishError> {
                (**self).close().await
            }
        }
    };
}
forward_publisher!(Arc);
forward_publisher!(Box);

/// What a failed publication means for the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PublishErrorKind {
    /// Never acceptable (too large, not encodable): the message fails at once.
    Rejected,
    /// This message did not go, or is not known to have gone (nack, unroutable, time-out): an attempt is
    /// charged and it is tried again by its retry policy.
    Failed,
    /// The broker cannot be reached or takes nothing: nothing is charged, the relay's breaker opens.
    Unavailable,
}

/// Why a message was not published.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct PublishError {
    kind: PublishErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl PublishError {
    /// A message that will never be acceptable.
    #[must_use]
    pub fn rejected(message: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::Rejected, message)
    }

    /// An attempt that failed, or whose end is not known.
    #[must_use]
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::Failed, message)
    }

    /// A broker that cannot be used now.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(PublishErrorKind::Unavailable, message)
    }

    fn new(kind: PublishErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What it means for the message.
    #[must_use]
    pub fn kind(&self) -> PublishErrorKind {
        self.kind
    }
}
