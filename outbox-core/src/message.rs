use std::collections::BTreeMap;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::payload::Payload;

/// What is to be sent, written in the same transaction as the business data.
///
/// ```
/// use outbox_core::Message;
/// use serde_json::json;
///
/// let message = Message::json("order.created", "A-1001", &json!({"amount": 990}))?
///     .with_header("tenant", "acme")?
///     .with_ordering_key("A-1001")?;
/// assert_eq!(message.biz_type(), "order.created");
/// # Ok::<(), outbox_core::InvalidMessage>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    msg_id: String,
    biz_type: String,
    biz_id: String,
    payload: Payload,
    content_type: Option<String>,
    headers: BTreeMap<String, String>,
    ordering_key: Option<String>,
    deliver_after: Option<Timestamp>,
    created_at: Option<Timestamp>,
    claim_no: u64,
}

impl Message {
    /// A message with a new UUIDv7 as its `msg_id`.
    ///
    /// # Errors
    /// [`InvalidMessage`] names the field and the limit it breaks.
    pub fn new(
        biz_type: impl Into<String>,
        biz_id: impl Into<String>,
        payload: Payload,
    ) -> Result<Self, InvalidMessage> {
        let (biz_type, biz_id) = (biz_type.into(), biz_id.into());
        check_text("biz_type", &biz_type, Limits::BIZ_TYPE)?;
        check_text("biz_id", &biz_id, Limits::BIZ_ID)?;
        Ok(Self {
            msg_id: Uuid::now_v7().to_string(),
            biz_type,
            biz_id,
            payload,
            content_type: None,
            headers: BTreeMap::new(),
            ordering_key: None,
            deliver_after: None,
            created_at: None,
            claim_no: 0,
        })
    }

    /// A message whose payload is `value` as JSON.
    ///
    /// # Errors
    /// As [`Message::new`] and [`Payload::json`].
    pub fn json<T: Serialize + ?Sized>(
        biz_type: impl Into<String>,
        biz_id: impl Into<String>,
        value: &T,
    ) -> Result<Self, InvalidMessage> {
        Self::new(biz_type, biz_id, Payload::json(value)?)
    }

    /// A message whose payload is bytes; name their type with [`with_content_type`](Self::with_content_type).
    ///
    /// # Errors
    /// As [`Message::new`].
    pub fn binary(
        biz_type: impl Into<String>,
        biz_id: impl Into<String>,
        bytes: impl Into<Bytes>,
    ) -> Result<Self, InvalidMessage> {
        Self::new(biz_type, biz_id, Payload::Binary(bytes.into()))
    }

    /// Replaces the generated `msg_id`, for example by one that makes a retried request idempotent.
    ///
    /// # Errors
    /// [`InvalidMessage`] when empty, longer than 64 bytes, or with control characters.
    pub fn with_msg_id(mut self, msg_id: impl Into<String>) -> Result<Self, InvalidMessage> {
        self.msg_id = msg_id.into();
        check_text("msg_id", &self.msg_id, Limits::MSG_ID)?;
        Ok(self)
    }

    /// The MIME type; the default is `application/json` or `application/octet-stream`, by payload.
    ///
    /// # Errors
    /// [`InvalidMessage`] when empty, longer than 128 bytes, or with control characters.
    pub fn with_content_type(mut self, content_type: impl Into<String>) -> Result<Self, InvalidMessage> {
        let content_type = content_type.into();
        check_text("content_type", &content_type, Limits::CONTENT_TYPE)?;
        self.content_type = Some(content_type);
        Ok(self)
    }

    /// Adds a header, or replaces the one of that name. Names that start with `outbox-` are the framework's.
    ///
    /// # Errors
    /// [`InvalidMessage`] when the name is empty, reserved or longer than 128 bytes, when the value has a
    /// NUL, or when all headers together pass 16 KiB.
    pub fn with_header(
        mut self,
        name: impl Into<String>,
        value: impl Into<String>,
    ) -> Result<Self, InvalidMessage> {
        self.headers.insert(name.into(), value.into());
        check_headers(&self.headers)?;
        Ok(self)
    }

    /// Messages with the same ordering key are first published in the order they were enqueued.
    ///
    /// # Errors
    /// [`InvalidMessage`] when empty, longer than 255 bytes, or with control characters.
    pub fn with_ordering_key(mut self, key: impl Into<String>) -> Result<Self, InvalidMessage> {
        let key = key.into();
        check_text("ordering_key", &key, Limits::ORDERING_KEY)?;
        self.ordering_key = Some(key);
        Ok(self)
    }

