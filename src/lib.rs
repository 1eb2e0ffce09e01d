#![cfg_attr(
    all(feature = "postgres", feature = "sqlite", feature = "amqp", feature = "memory"),
    doc = include_str!("../README.md")
)]
#![cfg_attr(
    not(all(feature = "postgres", feature = "sqlite", feature = "amqp", feature = "memory")),
    doc = "Transactional outbox. The whole text of this page needs all features."
)]

pub use outbox_core::*;

/// RabbitMQ.
#[cfg(feature = "amqp")]
pub use outbox_amqp as amqp;

/// SQL databases.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub use outbox_sqlx as sqlx;

/// Compiles the code of the Chinese README as well.
#[cfg(doctest)]
#[doc = include_str!("../README.zh-CN.md")]
struct ReadmeZhCn;
