use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use outbox_core::{Message, Pattern};

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

type Choose = dyn Fn(&Message) -> Route + Send + Sync;

/// Finds the route of a message: by a function, else by the first rule that matches, else the default, else to
/// the topic named like its `biz_type`.
#[derive(Clone, Default)]
pub(crate) struct Router {
    default: Option<Route>,
    rules: Vec<(Pattern, Route)>,
    choose: Option<Arc<Choose>>,
}

impl Router {
    pub(crate) fn set_default(&mut self, route: Route) {
        self.default = Some(route);
    }

    pub(crate) fn add_rule(&mut self, pattern: Pattern, route: Route) {
        self.rules.push((pattern, route));
    }

    pub(crate) fn set_choose(&mut self, choose: Arc<Choose>) {
        self.choose = Some(choose);
    }

    pub(crate) fn route(&self, message: &Message) -> Cow<'_, Route> {
        if let Some(choose) = &self.choose {
            return Cow::Owned(choose(message));
        }
        let rule = self.rules.iter().find(|(pattern, _)| pattern.matches(message.biz_type()));
        match rule.map(|(_, route)| route).or(self.default.as_ref()) {
            Some(route) => Cow::Borrowed(route),
            None => Cow::Owned(Route::to(message.biz_type())),
        }
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("default", &self.default)
            .field("rules", &self.rules)
            .field("by_function", &self.choose.is_some())
            .finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn function_before_rules_before_default_before_biz_type() {
        let message = |biz_type: &str| Message::binary(biz_type, "1", "").unwrap();
        let mut router = Router::default();
        assert_eq!(router.route(&message("a")).topic(), "a");
        router.set_default(Route::to("events"));
        router.add_rule("order.#".into(), Route::to("orders"));
        router.add_rule("order.paid".into(), Route::to("never reached"));
        assert_eq!(router.route(&message("a")).topic(), "events");
        assert_eq!(router.route(&message("order.paid")).topic(), "orders");
        router.set_choose(Arc::new(|message| Route::to(message.biz_id())));
        assert_eq!(router.route(&message("order.paid")).topic(), "1");
    }

    #[test]
    fn the_key_is_the_ordering_key_else_the_biz_id_unless_the_route_says_otherwise() {
        let plain = Message::binary("a", "order-1", "").unwrap();
        let ordered = plain.clone().with_ordering_key("customer-7").unwrap();
        assert_eq!(Route::to("t").key(&plain), Some("order-1"));
        assert_eq!(Route::to("t").key(&ordered), Some("customer-7"));
        assert_eq!(Route::to("t").with_key("k").key(&ordered), Some("k"));
        assert_eq!(Route::to("t").without_key().key(&ordered), None);
    }
}
