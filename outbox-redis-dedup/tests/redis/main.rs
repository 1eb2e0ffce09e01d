//! [`RedisDedup`](outbox_redis_dedup::RedisDedup) on real servers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[cfg(feature = "cluster")]
mod cluster;
mod conformance;
mod consuming;
mod fixture;
mod loss;
mod outage;
mod private_server;
mod proxy;
mod steps;
mod tls;
