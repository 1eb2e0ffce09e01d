//! Takes away what the story has made.

use anyhow::Result;
use lapin::options::{ExchangeDeleteOptions, QueueDeleteOptions};
use lapin::{Connection, ConnectionProperties};

use crate::place::{Place, Service};
use crate::{INVENTORY, POINTS};

/// Drops schemas, queues and the exchange. The keys in Redis go by themselves within a day.
pub async fn clean_up(place: &Place) -> Result<()> {
    for service in Service::ALL {
        place.drop_database(service).await?;
    }
    let broker = Connection::connect(&place.amqp_url, ConnectionProperties::default()).await?;
    let channel = broker.create_channel().await?;
    for queue in [place.queue(INVENTORY), place.queue(POINTS), place.receipts()] {
        let waiting = (0..20).map(|n| format!("{queue}.retry.{}", 1000 << n));
        for name in waiting.chain([format!("{queue}.dead"), queue.clone()]) {
            channel.queue_delete(name.into(), QueueDeleteOptions::default()).await?;
        }
    }
    channel.exchange_delete(place.exchange().into(), ExchangeDeleteOptions::default()).await?;
    Ok(broker.close(0, "".into()).await?)
}