    /// Not to be delivered before `at`, by the store's clock.
    #[must_use]
    pub fn with_deliver_after(mut self, at: Timestamp) -> Self {
        self.deliver_after = Some(at);
        self
    }

    /// Rebuilds a message from what a store holds. Nothing is validated: the row may come from another
    /// program, and refusing to read it would hide it.
    #[must_use]
    pub fn from_stored(stored: StoredMessage) -> Self {
        Self {
            msg_id: stored.msg_id,
            biz_type: stored.biz_type,
            biz_id: stored.biz_id,
            payload: stored.payload,
            content_type: stored.content_type,
            headers: stored.headers,
            ordering_key: stored.ordering_key,
            deliver_after: None,
            created_at: Some(stored.created_at),
            claim_no: stored.claim_no,
        }
    }

    /// Rebuilds a message from what a broker delivered, which may not say when it was written.
    pub(crate) fn received(stored: StoredMessage, created_at: Option<Timestamp>) -> Self {
        Self { created_at, ..Self::from_stored(stored) }
    }

    /// The global id, and with the consumer group the key of deduplication.
    #[must_use]
    pub fn msg_id(&self) -> &str {
        &self.msg_id
    }

    /// Event type and default routing key.
    #[must_use]
    pub fn biz_type(&self) -> &str {
        &self.biz_type
    }

    /// Business key, for people and searches; never a key of deduplication.
    #[must_use]
    pub fn biz_id(&self) -> &str {
        &self.biz_id
    }

    /// The body.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// Decodes a JSON payload.
    ///
    /// # Errors
    /// What `serde_json` says.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        self.payload.decode()
    }

    /// The MIME type, given or by payload.
    #[must_use]
    pub fn content_type(&self) -> &str {
        self.content_type.as_deref().unwrap_or(self.payload.default_content_type())
    }

    /// The MIME type, only where one was given.
    #[must_use]
    pub fn explicit_content_type(&self) -> Option<&str> {
        self.content_type.as_deref()
    }

    /// The headers, without the framework's own.
    #[must_use]
    pub fn headers(&self) -> &BTreeMap<String, String> {
        &self.headers
    }

    /// The ordering key.
    #[must_use]
    pub fn ordering_key(&self) -> Option<&str> {
        self.ordering_key.as_deref()
    }

    /// The earliest time of delivery, as asked for at enqueue; `None` on a message read back from a store,
    /// where it has become the row's `next_retry_time`.
    #[must_use]
    pub fn deliver_after(&self) -> Option<Timestamp> {
        self.deliver_after
    }

    /// When the row was written; `None` before it is.
    #[must_use]
    pub fn created_at(&self) -> Option<Timestamp> {
        self.created_at
    }

    /// The number of the claim under which it is being published; 0 before the first.
    #[must_use]
    pub fn claim_no(&self) -> u64 {
        self.claim_no
    }

    /// Checks everything again, and the payload's size; stores call it at enqueue.
    ///
    /// # Errors
    /// [`InvalidMessage`] names the field and the limit it breaks.
    pub fn validate(&self, limits: &Limits) -> Result<(), InvalidMessage> {
        check_text("msg_id", &self.msg_id, Limits::MSG_ID)?;
        check_text("biz_type", &self.biz_type, Limits::BIZ_TYPE)?;
        check_text("biz_id", &self.biz_id, Limits::BIZ_ID)?;
        if let Some(content_type) = &self.content_type {
            check_text("content_type", content_type, Limits::CONTENT_TYPE)?;
        }
        if let Some(key) = &self.ordering_key {
            check_text("ordering_key", key, Limits::ORDERING_KEY)?;
        }
        check_headers(&self.headers)?;
        if self.payload.len() > limits.payload {
            return Err(InvalidMessage::new(
                "payload",
                format!("has {} bytes; the limit is {}", self.payload.len(), limits.payload),
            ));
        }
        Ok(())
    }
}

/// What a store holds of a message; the argument of [`Message::from_stored`].
#[derive(Debug, Clone)]
#[expect(missing_docs, reason = "the fields are those of Message")]
pub struct StoredMessage {
    pub msg_id: String,
    pub biz_type: String,
    pub biz_id: String,
    pub payload: Payload,
    pub content_type: Option<String>,
    pub headers: BTreeMap<String, String>,
    pub ordering_key: Option<String>,
    pub created_at: Timestamp,
    pub claim_no: u64,
}

