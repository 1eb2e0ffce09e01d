use std::collections::BTreeMap;

use lapin::options::{ExchangeBindOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable, ShortString, ShortStringError};
use lapin::{Channel, ExchangeKind};

/// Exchanges, queues and bindings to declare, all durable. Declaring what is there already is harmless when
/// the arguments are the same; when they differ, RabbitMQ refuses and nothing is published.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Topology {
    exchanges: Vec<Exchange>,
    queues: Vec<Queue>,
    bindings: Vec<Binding>,
}

impl Topology {
    /// Adds an exchange.
    #[must_use]
    pub fn with_exchange(mut self, exchange: Exchange) -> Self {
        self.exchanges.push(exchange);
        self
    }

    /// Adds a queue; a plain name is a quorum queue.
    #[must_use]
    pub fn with_queue(mut self, queue: impl Into<Queue>) -> Self {
        self.queues.push(queue.into());
        self
    }

    /// Binds `queue` to `exchange` with a routing key or pattern.
    #[must_use]
    pub fn with_binding(
        self,
        exchange: impl Into<String>,
        routing_key: impl Into<String>,
        queue: impl Into<String>,
    ) -> Self {
        self.bind(exchange.into(), routing_key.into(), Target::Queue(queue.into()))
    }

    /// Binds the exchange `target` to the exchange `source` with a routing key or pattern.
    #[must_use]
    pub fn with_exchange_binding(
        self,
        source: impl Into<String>,
        routing_key: impl Into<String>,
        target: impl Into<String>,
    ) -> Self {
        self.bind(source.into(), routing_key.into(), Target::Exchange(target.into()))
    }

    fn bind(mut self, source: String, routing_key: String, target: Target) -> Self {
        self.bindings.push(Binding { source, routing_key, target });
        self
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.exchanges.is_empty() && self.queues.is_empty() && self.bindings.is_empty()
    }

    pub(crate) async fn declare(&self, channel: &Channel) -> Result<(), DeclareError> {
        for exchange in &self.exchanges {
            exchange.declare(channel).await?;
        }
        for queue in &self.queues {
            queue.declare(channel).await?;
        }
        for binding in &self.bindings {
            binding.declare(channel).await?;
        }
        Ok(())
    }
}

/// Why something could not be declared.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeclareError {
    #[error(transparent)]
    Refused(#[from] lapin::Error),
    #[error(transparent)]
    TooLong(#[from] ShortStringError),
}

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
        self.arguments.0.insert(name.into(), value.into());
        self
    }

    async fn declare(&self, channel: &Channel) -> Result<(), DeclareError> {
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let name = ShortString::try_new(&self.name)?;
        Ok(channel.exchange_declare(name, self.kind.clone(), options, self.arguments.table()?).await?)
    }
}

/// A queue to declare.
#[derive(Debug, Clone, PartialEq)]
pub struct Queue {
    name: String,
    arguments: Arguments,
}

impl Queue {
    /// A replicated queue that confirms after a majority has the message on disk: what an outbox wants.
    #[must_use]
    pub fn quorum(name: impl Into<String>) -> Self {
        Self::of_type(name, "quorum")
    }

    /// A queue on one node.
    #[must_use]
    pub fn classic(name: impl Into<String>) -> Self {
        Self::of_type(name, "classic")
    }

    /// An append-only log that many may read.
    #[must_use]
    pub fn stream(name: impl Into<String>) -> Self {
        Self::of_type(name, "stream")
    }

    fn of_type(name: impl Into<String>, kind: &str) -> Self {
        let queue = Self { name: name.into(), arguments: Arguments::default() };
        queue.with_argument("x-queue-type", kind)
    }

    /// Sends what is rejected or expires to `exchange`, with its routing key as it was.
    #[must_use]
    pub fn with_dead_letter_exchange(self, exchange: impl Into<String>) -> Self {
        self.with_argument("x-dead-letter-exchange", exchange.into())
    }

    /// Gives dead letters this routing key.
    #[must_use]
    pub fn with_dead_letter_routing_key(self, key: impl Into<String>) -> Self {
        self.with_argument("x-dead-letter-routing-key", key.into())
    }

    /// Sets any argument, for example `x-max-length`.
    #[must_use]
    pub fn with_argument(mut self, name: impl Into<String>, value: impl Into<Argument>) -> Self {
        self.arguments.0.insert(name.into(), value.into());
        self
    }

    async fn declare(&self, channel: &Channel) -> Result<(), DeclareError> {
        let name = ShortString::try_new(&self.name)?;
        channel.queue_declare(name, QueueDeclareOptions::durable(), self.arguments.table()?).await?;
        Ok(())
    }
}

impl From<&str> for Queue {
    fn from(name: &str) -> Self {
        Self::quorum(name)
    }
}

impl From<String> for Queue {
    fn from(name: String) -> Self {
        Self::quorum(name)
    }
}

#[derive(Debug, Clone, PartialEq)]
struct Binding {
    source: String,
    routing_key: String,
    target: Target,
}

#[derive(Debug, Clone, PartialEq)]
enum Target {
    Queue(String),
    Exchange(String),
}

impl Binding {
    async fn declare(&self, channel: &Channel) -> Result<(), DeclareError> {
        let source = ShortString::try_new(&self.source)?;
        let key = ShortString::try_new(&self.routing_key)?;
        let none = FieldTable::default();
        match &self.target {
            Target::Queue(queue) => {
                let queue = ShortString::try_new(queue)?;
                channel.queue_bind(queue, source, key, QueueBindOptions::default(), none).await?;
            }
            Target::Exchange(exchange) => {
                let exchange = ShortString::try_new(exchange)?;
                channel.exchange_bind(exchange, source, key, ExchangeBindOptions::default(), none).await?;
            }
        }
        Ok(())
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
struct Arguments(BTreeMap<String, Argument>);

impl Arguments {
    fn table(&self) -> Result<FieldTable, ShortStringError> {
        let mut table = FieldTable::default();
        for (name, value) in &self.0 {
            table.insert(ShortString::try_new(name)?, value.into());
        }
        Ok(table)
    }
}

/// The value of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Argument {
    /// Text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

impl From<&str> for Argument {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Argument {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Argument {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Argument {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<&Argument> for AMQPValue {
    fn from(argument: &Argument) -> Self {
        match argument {
            Argument::Text(text) => AMQPValue::LongString(text.as_str().into()),
            Argument::Number(number) => AMQPValue::LongLongInt(*number),
            Argument::Flag(flag) => AMQPValue::Boolean(*flag),
        }
    }
}
