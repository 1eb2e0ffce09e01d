//! Receipts that travel through the broker, from consumers back to the producer.

mod config;
mod listener;
mod sink;

pub use config::ReceiptListenerConfig;
pub use listener::ReceiptListener;
pub use sink::AmqpReceiptSink;
