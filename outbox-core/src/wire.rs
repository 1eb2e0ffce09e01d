//! How a message travels: the payload is the body, everything else goes in headers. Brokers with fields of
//! their own for some of it (AMQP's `message_id`, `type`) fill those as well.

pub use crate::epitaph::Epitaph;

use std::collections::BTreeMap;

use bytes::Bytes;
use chrono::DateTime;

use crate::message::{Message, StoredMessage};
use crate::payload::{JsonText, Payload};

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
/// Attempts of a consumer group that were charged to the message so far; a message that the group has delivered
/// to itself again carries it.
pub const ATTEMPTS: &str = "outbox-attempts";

/// On a dead letter: why it was given up, for people.
pub const DEAD_REASON: &str = "outbox-dead-reason";
/// On a dead letter: the consumer group that gave it up.
pub const DEAD_GROUP: &str = "outbox-dead-group";
/// On a dead letter: when that was, RFC 3339.
pub const DEAD_AT: &str = "outbox-dead-at";
/// On a dead letter: how often the group's handler was run, as far as it is known.
pub const DEAD_ATTEMPTS: &str = "outbox-dead-attempts";

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

/// What a broker delivered.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    /// All headers that are text.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
    /// The MIME type of the body.
    pub content_type: Option<String>,
    /// The broker's own field for the id, where it has one; counts if there is no header.
    pub msg_id: Option<String>,
    /// The broker's own word for the event type: a type field, routing key or topic; counts if there is no
    /// header.
    pub biz_type: Option<String>,
}

/// A message without an id: it cannot be told from others, so it cannot be handled once. Dead-letter it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the message has no id: neither a header `outbox-msg-id` nor the broker's own; its sender must set one"
)]
pub struct NoMsgId;

/// The counterpart of [`headers`]. Takes messages of any sender: what is not said, or not as it should be, is
/// left empty, and a body is JSON if its type says so and it is text.
///
/// # Errors
/// When there is no id.
pub fn message(parts: Parts) -> Result<Message, NoMsgId> {
    let (reserved, user): (BTreeMap<_, _>, BTreeMap<_, _>) =
        parts.headers.into_iter().partition(|(name, _)| name.starts_with(RESERVED_PREFIX));
    let said = |name: &str| reserved.get(name).filter(|value| !value.is_empty()).cloned();
    let created_at = said(CREATED_AT).and_then(|at| DateTime::parse_from_rfc3339(&at).ok());
    let payload = payload(parts.body, parts.content_type.as_deref());
    Ok(Message::received(
        StoredMessage {
            msg_id: said(MSG_ID).or(parts.msg_id.filter(|id| !id.is_empty())).ok_or(NoMsgId)?,
            biz_type: said(BIZ_TYPE).or(parts.biz_type).unwrap_or_default(),
            biz_id: said(BIZ_ID).unwrap_or_default(),
            content_type: parts.content_type.filter(|given| given != payload.default_content_type()),
            payload,
            headers: user,
            ordering_key: said(ORDERING_KEY),
            created_at: created_at.unwrap_or_default().to_utc(),
            claim_no: said(CLAIM_NO).and_then(|no| no.parse().ok()).unwrap_or(0),
        },
        created_at.map(|at| at.to_utc()),
    ))
}

