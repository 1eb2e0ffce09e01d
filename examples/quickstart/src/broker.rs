mod memory;
#[cfg(feature = "services")]
mod proxy;
#[cfg(feature = "services")]
mod rabbitmq;

use std::sync::Arc;

use anyhow::Result;
use async_trait::async_trait;
use outbox::Publisher;

use crate::deliveries::Deliveries;

/// A broker that can be taken away, with one consumer.
#[async_trait]
pub trait Broker: Send + Sync {
    /// What it is, for people.
    fn name(&self) -> &'static str;

    /// A publisher with a connection of its own.
    fn publisher(&self) -> Arc<dyn Publisher>;

    /// Cuts the publishers off.
    fn go_away(&self);

    /// Lets them in again.
    fn come_back(&self);

    /// Records every delivery, then acknowledges it. Ends only with an error.
    async fn consume(&self, deliveries: &Deliveries) -> Result<()>;
}

/// The broker at `url`; without one, a broker in memory.
pub async fn open(url: Option<&str>, run: &str) -> Result<Arc<dyn Broker>> {
    match url {
        None => Ok(Arc::new(memory::InMemory::new())),
        Some(url) => open_service(url, run).await,
    }
}

#[cfg(feature = "services")]
async fn open_service(url: &str, run: &str) -> Result<Arc<dyn Broker>> {
    Ok(Arc::new(rabbitmq::RabbitMq::open(url, run).await?))
}

#[cfg(not(feature = "services"))]
async fn open_service(_: &str, _: &str) -> Result<Arc<dyn Broker>> {
    anyhow::bail!(crate::args::without_services("RabbitMQ", "--amqp-url amqp://…"))
}
