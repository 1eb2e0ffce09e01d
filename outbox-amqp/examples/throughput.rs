//! Confirmed messages a second to a quorum queue, beside lapin used by hand, in turns so that both meet the
//! same load:
//!
//! ```text
//! OUTBOX_AMQP_URL=amqp://guest:guest@localhost:5672/%2f cargo run --release -p outbox-amqp --example throughput
//! ```

use std::error::Error;
use std::time::Instant;

use futures_util::future::try_join_all;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use outbox_amqp::{AmqpConfig, AmqpPublisher, Topology};
use outbox_core::{Message, Publisher};

const MESSAGES: usize = 50_000;
const PAYLOAD: usize = 300;

type Measured = Result<f64, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let uri = std::env::var("OUTBOX_AMQP_URL")?;
    let queue = format!("throughput.{}", uuid::Uuid::new_v4().simple());
    let topology = Topology::default().with_queue(queue.as_str());
    let publisher = AmqpPublisher::new(AmqpConfig::new(&uri)?.with_topology(topology));
    publisher.ready().await?;
    let connection = Connection::connect(&uri, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.confirm_select(ConfirmSelectOptions::default()).await?;

    for size in [1, 100, 500, 1_000, 1_000, 1_000] {
        let batches = if size == 1 { 2_000 } else { MESSAGES / size };
        let by_hand = by_hand(&channel, &queue, size, batches).await?;
        let ours = ours(&publisher, &queue, size, batches).await?;
        println!(
            "batches of {size:>5}: {ours:>7.0} msgs/s, {:.2} of lapin by hand ({by_hand:.0})",
            ours / by_hand
        );
    }
    channel.queue_delete(queue.as_str().into(), Default::default()).await?;
    connection.close(200, "OK".into()).await?;
    Ok(publisher.close().await?)
}

async fn ours(publisher: &AmqpPublisher, queue: &str, size: usize, batches: usize) -> Measured {
    let batch = (0..size)
        .map(|i| Message::binary(queue, i.to_string(), vec![b'x'; PAYLOAD]))
        .collect::<Result<Vec<_>, _>>()?;
    let start = Instant::now();
    for _ in 0..batches {
        publisher.publish_batch(&batch).await.into_iter().collect::<Result<(), _>>()?;
    }
    Ok((size * batches) as f64 / start.elapsed().as_secs_f64())
}

/// Persistent and mandatory, with no other properties and no look at what was returned.
async fn by_hand(channel: &Channel, queue: &str, size: usize, batches: usize) -> Measured {
    let (body, options) = ([b'x'; PAYLOAD], BasicPublishOptions { mandatory: true, immediate: false });
    let start = Instant::now();
    for _ in 0..batches {
        let publish = || async {
            let properties = BasicProperties::default().with_delivery_mode(2);
            channel.basic_publish("".into(), queue.into(), options, &body, properties).await?.await
        };
        try_join_all((0..size).map(|_| publish())).await?;
    }
    Ok((size * batches) as f64 / start.elapsed().as_secs_f64())
}