/// The attempts that [`ATTEMPTS`] says; 0 where it says nothing.
#[must_use]
pub fn attempts(headers: &[(String, String)]) -> u32 {
    headers.iter().find(|(name, _)| name == ATTEMPTS).and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

fn payload(body: Bytes, content_type: Option<&str>) -> Payload {
    match std::str::from_utf8(&body) {
        Ok(text) if content_type.is_some_and(is_json) => {
            Payload::Json(JsonText::from_stored(text.to_owned()))
        }
        _ => Payload::Binary(body),
    }
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What an adapter receives of a message that an adapter published.
    fn parts(message: &Message) -> Parts {
        Parts {
            headers: headers(message).into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            body: Bytes::copy_from_slice(message.payload().as_bytes()),
            content_type: Some(message.content_type().to_owned()),
            msg_id: Some("the broker's".to_owned()),
            biz_type: Some("the broker's".to_owned()),
        }
    }

    prop_compose! {
        fn any_message()(
            ids in ("[ -~]{1,64}", "[ -~]{1,128}", "\\PC{1,60}"),
            payload in prop_oneof![
                any::<Vec<u8>>().prop_map(|bytes| Payload::Binary(bytes.into())),
                any::<String>().prop_map(|text| Payload::Json(JsonText::from_stored(serde_json::to_string(&text).unwrap()))),
            ],
            headers in prop::collection::btree_map("[a-z-]{1,9}", "\\PC{0,20}", 0..4),
            ordering_key in prop::option::of("\\PC{1,20}"),
            micros in any::<u32>(),
            claim_no in any::<u64>(),
        ) -> Message {
            Message::from_stored(StoredMessage {
                msg_id: ids.0,
                biz_type: ids.1,
                biz_id: ids.2,
                payload,
                content_type: None,
                headers,
                ordering_key,
                created_at: DateTime::from_timestamp_micros(i64::from(micros) * 1_000_003).unwrap(),
                claim_no,
            })
        }
    }

    proptest! {
        #[test]
        fn what_is_published_is_received_as_it_was(message in any_message()) {
            prop_assert_eq!(super::message(parts(&message)).unwrap(), message);
        }

        #[test]
        fn whatever_has_an_id_is_received(
            headers in prop::collection::vec(("outbox-(msg-id|biz-type|biz-id|claim-no|created-at|x)|[a-z]", any::<String>()), 0..9),
            body in any::<Vec<u8>>(),
            content_type in prop::option::of(any::<String>()),
            msg_id in "[^\u{0}]{1,99}",
        ) {
            let body = Bytes::from(body);
            let parts = Parts { headers, body: body.clone(), content_type, msg_id: Some(msg_id), biz_type: None };
            let message = super::message(parts).unwrap();
            prop_assert!(!message.msg_id().is_empty());
            prop_assert_eq!(message.payload().as_bytes(), &body[..]);
            prop_assert!(message.headers().keys().all(|name| !name.starts_with(RESERVED_PREFIX)));
        }
    }

    #[test]
    fn a_foreign_message_counts_with_what_the_broker_says() {
        let parts = Parts {
            headers: vec![("tenant".to_owned(), "acme".to_owned()), (CLAIM_NO.to_owned(), "-1".to_owned())],
            body: Bytes::from_static(b"{\"a\": 1}"),
            content_type: Some("application/vnd.order+json; charset=utf-8".to_owned()),
            msg_id: Some("m1".to_owned()),
            biz_type: Some("order.created".to_owned()),
        };
        let message = super::message(parts).unwrap();
        assert_eq!((message.msg_id(), message.biz_type(), message.biz_id()), ("m1", "order.created", ""));
        assert_eq!((message.claim_no(), message.created_at()), (0, None));
        assert!(matches!(message.payload(), Payload::Json(_)));
        assert_eq!(message.content_type(), "application/vnd.order+json; charset=utf-8");
        assert_eq!(message.headers().len(), 1);
    }

    #[test]
    fn a_message_without_an_id_is_an_error() {
        for msg_id in [None, Some(String::new())] {
            let headers = vec![(MSG_ID.to_owned(), String::new())];
            assert_eq!(super::message(Parts { headers, msg_id, ..Parts::default() }).unwrap_err(), NoMsgId);
        }
    }

    #[test]
    fn attempts_are_read_where_they_are_a_number() {
        let headers =
            |value: &str| [("x".to_owned(), "7".to_owned()), (ATTEMPTS.to_owned(), value.to_owned())];
        assert_eq!(attempts(&headers("3")), 3);
        assert_eq!(attempts(&headers("many")), 0);
        assert_eq!(attempts(&[]), 0);
    }
}
