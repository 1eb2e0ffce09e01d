use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
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
    pub async fn connect(url: &str, run: &str) -> Result<Self> {
        AmqpConfig::new(url).context("--amqp-url")?;
        let Ok(mut uri) = url.parse::<AMQPUri>() else { bail!("--amqp-url is not an AMQP URL") };
        if uri.scheme == AMQPScheme::AMQPS {
            bail!("the quickstart cuts connections with a proxy and needs a broker without TLS: amqp://…");
        }
        let connecting = Connection::connect_uri(uri.clone(), ConnectionProperties::default());
        let connected = timeout(Duration::from_secs(10), connecting).await.map_err(anyhow::Error::from);
        let connection = connected.and_then(|connection| Ok(connection?)).with_context(|| {
            let (host, port) = (&uri.authority.host, uri.authority.port);
            format!("cannot connect to RabbitMQ at {host}:{port}; check --amqp-url, and that it runs")
        })?;
        let consumer = declare(&connection, run).await.context("RabbitMQ refuses the quickstart's queue")?;

        let proxy = Proxy::to(uri.authority.host, uri.authority.port).await?;
        uri.authority.host = "127.0.0.1".to_owned();
        uri.authority.port = proxy.port;
        let config = AmqpConfig::new(uri.to_string())?.with_exchange(run);
        Ok(Self { config, proxy, consumer, _connection: connection })
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
