#![doc = include_str!("../README.md")]

#[cfg(feature = "cluster")]
mod cluster;
mod config;
mod dedup;
mod eviction;
mod failure;
mod script;
mod session;
mod single;
mod tls;

pub use config::RedisDedupConfig;
pub use dedup::RedisDedup;
pub use eviction::Eviction;
pub use redis;
