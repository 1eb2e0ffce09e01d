//! The publisher against librdkafka's mock cluster: faults that a real broker does not make to order.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod away;
mod cluster;
mod fatal;
mod queue;
mod refused;
mod retried;
