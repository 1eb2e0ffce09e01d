use std::collections::BTreeMap;

use crate::clock::Timestamp;
use crate::message::Message;

/// A message in the hands of a handler, as it was enqueued, with its payload decoded.
#[derive(Debug, Clone)]
pub struct Delivery<P> {
    message: Message,
    payload: P,
    attempt: u32,
}

impl<P> Delivery<P> {
    /// A delivery as a consumer makes it; for tests of handlers.
    #[must_use]
    pub fn new(message: Message, payload: P, attempt: u32) -> Self {
        Self { message, payload, attempt }
    }

    /// The payload.
    #[must_use]
    pub fn payload(&self) -> &P {
        &self.payload
    }

    /// The payload, to keep.
    #[must_use]
    pub fn into_payload(self) -> P {
        self.payload
    }

    /// Which attempt of this group this is, from 1. Counts failures, not redeliveries after a crash.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The message, with the payload as it travelled.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// The global id, and with the group the key of deduplication.
    #[must_use]
    pub fn msg_id(&self) -> &str {
        self.message.msg_id()
    }

    /// The event type.
    #[must_use]
    pub fn biz_type(&self) -> &str {
        self.message.biz_type()
    }

    /// The business key; never a key of deduplication.
    #[must_use]
    pub fn biz_id(&self) -> &str {
        self.message.biz_id()
    }

    /// The producer's headers.
    #[must_use]
    pub fn headers(&self) -> &BTreeMap<String, String> {
        self.message.headers()
    }

    /// One of the producer's headers.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers().get(name).map(String::as_str)
    }

    /// When it was enqueued; `None` on a message that does not say.
    #[must_use]
    pub fn created_at(&self) -> Option<Timestamp> {
        self.message.created_at()
    }

    /// The claim under which it was published; 0 on a message that does not say.
    #[must_use]
    pub fn claim_no(&self) -> u64 {
        self.message.claim_no()
    }
}
