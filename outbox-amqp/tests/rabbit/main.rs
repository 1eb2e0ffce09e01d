//! The publisher and the consumer against a real RabbitMQ.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod connecting;
mod consuming;
mod desk;
mod faults;
mod lab;
mod proxy;
mod receipts;
mod sending;
mod surviving;
mod tls;