/// Sizes in bytes. All but the payload's are fixed, because they are widths of columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    payload: usize,
}

impl Limits {
    /// `msg_id`: 64.
    pub const MSG_ID: usize = 64;
    /// `biz_type`: 128; brokers take routing keys and topics of up to 255 or 249.
    pub const BIZ_TYPE: usize = 128;
    /// `biz_id`: 255.
    pub const BIZ_ID: usize = 255;
    /// `ordering_key`: 255.
    pub const ORDERING_KEY: usize = 255;
    /// `content_type`: 128.
    pub const CONTENT_TYPE: usize = 128;
    /// One header's name: 128.
    pub const HEADER_NAME: usize = 128;
    /// All headers together, names and values: 16 KiB.
    pub const HEADERS: usize = 16 * 1024;

    /// Another payload limit; the default is 1 MiB. Brokers have limits of their own.
    #[must_use]
    pub fn with_payload(mut self, bytes: usize) -> Self {
        self.payload = bytes;
        self
    }

    /// The payload limit.
    #[must_use]
    pub fn payload(&self) -> usize {
        self.payload
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { payload: 1024 * 1024 }
    }
}

/// A message that no store accepts: which field, and what is wrong with it. Trying again does not help.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid message: {field} {problem}")]
pub struct InvalidMessage {
    field: &'static str,
    problem: String,
}

impl InvalidMessage {
    pub(crate) fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self { field, problem: problem.into() }
    }

    /// The field's name.
    #[must_use]
    pub fn field(&self) -> &'static str {
        self.field
    }
}

fn check_text(field: &'static str, value: &str, max: usize) -> Result<(), InvalidMessage> {
    if value.is_empty() {
        return Err(InvalidMessage::new(field, "is empty"));
    }
    if value.len() > max {
        return Err(InvalidMessage::new(field, format!("has {} bytes; the limit is {max}", value.len())));
    }
    if value.chars().any(char::is_control) {
        return Err(InvalidMessage::new(field, "has a control character"));
    }
    Ok(())
}

fn check_headers(headers: &BTreeMap<String, String>) -> Result<(), InvalidMessage> {
    let mut total = 0;
    for (name, value) in headers {
        check_text("header name", name, Limits::HEADER_NAME)?;
        if name.starts_with(crate::wire::RESERVED_PREFIX) {
            return Err(InvalidMessage::new(
                "header name",
                format!("{name:?} is reserved: names that start with `outbox-` are the framework's"),
            ));
        }
        if value.contains('\0') {
            return Err(InvalidMessage::new("headers", format!("hold a NUL character in {name:?}")));
        }
        total += name.len() + value.len();
    }
    if total > Limits::HEADERS {
        return Err(InvalidMessage::new(
            "headers",
            format!("have {total} bytes; the limit is {}", Limits::HEADERS),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message::json("order.created", "A-1", &1).unwrap()
    }

    #[test]
    fn ids_are_unique_uuids_that_sort_by_time() {
        let (a, b) = (message(), message());
        assert!(a.msg_id() < b.msg_id());
        assert_eq!(Uuid::parse_str(a.msg_id()).unwrap().get_version_num(), 7);
    }

    #[test]
    fn every_error_names_field_and_limit() {
        let long = "x".repeat(300);
        let cases: [(InvalidMessage, &str, &str); 8] = [
            (Message::json("", "b", &1).unwrap_err(), "biz_type", "empty"),
            (Message::json(&long, "b", &1).unwrap_err(), "biz_type", "128"),
            (Message::json("a", &long, &1).unwrap_err(), "biz_id", "255"),
            (Message::json("a", "b\n", &1).unwrap_err(), "biz_id", "control"),
            (message().with_msg_id(&long).unwrap_err(), "msg_id", "64"),
            (message().with_ordering_key(&long).unwrap_err(), "ordering_key", "255"),
            (message().with_header("outbox-x", "1").unwrap_err(), "header name", "reserved"),
            (message().with_header("x", "v".repeat(17_000)).unwrap_err(), "headers", "16384"),
        ];
        for (error, field, part) in cases {
            assert_eq!(error.field(), field);
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn payload_limit_is_inclusive_and_settable() {
        let limits = Limits::default().with_payload(4);
        let of = |n: usize| Message::binary("a", "b", vec![0; n]).unwrap().validate(&limits);
        assert!(of(4).is_ok());
        let error = of(5).unwrap_err();
        assert!(error.to_string().contains("5 bytes") && error.to_string().contains("limit is 4"), "{error}");
    }
}
