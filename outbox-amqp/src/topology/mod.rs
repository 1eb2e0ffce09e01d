//! What is declared when a publisher connects or a consumer subscribes.

mod argument;
mod binding;
mod exchange;
mod queue;

use lapin::Channel;
use lapin::types::ShortStringError;

use self::binding::{Binding, Target};

pub use self::argument::Argument;
pub use self::exchange::Exchange;
pub use self::queue::Queue;

/// Exchanges, queues and bindings to declare, all durable. Declaring what is there already is harmless when
/// the arguments are the same; when they differ, RabbitMQ refuses and nothing is published or consumed.
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
