use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use async_trait::async_trait;
use futures_util::StreamExt;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::{FieldTable, ShortString};
use lapin::uri::{AMQPScheme, AMQPUri};
use lapin::{Connection, ConnectionProperties, Consumer, ExchangeKind};
use outbox::Publisher;
use outbox::amqp::{AmqpConfig, AmqpPublisher};
use tokio::time::timeout;

use super::Broker;
use super::proxy::Proxy;
use crate::deliveries::Deliveries;

/// RabbitMQ, with a proxy before it that the publishers go through. The consumer does not: it is not what is
/// being tried here.
pub struct RabbitMq {
    config: AmqpConfig,
    proxy: Proxy,
    consumer: Consumer,
    _connection: Connection,
}

impl RabbitMq {
    pub async fn open(url: &str, run: &str) -> Result<Self> {
        let mut uri = parse(url)?;
        let connection = connect(&uri).await?;
        let consumer = declare(&connection, run).await.context("cannot declare the quickstart's queue")?;

        let proxy =
            Proxy::to(uri.authority.host, uri.authority.port).await.context("cannot start a proxy")?;
        uri.authority.host = "127.0.0.1".to_owned();
        uri.authority.port = proxy.port;
        let config = AmqpConfig::new(uri.to_string())?.with_exchange(run);
        Ok(Self { config, proxy, consumer, _connection: connection })
    }
}

fn parse(url: &str) -> Result<AMQPUri> {
    AmqpConfig::new(url).context("--amqp-url")?;
    let uri: AMQPUri = url.parse().map_err(|_| anyhow!("--amqp-url is not an AMQP URL"))?;
    match uri.scheme {
        AMQPScheme::AMQP => Ok(uri),
        AMQPScheme::AMQPS => bail!("--amqp-url must be amqp://: the proxy of the quickstart knows no TLS"),
    }
}

async fn connect(uri: &AMQPUri) -> Result<Connection> {
    let connecting = Connection::connect_uri(uri.clone(), ConnectionProperties::default());
    let failed = |error: &dyn Display| {
        let (host, port) = (&uri.authority.host, uri.authority.port);
        anyhow!("cannot connect to RabbitMQ at {host}:{port}: {error}; check --amqp-url")
    };
    match timeout(Duration::from_secs(10), connecting).await {
        Ok(connected) => connected.map_err(|error| failed(&error)),
        Err(_) => Err(failed(&"no answer")),
    }
}

/// An exchange and a queue that RabbitMQ removes when the connection ends, however it ends.
async fn declare(connection: &Connection, run: &str) -> Result<Consumer> {
    let name = ShortString::try_new(run)?;
    let none = FieldTable::default();
    let channel = connection.create_channel().await?;
    let until_unused = ExchangeDeclareOptions { auto_delete: true, ..Default::default() };
    channel.exchange_declare(name.clone(), ExchangeKind::Topic, until_unused, none.clone()).await?;
    let for_us_alone = QueueDeclareOptions { exclusive: true, ..Default::default() };
    channel.queue_declare(name.clone(), for_us_alone, none.clone()).await?;
    let bind = QueueBindOptions::default();
    channel.queue_bind(name.clone(), name.clone(), "order.#".into(), bind, none.clone()).await?;
    Ok(channel.basic_consume(name.clone(), name, BasicConsumeOptions::default(), none).await?)
}

#[async_trait]
impl Broker for RabbitMq {
    fn name(&self) -> &'static str {
        "RabbitMQ, through a proxy that can be cut"
    }

    fn publisher(&self) -> Arc<dyn Publisher> {
        Arc::new(AmqpPublisher::new(self.config.clone()))
    }

    fn go_away(&self) {
        self.proxy.cut();
    }

    fn come_back(&self) {
        self.proxy.mend();
    }

    async fn consume(&self, deliveries: &Deliveries) -> Result<()> {
        let mut consumer = self.consumer.clone();
        while let Some(delivery) = consumer.next().await {
            let delivery = delivery?;
            let msg_id = delivery.properties.message_id().as_ref().context("a message without message_id")?;
            deliveries.record(msg_id.as_str());
            delivery.ack(BasicAckOptions::default()).await?;
        }
        bail!("RabbitMQ ended the subscription")
    }
}
