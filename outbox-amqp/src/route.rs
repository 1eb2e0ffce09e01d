use std::fmt;
use std::sync::Arc;

use outbox_core::{Message, Pattern};

/// Where a message goes: an exchange and a routing key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Route {
    exchange: String,
    routing_key: Option<String>,
}

impl Route {
    /// To `exchange` with the message's `biz_type` as the routing key. The empty name is RabbitMQ's default
    /// exchange, whose routing key is the name of a queue.
    #[must_use]
    pub fn to(exchange: impl Into<String>) -> Self {
        Self { exchange: exchange.into(), routing_key: None }
    }

    /// With this routing key instead.
    #[must_use]
    pub fn with_routing_key(mut self, key: impl Into<String>) -> Self {
        self.routing_key = Some(key.into());
        self
    }

    /// The exchange's name.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.exchange
    }

    /// The routing key, where it is not the `biz_type`.
    #[must_use]
    pub fn routing_key(&self) -> Option<&str> {
        self.routing_key.as_deref()
    }
}

type Choose = dyn Fn(&Message) -> Route + Send + Sync;

/// Finds the route of a message: by a function, else by the first rule that matches, else the default.
#[derive(Clone)]
pub(crate) struct Router {
    default: Route,
    rules: Vec<(Pattern, Route)>,
    choose: Option<Arc<Choose>>,
}

impl Router {
    pub(crate) fn set_default(&mut self, route: Route) {
        self.default = route;
    }

    pub(crate) fn add_rule(&mut self, pattern: Pattern, route: Route) {
        self.rules.push((pattern, route));
    }

    pub(crate) fn set_choose(&mut self, choose: Arc<Choose>) {
        self.choose = Some(choose);
    }

    pub(crate) fn route(&self, message: &Message) -> Route {
        match &self.choose {
            Some(choose) => choose(message),
            None => self.rule(message.biz_type()).clone(),
        }
    }

    fn rule(&self, biz_type: &str) -> &Route {
        let rule = self.rules.iter().find(|(pattern, _)| pattern.matches(biz_type));
        rule.map_or(&self.default, |(_, route)| route)
    }
}

impl Default for Router {
    fn default() -> Self {
        Self { default: Route::to(""), rules: Vec::new(), choose: None }
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
    fn function_before_rules_before_default() {
        let message = |biz_type: &str| Message::binary(biz_type, "1", "").unwrap();
        let mut router = Router::default();
        assert_eq!(router.route(&message("a")), Route::to(""));
        router.set_default(Route::to("events"));
        router.add_rule("order.#".into(), Route::to("orders").with_routing_key("k"));
        router.add_rule("order.paid".into(), Route::to("never reached"));
        assert_eq!(router.route(&message("a")), Route::to("events"));
        assert_eq!(router.route(&message("order.paid")), Route::to("orders").with_routing_key("k"));
        router.set_choose(Arc::new(|message| Route::to(message.biz_id())));
        assert_eq!(router.route(&message("order.paid")), Route::to("1"));
    }
}
