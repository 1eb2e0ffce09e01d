//! The publisher against a real Kafka.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod lab;
mod proxy;
mod sending;
