//! Publishes outbox messages to RabbitMQ.
//!
//! ```no_run
//! use outbox_amqp::{AmqpConfig, AmqpPublisher};
//!
//! let config = AmqpConfig::new("amqp://guest:guest@localhost:5672/%2f")?.with_exchange("events");
//! let publisher = AmqpPublisher::new(config);
//! # Ok::<(), outbox_amqp::InvalidAmqpConfig>(())
//! ```

mod address;
mod batch;
mod blame;
mod config;
mod dial;
mod envelope;
mod error;
mod flight;
mod judge;
mod lifeline;
mod link;
mod publisher;
mod route;
mod session;
mod topology;

pub use config::AmqpConfig;
pub use error::InvalidAmqpConfig;
pub use publisher::AmqpPublisher;
pub use route::Route;
pub use topology::{Argument, Exchange, Queue, Topology};
