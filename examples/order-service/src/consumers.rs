//! The two consumer groups, in one process.

use std::time::Duration;

use anyhow::Result;
use outbox::amqp::{AmqpConfig, AmqpConsumer, AmqpReceiptSink, Exchange, Queue, SubscriberHandle, Topology};
use outbox::consumer::{Consumer, ConsumerConfig};
use outbox::redis::{RedisDedup, RedisDedupConfig};

use crate::child::READY;
use crate::events::{ORDER_CREATED, POINT_GRANTED};
use crate::inventory::Inventory;
use crate::place::Place;
use crate::points::Points;
use crate::{INVENTORY, POINTS};

/// A process that dies keeps its messages from others for this long.
const LEASE: Duration = Duration::from_secs(2);

/// Handles messages until it is told to stop.
pub async fn run(place: &Place, stop: impl Future<Output = ()>) -> Result<()> {
    let (inventory, points) = (inventory(place).await?, points(place).await?);
    inventory.subscribed().await;
    points.subscribed().await;
    println!("{READY}");
    stop.await;
    let patience = Duration::from_secs(10);
    tokio::join!(inventory.shutdown(patience), points.shutdown(patience));
    Ok(())
}

/// No dedup store: its inbox knows what it has handled.
async fn inventory(place: &Place) -> Result<SubscriberHandle> {
    let consumer = Consumer::new(INVENTORY, Inventory::open(place).await?, receipts(place)?);
    consume(place, INVENTORY, &[ORDER_CREATED], consumer)
}

async fn points(place: &Place) -> Result<SubscriberHandle> {
    let dedup = RedisDedup::new(&place.redis_url, RedisDedupConfig::default().with_prefix(&place.run))?;
    dedup.check_eviction().await?;
    let consumer = Consumer::new(POINTS, Points::open(place).await?, receipts(place)?)
        .with_dedup(dedup)
        .with_config(ConsumerConfig::default().with_lease(LEASE).with_later(LEASE));
    consume(place, POINTS, &[ORDER_CREATED, POINT_GRANTED], consumer)
}

/// A group has a queue of its own, bound to what it wants to know.
fn consume(place: &Place, group: &str, biz_types: &[&str], consumer: Consumer) -> Result<SubscriberHandle> {
    let (exchange, queue) = (place.exchange(), place.queue(group));
    let topology = Topology::default().with_exchange(Exchange::topic(&exchange)).with_queue(queue.as_str());
    let topology = biz_types
        .iter()
        .fold(topology, |topology, biz_type| topology.with_binding(&exchange, *biz_type, &queue));
    let broker = AmqpConfig::new(&place.amqp_url)?.with_topology(topology);
    Ok(AmqpConsumer::new(broker, queue, consumer).spawn())
}

/// The way back to the order service, by the broker.
fn receipts(place: &Place) -> Result<AmqpReceiptSink> {
    let queue = place.receipts();
    let declared = Queue::quorum(&queue).with_dead_letter_queue(format!("{queue}.dead"));
    let topology = Topology::default().with_queue(declared);
    Ok(AmqpReceiptSink::new(AmqpConfig::new(&place.amqp_url)?.with_topology(topology), queue))
}
