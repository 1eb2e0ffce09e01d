use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use crate::message::Message;
use crate::pattern::Pattern;

/// Finds the route of a message, for publishers: by a function, else by the first rule that matches its `biz_type`,
/// else the default. What a route is, the publisher says.
#[derive(Clone)]
pub struct Router<R> {
    default: Option<R>,
    rules: Vec<(Pattern, R)>,
    function: Option<Arc<Function<R>>>,
}

type Function<R> = dyn Fn(&Message) -> R + Send + Sync;

impl<R> Router<R> {
    /// The route of messages that no rule matches.
    pub fn set_default(&mut self, route: R) {
        self.default = Some(route);
    }

    /// Adds a rule after those that are there.
    pub fn add_rule(&mut self, pattern: Pattern, route: R) {
        self.rules.push((pattern, route));
    }

    /// Routes by a function, in place of rules and default.
    pub fn set_function(&mut self, function: impl Fn(&Message) -> R + Send + Sync + 'static) {
        self.function = Some(Arc::new(function));
    }
}

impl<R: Clone> Router<R> {
    /// The route of a message; none where nothing says one.
    #[must_use]
    pub fn route(&self, message: &Message) -> Option<Cow<'_, R>> {
        if let Some(function) = &self.function {
            return Some(Cow::Owned(function(message)));
        }
        let rule = self.rules.iter().find(|(pattern, _)| pattern.matches(message.biz_type()));
        rule.map(|(_, route)| route).or(self.default.as_ref()).map(Cow::Borrowed)
    }
}

impl<R> Default for Router<R> {
    fn default() -> Self {
        Self { default: None, rules: Vec::new(), function: None }
    }
}

impl<R: fmt::Debug> fmt::Debug for Router<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("default", &self.default)
            .field("rules", &self.rules)
            .field("by_function", &self.function.is_some())
            .finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn function_before_rules_before_default() {
        let route = |router: &Router<String>, biz_type: &str| {
            router.route(&Message::binary(biz_type, "1", "").unwrap()).map(Cow::into_owned)
        };
        let mut router = Router::default();
        assert_eq!(route(&router, "a"), None);
        router.set_default("events".to_owned());
        router.add_rule("order.#".into(), "orders".to_owned());
        router.add_rule("order.paid".into(), "never reached".to_owned());
        assert_eq!(route(&router, "a").unwrap(), "events");
        assert_eq!(route(&router, "order.paid").unwrap(), "orders");
        router.set_function(|message| message.biz_id().to_owned());
        assert_eq!(route(&router, "order.paid").unwrap(), "1");
    }
}
