use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use lapin::options::{
    ExchangeDeclareOptions, ExchangeDeleteOptions, QueueBindOptions, QueueDeclareOptions, QueueDeleteOptions,
};
use lapin::protocol::AMQPSoftError;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, ErrorKind, ExchangeKind};

use crate::drain::connect;
use crate::place::random_name;
use crate::wait::within;

const LIMIT: Duration = Duration::from_secs(20);
const GOODBYE: Duration = Duration::from_secs(2);

/// A topic exchange of the test's own, and the queues that it declares. Nothing here keeps a connection, so
/// it survives what is done to the broker.
#[derive(Debug)]
pub struct Broker {
    url: String,
    exchange: String,
    queues: Mutex<Vec<String>>,
    /// Queues of consumers, and those that the framework declares beside them.
    consumed: Mutex<Vec<String>>,
}

/// How long messages wait at most that a consumer has put off, as the names of its queues say it.
const WAITING_ROOMS: [&str; 4] = ["1000", "2000", "4000", "8000"];

impl Broker {
    /// A name, and nothing declared yet.
    pub(crate) fn new(url: &str) -> Self {
        let (queues, consumed) = (Mutex::default(), Mutex::default());
        Self { url: url.to_owned(), exchange: random_name(), queues, consumed }
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
        self.lock().push(name.clone());
        self.declare_queue(&name, keys, FieldTable::default()).await?;
        Ok(name)
    }

    /// Declares a quorum queue, as for a consumer or a listener, and binds it to every key. Answers its name.
    pub async fn consumer_queue(&self, keys: &[&str]) -> Result<String> {
        let name = self.name_for_consumer();
        let mut quorum = FieldTable::default();
        quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
        quorum.insert("x-dead-letter-exchange".into(), AMQPValue::LongString("".into()));
        quorum.insert("x-dead-letter-routing-key".into(), AMQPValue::LongString(dead_letters(&name).into()));
        self.declare_queue(&name, keys, quorum).await?;
        Ok(name)
    }

    /// A name for a queue that a consumer or a listener declares itself, with all that comes with it.
    pub fn name_for_consumer(&self) -> String {
        let name = random_name();
        let mut consumed = self.consumed();
        consumed.extend([name.clone(), dead_letters(&name)]);
        consumed.extend(WAITING_ROOMS.map(|room| waiting_room(&name, room)));
        name
    }

    async fn declare_queue(&self, name: &str, keys: &[&str], arguments: FieldTable) -> Result<()> {
        let (connection, channel) = connect(&self.url).await?;
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        channel.queue_declare(name.into(), options, arguments).await?;
        for key in keys {
            self.bind(&channel, name, key).await?;
        }
        Ok(connection.close(200, "done".into()).await?)
    }

    /// How many messages wait in a queue and are with nobody; 0 if there is no such queue.
    pub async fn ready(&self, queue: &str) -> Result<u32> {
        self.ready_in([queue.to_owned()]).await
    }

    /// How many messages wait in the queue of a consumer, those that it has put off included.
    pub async fn waiting(&self, queue: &str) -> Result<u32> {
        let rooms = WAITING_ROOMS.map(|room| waiting_room(queue, room));
        self.ready_in([queue.to_owned()].into_iter().chain(rooms)).await
    }

    async fn ready_in(&self, queues: impl IntoIterator<Item = String>) -> Result<u32> {
        let (connection, _) = connect(&self.url).await?;
        let (mut ready, passive) = (0, QueueDeclareOptions { passive: true, ..Default::default() });
        for queue in queues {
            // Asking for a queue that is not there ends the channel.
            let channel = connection.create_channel().await?;
            let asking = channel.queue_declare(queue.into(), passive, FieldTable::default());
            match within("RabbitMQ's answer", LIMIT, asking).await? {
                Ok(queue) => ready += queue.message_count(),
                Err(error) => ensure!(is_missing(&error), error),
            }
        }
        // A channel that is still ending makes this an error, or leaves it without an answer.
        let _ = within("the end", GOODBYE, connection.close(200, "done".into())).await;
        Ok(ready)
    }

    /// Deletes a queue with all that is in it.
    pub async fn delete(&self, queue: &str) -> Result<()> {
        let (connection, channel) = connect(&self.url).await?;
        channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        Ok(connection.close(200, "done".into()).await?)
    }

    /// The queues it has declared.
    #[must_use]
    pub fn queues(&self) -> Vec<String> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn consumed(&self) -> MutexGuard<'_, Vec<String>> {
        self.consumed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn bind(&self, channel: &Channel, queue: &str, key: &str) -> Result<()> {
        let (exchange, options) = (self.exchange.as_str().into(), QueueBindOptions::default());
        Ok(channel.queue_bind(queue.into(), exchange, (*key).into(), options, FieldTable::default()).await?)
    }

    /// Deletes the exchange and all queues.
    pub(crate) async fn remove(&self) -> Result<()> {
        let (connection, channel) = connect(&self.url).await?;
        let (queues, consumed) = (std::mem::take(&mut *self.lock()), std::mem::take(&mut *self.consumed()));
        for queue in queues.into_iter().chain(consumed) {
            channel.queue_delete(queue.into(), QueueDeleteOptions::default()).await?;
        }
        let exchange = self.exchange.as_str().into();
        channel.exchange_delete(exchange, ExchangeDeleteOptions::default()).await?;
        Ok(connection.close(200, "done".into()).await?)
    }
}

/// Where a consumer of `queue` puts what it gives up.
#[must_use]
pub fn dead_letters(queue: &str) -> String {
    format!("{queue}.dead")
}

fn waiting_room(queue: &str, room: &str) -> String {
    format!("{queue}.retry.{room}")
}

fn is_missing(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error) if error.get_id() == AMQPSoftError::NOTFOUND.get_id())
}
