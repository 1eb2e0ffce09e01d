use std::borrow::Cow;

use outbox_core::{Message, Router};

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

/// The route of a message; without a default, to the queue named like its `biz_type`.
pub(crate) fn route<'a>(router: &'a Router<Route>, message: &Message) -> Cow<'a, Route> {
    router.route(message).unwrap_or_else(|| Cow::Owned(Route::to("")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn without_a_default_the_exchange_is_the_brokers() {
        let message = Message::binary("order.paid", "1", "").unwrap();
        let mut router = Router::default();
        assert_eq!(*route(&router, &message), Route::to(""));
        router.set_default(Route::to("events"));
        assert_eq!(*route(&router, &message), Route::to("events"));
    }
}
