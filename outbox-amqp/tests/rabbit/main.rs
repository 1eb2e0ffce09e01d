//! The publisher against a real RabbitMQ.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod connecting;
mod faults;
mod lab;
mod proxy;
mod sending;
mod tls;
