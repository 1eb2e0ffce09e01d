use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::decode::Decode;
use super::delivery::Delivery;
use crate::store::{StoreError, StoreErrorKind};

/// What a consumer group does with a message.
///
/// ```
/// use outbox_core::consumer::{Delivery, Handler, HandlerError};
///
/// #[derive(serde::Deserialize)]
/// struct OrderCreated { amount: u32 }
///
/// struct Points;
///
/// #[async_trait::async_trait]
/// impl Handler for Points {
///     type Payload = OrderCreated;
///
///     async fn handle(&self, order: Delivery<OrderCreated>) -> Result<(), HandlerError> {
///         if order.payload().amount == 0 {
///             return Err(HandlerError::reject("an order of nothing"));
///         }
///         grant_points(order.biz_id(), order.payload().amount).await?;
///         Ok(())
///     }
/// }
/// # async fn grant_points(_: &str, _: u32) -> Result<(), std::io::Error> { Ok(()) }
/// ```
///
/// # Contract for implementors
/// - `Ok` means that the effect has happened and is durable: the receipt goes out next.
/// - The future may be dropped at any await, when its lease is lost or its time is over, and the same message
///   may come again after that. What must not happen twice belongs into one transaction, with an inbox.
/// - A panic is a failure of this message only.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// What the payload is decoded to. A payload that cannot be is rejected without a call.
    type Payload: Decode;

    /// Handles one message.
    ///
    /// # Errors
    /// Says whether to try again. Every ordinary error, by `?`, means yes.
    async fn handle(&self, delivery: Delivery<Self::Payload>) -> Result<(), HandlerError>;
}

macro_rules! forward_handler {
    ($pointer:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<H: Handler + ?Sized> Handler for $pointer<H> {
            type Payload = H::Payload;
            async fn handle(&self, delivery: Delivery<H::Payload>) -> Result<(), HandlerError> {
                (**self).handle(delivery).await
            }
        }
    };
}
forward_handler!(Arc);
forward_handler!(Box);

/// A [`Handler`] from an async closure.
///
/// ```
/// use outbox_core::consumer::{Delivery, handler_fn};
///
/// let handler = handler_fn(async |order: Delivery<serde_json::Value>| {
///     println!("{} {}", order.msg_id(), order.payload());
///     Ok(())
/// });
/// ```
pub fn handler_fn<P, F, Fut>(function: F) -> HandlerFn<P, F>
where
    P: Decode + 'static,
    F: Fn(Delivery<P>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send,
{
    HandlerFn { function, payload: PhantomData }
}

/// What [`handler_fn`] makes.
pub struct HandlerFn<P, F> {
    function: F,
    payload: PhantomData<fn(P)>,
}

impl<P, F> fmt::Debug for HandlerFn<P, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerFn").finish_non_exhaustive()
    }
}

#[async_trait]
impl<P, F, Fut> Handler for HandlerFn<P, F>
where
    P: Decode + 'static,
    F: Fn(Delivery<P>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<(), HandlerError>> + Send,
{
    type Payload = P;

    async fn handle(&self, delivery: Delivery<P>) -> Result<(), HandlerError> {
        (self.function)(delivery).await
    }
}

/// Why a message was not handled, and whether to try again.
///
/// Not an [`Error`](StdError) itself, so that `?` turns every error into one, to be tried again.
pub struct HandlerError {
    pub(super) kind: Kind,
    cause: Box<dyn StdError + Send + Sync>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Retry { delay: Option<Duration> },
    Unavailable,
    Rejection,
}

impl HandlerError {
    /// It may go better later: an attempt is charged, and the retry policy says when.
    #[must_use]
    pub fn retry(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Retry { delay: None }, cause: cause.into() }
    }

    /// It may go better after `delay`: an attempt is charged.
    #[must_use]
    pub fn retry_after(delay: Duration, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Retry { delay: Some(delay) }, cause: cause.into() }
    }

    /// Something that every message needs is away: this one comes again later, and no attempt is charged, however
    /// long that lasts. `?` makes this of a [`StoreError`] that says so, as the inbox's does when its database
    /// cannot be reached.
    #[must_use]
    pub fn unavailable(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Unavailable, cause: cause.into() }
    }

    /// This group can never handle it: it goes to the dead letters at once, and the producer's row fails.
    #[must_use]
    pub fn reject(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self { kind: Kind::Rejection, cause: cause.into() }
    }

    /// Whether trying again is of no use.
    #[must_use]
    pub fn is_rejection(&self) -> bool {
        self.kind == Kind::Rejection
    }

    pub(super) fn cause(&self) -> &(dyn StdError + 'static) {
        self.cause.as_ref()
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let store_error = (&error as &dyn StdError).downcast_ref::<StoreError>();
        match store_error.map(StoreError::kind) {
            Some(StoreErrorKind::Unavailable) => Self::unavailable(error),
            _ => Self::retry(error),
        }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.cause.fmt(f)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandlerError").field("kind", &self.kind).field("cause", &self.cause).finish()
    }
}
