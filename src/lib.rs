#![cfg_attr(all(feature = "postgres", feature = "amqp"), doc = include_str!("../README.md"))]
#![cfg_attr(
    not(all(feature = "postgres", feature = "amqp")),
    doc = "Transactional outbox. The whole text of this page needs the features `postgres` and `amqp`."
)]

pub use outbox_core::*;

/// RabbitMQ.
#[cfg(feature = "amqp")]
pub use outbox_amqp as amqp;

/// Kafka.
#[cfg(feature = "kafka")]
pub use outbox_kafka as kafka;

/// The memory of a consumer group in Redis.
#[cfg(feature = "redis")]
pub use outbox_redis_dedup as redis;

/// SQL databases: the outbox, and for consumers the inbox and a dedup store.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub use outbox_sqlx as sqlx;

/// The Chinese README's code compiles too.
#[cfg(all(doctest, feature = "postgres", feature = "amqp"))]
#[doc = include_str!("../README.zh-CN.md")]
struct ReadmeZhCn;
