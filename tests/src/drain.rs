use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::StreamExt;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::deliveries::{Delivered, Deliveries};
use crate::place::random_name;
use crate::wait::{until, within};

const PREFETCH: u16 = 500;
const LIMIT: Duration = Duration::from_secs(30);

/// A consumer that writes down everything a queue delivers. It goes to the broker directly, and has recorded
/// a message before it acknowledges it.
#[derive(Debug)]
pub struct Drain {
    url: String,
    queue: String,
    deliveries: Deliveries,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<()>>,
}

impl Drain {
    /// Consumes from now on.
    pub async fn start(url: &str, queue: &str, deliveries: Deliveries) -> Result<Self> {
        let (connection, channel) = connect(url).await?;
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(consume(connection, channel, queue.to_owned(), deliveries.clone(), stopped));
        Ok(Self { url: url.to_owned(), queue: queue.to_owned(), deliveries, stop, task })
    }

    /// Takes everything that is in the queue now, and ends.
    pub async fn finish(self) -> Result<()> {
        let mark = random_name();
        let (connection, channel) = connect(&self.url).await?;
        let properties = BasicProperties::default().with_message_id(mark.as_str().into());
        let (exchange, queue) = ("".into(), self.queue.as_str().into());
        channel
            .basic_publish(exchange, queue, BasicPublishOptions::default(), b"", properties)
            .await?
            .await?;
        until("the end of the queue", LIMIT, async || {
            anyhow::ensure!(!self.task.is_finished(), "the consumer of {} ended", self.queue);
            Ok(self.deliveries.take(&mark))
        })
        .await?;
        connection.close(200, "done".into()).await?;
        self.stop().await
    }

    /// Ends between two messages; the rest stays in the queue.
    pub async fn stop(self) -> Result<()> {
        drop(self.stop);
        within("the consumer's end", LIMIT, self.task).await??
    }
}

pub(crate) async fn connect(url: &str) -> Result<(Connection, Channel)> {
    let connecting = Connection::connect(url, ConnectionProperties::default());
    let connection = within("RabbitMQ's answer", LIMIT, connecting).await??;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

async fn consume(
    connection: Connection,
    channel: Channel,
    queue: String,
    deliveries: Deliveries,
    mut stopped: oneshot::Receiver<()>,
) -> Result<()> {
    channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
    let (tag, options) = (random_name().into(), BasicConsumeOptions::default());
    let mut consumer = channel.basic_consume(queue.into(), tag, options, FieldTable::default()).await?;
    loop {
        let delivery = tokio::select! {
            biased;
            _ = &mut stopped => break,
            delivery = consumer.next() => delivery.context("the broker ended the consumer")??,
        };
        let tag = delivery.delivery_tag;
        deliveries.push(Delivered::from(delivery));
        channel.basic_ack(tag, BasicAckOptions::default()).await?;
    }
    Ok(connection.close(200, "done".into()).await?)
}
