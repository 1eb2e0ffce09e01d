use std::borrow::Cow;

use outbox_core::{Message, PublishError, wire};
use rdkafka::message::{Header, OwnedHeaders};

use crate::line::Record;
use crate::route::Route;

/// The header of the MIME type, as most of Kafka's clients write it. It comes last, so that it counts where a
/// user has a header of that name.
pub(crate) const CONTENT_TYPE: &str = "content-type";
/// The longest name that Kafka lets a topic have, in bytes.
const TOPIC: usize = 249;

/// A message and where it goes.
pub(crate) struct Parcel<'a> {
    message: &'a Message,
    route: Cow<'a, Route>,
}

impl<'a> Parcel<'a> {
    pub(crate) fn new(message: &'a Message, route: Cow<'a, Route>) -> Self {
        Self { message, route }
    }

    pub(crate) fn topic(&self) -> &str {
        self.route.topic()
    }

    /// Rejects what Kafka cannot store under any circumstances. The record has the time of its sending: with
    /// the time of its creation, a message that waited for long would be past the topic's retention.
    pub(crate) fn record(&self) -> Result<Record<'_>, PublishError> {
        check_topic(self.topic())?;
        let record = Record::to(self.topic()).payload(self.message.payload().as_bytes());
        let record = record.headers(headers(self.message)?);
        Ok(match self.route.key(self.message) {
            Some(key) => record.key(key.as_bytes()),
            None => record,
        })
    }
}

fn check_topic(name: &str) -> Result<(), PublishError> {
    let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if (1..=TOPIC).contains(&name.len()) && name.bytes().all(legal) && name != "." && name != ".." {
        return Ok(());
    }
    Err(PublishError::rejected(format!(
        "{name:?} cannot be a topic: Kafka takes 1 to {TOPIC} letters, digits, dots, underscores and hyphens; \
         correct the route"
    )))
}

fn headers(message: &Message) -> Result<OwnedHeaders, PublishError> {
    let all = wire::headers(message);
    if let Some((name, _)) = all.iter().find(|(name, _)| name.contains('\0')) {
        return Err(PublishError::rejected(format!("the header name {name:?} holds a zero byte")));
    }
    let mut headers = OwnedHeaders::new_with_capacity(all.len() + 1);
    for (key, value) in &all {
        headers = headers.insert(Header { key, value: Some(value) });
    }
    Ok(headers.insert(Header { key: CONTENT_TYPE, value: Some(message.content_type()) }))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outbox_core::PublishErrorKind;

    use super::*;

    #[test]
    fn names_that_kafka_refuses_are_rejected() {
        for name in ["order.created", "a", "A_b-c.9", &"x".repeat(249)] {
            check_topic(name).unwrap();
        }
        for name in ["", ".", "..", "a b", "заказ", "a/b", "a\0", &"x".repeat(250)] {
            assert_eq!(check_topic(name).unwrap_err().kind(), PublishErrorKind::Rejected, "{name:?}");
        }
    }
}
