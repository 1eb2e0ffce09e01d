//! Publishes outbox messages to Kafka: `acks=all`, idempotent, a whole batch in flight at once, in order.
//!
//! ```no_run
//! use outbox_kafka::{KafkaConfig, KafkaPublisher, Route};
//!
//! let config = KafkaConfig::new("localhost:9092")?.with_route("order.#", Route::to("orders"));
//! let publisher = KafkaPublisher::new(config);
//! # Ok::<(), outbox_kafka::InvalidKafkaConfig>(())
//! ```

mod batch;
mod config;
mod error;
mod flight;
mod judge;
mod line;
mod parcel;
mod property;
mod publisher;
mod route;
mod session;
mod trouble;

pub use config::KafkaConfig;
pub use error::InvalidKafkaConfig;
pub use publisher::KafkaPublisher;
pub use route::Route;
