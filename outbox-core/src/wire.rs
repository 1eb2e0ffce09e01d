//! How a message travels: the payload is the body, everything else goes in headers. Brokers with fields of
//! their own for some of it (AMQP's `message_id`, `type`) fill those as well.

use crate::message::Message;

/// Header names that start with this are the framework's; `enqueue` refuses them from users.
pub const RESERVED_PREFIX: &str = "outbox-";
/// The message's global id.
pub const MSG_ID: &str = "outbox-msg-id";
/// The message's event type.
pub const BIZ_TYPE: &str = "outbox-biz-type";
/// The message's business key.
pub const BIZ_ID: &str = "outbox-biz-id";
/// The claim under which it was published; a consumer's rejection quotes it.
pub const CLAIM_NO: &str = "outbox-claim-no";
/// When it was enqueued, RFC 3339.
pub const CREATED_AT: &str = "outbox-created-at";
/// Its ordering key, where it has one.
pub const ORDERING_KEY: &str = "outbox-ordering-key";

/// All headers that a published message carries: the user's and the framework's.
#[must_use]
pub fn headers(message: &Message) -> Vec<(&str, String)> {
    let mut headers: Vec<(&str, String)> =
        message.headers().iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
    headers.push((MSG_ID, message.msg_id().to_owned()));
    headers.push((BIZ_TYPE, message.biz_type().to_owned()));
    headers.push((BIZ_ID, message.biz_id().to_owned()));
    headers.push((CLAIM_NO, message.claim_no().to_string()));
    if let Some(at) = message.created_at() {
        headers.push((CREATED_AT, at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true)));
    }
    if let Some(key) = message.ordering_key() {
        headers.push((ORDERING_KEY, key.to_owned()));
    }
    headers
}
