use lapin::Channel;
use lapin::options::QueueDeclareOptions;
use lapin::types::ShortString;

use super::DeclareError;
use super::argument::{Argument, Arguments};

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

    /// Sends what is rejected, expires or comes back too often to the queue `name`.
    #[must_use]
    pub fn with_dead_letter_queue(self, name: impl Into<String>) -> Self {
        self.with_dead_letter_exchange("").with_dead_letter_routing_key(name)
    }

    /// Sets any argument, for example `x-max-length`.
    #[must_use]
    pub fn with_argument(mut self, name: impl Into<String>, value: impl Into<Argument>) -> Self {
        self.arguments.insert(name, value);
        self
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) async fn declare(&self, channel: &Channel) -> Result<(), DeclareError> {
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
