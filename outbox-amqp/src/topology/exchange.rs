use lapin::options::ExchangeDeclareOptions;
use lapin::types::ShortString;
use lapin::{Channel, ExchangeKind};

use super::DeclareError;
use super::argument::{Argument, Arguments};

/// An exchange to declare.
#[derive(Debug, Clone, PartialEq)]
pub struct Exchange {
    name: String,
    kind: ExchangeKind,
    arguments: Arguments,
}

impl Exchange {
    /// Routes by patterns such as `order.#`.
    #[must_use]
    pub fn topic(name: impl Into<String>) -> Self {
        Self::of_kind(name, ExchangeKind::Topic)
    }

    /// Routes by equal keys.
    #[must_use]
    pub fn direct(name: impl Into<String>) -> Self {
        Self::of_kind(name, ExchangeKind::Direct)
    }

    /// Routes to everything that is bound.
    #[must_use]
    pub fn fanout(name: impl Into<String>) -> Self {
        Self::of_kind(name, ExchangeKind::Fanout)
    }

    /// Of a type that a plugin brings, for example `x-delayed-message`.
    #[must_use]
    pub fn custom(name: impl Into<String>, kind: impl Into<String>) -> Self {
        Self::of_kind(name, ExchangeKind::Custom(kind.into()))
    }

    fn of_kind(name: impl Into<String>, kind: ExchangeKind) -> Self {
        Self { name: name.into(), kind, arguments: Arguments::default() }
    }

    /// Sends what it cannot route to another exchange.
    #[must_use]
    pub fn with_alternate(self, exchange: impl Into<String>) -> Self {
        self.with_argument("alternate-exchange", exchange.into())
    }

    /// Sets any argument.
    #[must_use]
    pub fn with_argument(mut self, name: impl Into<String>, value: impl Into<Argument>) -> Self {
        self.arguments.insert(name, value);
        self
    }

    pub(super) async fn declare(&self, channel: &Channel) -> Result<(), DeclareError> {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let name = ShortString::try_new(&self.name)?;
        Ok(channel.exchange_declare(name, self.kind.clone(), options, self.arguments.table()?).await?)
    }
}
