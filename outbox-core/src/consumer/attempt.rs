use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use tokio::time::timeout;

use super::decode::Decode;
use super::delivery::Delivery;
use super::handler::{Handler, HandlerError};
use crate::message::Message;

/// A handler of whatever payload.
#[async_trait]
pub(super) trait AnyHandler: Send + Sync + 'static {
    async fn handle_any(&self, message: Message, attempt: u32) -> Result<(), HandlerError>;
}

#[async_trait]
impl<H: Handler> AnyHandler for H {
    async fn handle_any(&self, message: Message, attempt: u32) -> Result<(), HandlerError> {
        let payload = H::Payload::decode(message.payload())?;
        self.handle(Delivery::new(message, payload, attempt)).await
    }
}

/// One run of a handler: a panic and a run without end are failures.
pub(super) async fn run(
    handler: &dyn AnyHandler,
    message: Message,
    attempt: u32,
    limit: Duration,
) -> Result<(), HandlerError> {
    let run = AssertUnwindSafe(async { handler.handle_any(message, attempt).await }).catch_unwind();
    match timeout(limit, run).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => {
            Err(HandlerError::retry(format!("the handler panicked: {}", words(panic.as_ref()))))
        }
        Err(_) => Err(HandlerError::retry(format!("the handler was stopped: it took longer than {limit:?}"))),
    }
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a text")
}
