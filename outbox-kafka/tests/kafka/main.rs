//! The publisher and the consumer against a real Kafka.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod alone;
mod conformance;
mod consuming;
mod desk;
mod killed;
mod lab;
mod proxy;
mod receipts;
mod sending;
mod surviving;
