//! The publisher and the consumer against a real Kafka.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod consuming;
mod desk;
mod lab;
mod proxy;
mod receipts;
mod sending;
mod surviving;
