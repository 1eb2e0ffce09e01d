use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{Channel, ExchangeKind};

use crate::drain::connect;
use crate::place::random_name;

/// A topic exchange of the test's own, and the queues that it declares. Nothing here keeps a connection, so
/// it survives what is done to the broker.
#[derive(Debug)]
pub struct Broker {
    url: String,
    exchange: String,
    queues: Mutex<Vec<String>>,
}

impl Broker {
    /// A name, and nothing declared yet.
    pub(crate) fn new(url: &str) -> Self {
        Self { url: url.to_owned(), exchange: random_name(), queues: Mutex::default() }
    }

    pub(crate) async fn declare(&self) -> Result<()> {
        let (connection, channel) = connect(&self.url).await?;
        let (name, none) = (self.exchange.as_str().into(), FieldTable::default());
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        channel.exchange_declare(name, ExchangeKind::Topic, options, none).await?;
        Ok(connection.close(200, "done".into()).await?)
    }

    /// Where the broker is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The exchange's name.
    #[must_use]
    pub fn exchange(&self) -> &str {
        &self.exchange
    }

    /// Declares a durable queue and binds it to every key. Answers its name.
    pub async fn queue(&self, keys: &[&str]) -> Result<String> {
        let name = random_name();
        let (connection, channel) = connect(&self.url).await?;
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(name.as_str().into(), options, FieldTable::default()).await?;
        self.lock().push(name.clone());
        for key in keys {
            self.bind(&channel, &name, key).await?;
        }
        connection.close(200, "done".into()).await?;
        Ok(name)
    }

    /// The queues it has declared.
    #[must_use]
    pub fn queues(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn bind(&self, channel: &Channel, queue: &str, key: &str) -> Result<()> {
        let (exchange, options) = (self.exchange.as_str().into(), QueueBindOptions::default());
        Ok(channel.queue_bind(queue.into(), exchange, (*key).into(), options, FieldTable::default()).await?)
    }

    /// Deletes the exchange and all queues.
    pub(crate) async fn remove(&self) -> Result<()> {
        let (connection, channel) = connect(&self.url).await?;
        let queues = std::mem::take(&mut *self.lock());
        for queue in queues {
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        }
        let exchange = self.exchange.as_str().into();
        channel.exchange_delete(exchange, ExchangeDeleteOptions::default()).await?;
        Ok(connection.close(200, "done".into()).await?)
    }
}
