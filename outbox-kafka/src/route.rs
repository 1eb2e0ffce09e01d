use std::borrow::Cow;

use outbox_core::{Message, Router};

/// Where a message goes: a topic, and the key that chooses the partition.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Route {
    topic: String,
    key: Key,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    OfMessage,
    Fixed(String),
    None,
}

impl Route {
    /// To `topic`, with the message's ordering key as the record's key, else its `biz_id`.
    #[must_use]
    pub fn to(topic: impl Into<String>) -> Self {
        Self { topic: topic.into(), key: Key::OfMessage }
    }

    /// With this key instead. Records with the same key are in one partition, in the order of their sending.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> Self {
        self.key = Key::Fixed(key.into());
        self
    }

    /// Without a key: records are spread over all partitions, in no order.
    #[must_use]
    pub fn without_key(mut self) -> Self {
        self.key = Key::None;
        self
    }

    /// The topic's name.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    pub(crate) fn key<'a>(&'a self, message: &'a Message) -> Option<&'a str> {
        match &self.key {
            Key::OfMessage => Some(message.ordering_key().unwrap_or(message.biz_id())),
            Key::Fixed(key) => Some(key.as_str()),
            Key::None => None,
        }
        .filter(|key| !key.is_empty())
    }
}

/// The route of a message; without a default, to the topic named like its `biz_type`.
pub(crate) fn route<'a>(router: &'a Router<Route>, message: &Message) -> Cow<'a, Route> {
    router.route(message).unwrap_or_else(|| Cow::Owned(Route::to(message.biz_type())))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_the_ordering_key_else_the_biz_id_unless_the_route_says_otherwise() {
        let plain = Message::binary("a", "order-1", "").unwrap();
        let ordered = plain.clone().with_ordering_key("customer-7").unwrap();
        assert_eq!(Route::to("t").key(&plain), Some("order-1"));
        assert_eq!(Route::to("t").key(&ordered), Some("customer-7"));
        assert_eq!(Route::to("t").with_key("k").key(&ordered), Some("k"));
        assert_eq!(Route::to("t").without_key().key(&ordered), None);
    }

    #[test]
    fn without_a_default_the_topic_is_the_biz_type() {
        let message = Message::binary("order.paid", "1", "").unwrap();
        let mut router = Router::default();
        assert_eq!(route(&router, &message).topic(), "order.paid");
        router.set_default(Route::to("events"));
        assert_eq!(route(&router, &message).topic(), "events");
    }
}
