use lapin::Channel;
use lapin::options::{ExchangeBindOptions, QueueBindOptions};
use lapin::types::{FieldTable, ShortString};

use super::DeclareError;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Binding {
    pub(super) source: String,
    pub(super) routing_key: String,
    pub(super) target: Target,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    Queue(String),
    Exchange(String),
}

impl Binding {
    pub(super) async fn declare(&self, channel: &Channel) -> Result<(), DeclareError> {
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
