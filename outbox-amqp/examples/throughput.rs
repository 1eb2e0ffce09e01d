//! Confirmed messages a second to a quorum queue, by batch size:
//!
//! ```text
//! OUTBOX_AMQP_URL=amqp://guest:guest@localhost:5672/%2f cargo run --release -p outbox-amqp --example throughput
//! ```

use std::error::Error;
use std::time::Instant;

use lapin::{Connection, ConnectionProperties};
use outbox_amqp::{AmqpConfig, AmqpPublisher, Topology};
use outbox_core::{Message, Publisher};

const MESSAGES: usize = 50_000;
const PAYLOAD: usize = 300;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let uri = std::env::var("OUTBOX_AMQP_URL")?;
    let queue = format!("throughput.{}", uuid::Uuid::new_v4().simple());
    let topology = Topology::default().with_queue(queue.as_str());
    let publisher = AmqpPublisher::new(AmqpConfig::new(&uri)?.with_topology(topology));
    publisher.ready().await?;
    let measured = measure(&publisher, &queue).await;
    publisher.close().await?;
    delete(&uri, &queue).await?;
    measured
}

async fn measure(publisher: &AmqpPublisher, queue: &str) -> Result<(), Box<dyn Error>> {
    for batch_size in [1, 100, 500, 1_000, 1_000, 1_000] {
        let total = if batch_size == 1 { 2_000 } else { MESSAGES };
        let batch = (0..batch_size)
            .map(|i| Message::binary(queue, i.to_string(), vec![b'x'; PAYLOAD]))
            .collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        for _ in 0..total / batch_size {
            publisher.publish_batch(&batch).await.into_iter().collect::<Result<(), _>>()?;
        }
        let rate = total as f64 / start.elapsed().as_secs_f64();
        println!("batches of {batch_size:>5}: {rate:>8.0} messages/s");
    }
    Ok(())
}

async fn delete(uri: &str, queue: &str) -> Result<(), lapin::Error> {
    let connection = Connection::connect(uri, ConnectionProperties::default()).await?;
    connection.create_channel().await?.queue_delete(queue.into(), Default::default()).await?;
    connection.close(200, "OK".into()).await
}
