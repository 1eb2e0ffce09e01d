use std::fmt;

use async_trait::async_trait;
use outbox_core::consumer::ReceiptError;
use outbox_core::{Receipt, ReceiptSink, slip};

use crate::config::AmqpConfig;
use crate::publisher::AmqpPublisher;
use crate::route::Route;

/// Sends receipts to a queue, from which the producer's [`ReceiptListener`](crate::ReceiptListener) takes them:
/// persistent, `mandatory`, confirmed, and all of a call in flight at once.
///
/// Receipts are ordinary messages of the `biz_type` `outbox.receipt`, one for each, so that consumers in other
/// languages can send them too. The body is JSON, and the contract is its version 1:
///
/// ```json
/// {"version": 1, "msg_id": "019b…", "group": "points", "claim_no": 3, "verdict": "handled"}
/// {"version": 1, "msg_id": "019b…", "group": "points", "claim_no": 3, "verdict": "rejected", "reason": "…"}
/// ```
///
/// | field | |
/// |---|---|
/// | `version` | 1; further fields do not change it |
/// | `msg_id` | of the message that was handled: its header `outbox-msg-id` |
/// | `group` | the consumer group, as the producer's policy names it |
/// | `claim_no` | the number in the message's header `outbox-claim-no`, or its digits as a string; it fences a rejection; 0 if missing |
/// | `verdict` | `handled`: the group's effect has happened; `rejected`: it never will |
/// | `reason` | of a rejection, for people; may be missing |
///
/// A receipt may be sent any number of times and in any order. Send it when the effect is durable, and
/// acknowledge the message only when the broker has confirmed the receipt.
pub struct AmqpReceiptSink {
    publisher: AmqpPublisher,
}

impl AmqpReceiptSink {
    /// Sends them to `queue`, whatever `amqp` says of routes. The queue must be there, or be in its topology as
    /// [`ReceiptListener`](crate::ReceiptListener) declares it: a receipt that no queue takes is an error, and its
    /// message is not acknowledged.
    #[must_use]
    pub fn new(amqp: AmqpConfig, queue: impl Into<String>) -> Self {
        Self::with_route(amqp, Route::to("").with_routing_key(queue))
    }

    /// Sends them to an exchange.
    #[must_use]
    pub fn with_route(amqp: AmqpConfig, route: Route) -> Self {
        Self { publisher: AmqpPublisher::new(amqp.with_router(move |_| route.clone())) }
    }
}

#[async_trait]
impl ReceiptSink for AmqpReceiptSink {
    async fn record(&self, receipts: &[Receipt]) -> Result<(), ReceiptError> {
        slip::send(&self.publisher, receipts).await
    }
}

impl fmt::Debug for AmqpReceiptSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpReceiptSink").field("publisher", &self.publisher).finish()
    }
}
