//! RabbitMQ for the outbox: [`AmqpPublisher`] for the relay, [`AmqpConsumer`] for consumer groups, and for their
//! receipts [`AmqpReceiptSink`] and [`ReceiptListener`].
//!
//! # Publishing
//!
//! Persistent, `mandatory`, confirmed, a whole batch in flight at once.
//!
//! ```no_run
//! use outbox_amqp::{AmqpConfig, AmqpPublisher, Exchange, Topology};
//!
//! let topology = Topology::default()
//!     .with_exchange(Exchange::topic("events"))
//!     .with_queue("inventory")
//!     .with_binding("events", "order.#", "inventory");
//! let config = AmqpConfig::new("amqp://guest:guest@localhost:5672/%2f")?
//!     .with_exchange("events")
//!     .with_topology(topology);
//! let publisher = AmqpPublisher::new(config);
//! # Ok::<(), outbox_amqp::InvalidAmqpConfig>(())
//! ```
//!
//! A message's `msg_id`, `biz_type`, content type and time of creation become AMQP's `message_id`, `type`,
//! `content_type` and `timestamp`; its headers, and those of [`outbox_core::wire`], are strings in AMQP's
//! headers. The routing key is the `biz_type` unless a [`Route`] says otherwise.
//!
//! ## What becomes of a message
//!
//! | what happens | the message's error | the connection |
//! |---|---|---|
//! | confirmed and routed | none | stays |
//! | no queue is bound for it (returned) | failed | stays |
//! | a queue refuses it (nack), for example a full one | failed | stays |
//! | exchange missing, access refused | failed, for its own messages only | new channel |
//! | larger than the broker takes | rejected, with the broker's reason | new channel |
//! | not encodable in AMQP, headers longer than a frame | rejected, and never sent | stays |
//! | not confirmed in time though the broker answers | failed | new channel |
//! | not confirmed in time and the broker does not answer | unavailable | opened anew |
//! | connection refused, lost, or closed by the broker; login or vhost refused | unavailable | opened anew |
//! | the broker is out of memory or disk (blocked) | unavailable; nothing is sent until it is well | stays |
//!
//! When RabbitMQ closes a channel because of one message, nothing is known about those around it. They are
//! sent again within the same call, so they may arrive twice; they do not fail.
//!
//! # Consuming
//!
//! [`AmqpConsumer`] has the whole text. In short: a message is acknowledged when it is handled and its receipt is
//! stored, or when it is stored in the queue of its retry or with the dead letters; until then it is RabbitMQ's.
//!
//! # Receipts
//!
//! ```no_run
//! use outbox_amqp::{AmqpConfig, AmqpReceiptSink, ReceiptListener};
//! # use outbox_core::OutboxStore;
//!
//! # fn example(store: impl OutboxStore) -> Result<(), outbox_amqp::InvalidAmqpConfig> {
//! let amqp = AmqpConfig::new("amqp://guest:guest@localhost:5672/%2f")?;
//! // Where the producer is: takes them from the queue and applies them to its table.
//! let listening = ReceiptListener::new(amqp.clone(), "receipts", store).spawn();
//! // Where a consumer is: the third argument of `Consumer::new`.
//! let receipts = AmqpReceiptSink::new(amqp, "receipts");
//! # Ok(())
//! # }
//! ```
//!
//! # Signals
//!
//! Through the `metrics` facade, beside those of the core's consumer (`outbox_consumed_total`,
//! `outbox_handler_seconds`, `outbox_consumer_delay_seconds`): `outbox_consumed_total` with the outcome
//! `unreadable`; `outbox_receipts_total` by `outcome` (`recorded`, `stale`, `unknown`, `dead_letter`) and
//! `outbox_completed_total` of listeners.
//!
//! # Good to know
//!
//! - Declare quorum queues. They confirm after a majority of their nodes has the message on disk; a classic
//!   queue can lose with its node what it has confirmed.
//! - RabbitMQ stops reading from a connection while a queue of its messages lacks its majority and some
//!   hundred messages for it are under way. Then all messages of the connection wait, and are unavailable.
//! - lapin logs every returned message as a warning, with its payload, from the target
//!   `lapin::returned_messages`. Set that target to `error` where payloads must not end up in logs.
//! - TLS is rustls with ring, and trusts the well-known public authorities and the certificates of
//!   [`AmqpConfig::with_root_certificates`].

mod address;
mod batch;
mod blame;
mod config;
mod consumer;
mod dial;
mod ending;
mod error;
mod fit;
mod flight;
mod judge;
mod letter;
mod lifeline;
mod link;
mod parcel;
mod post;
mod publisher;
mod receipts;
mod route;
mod session;
mod shelf;
mod stamp;
mod subscription;
mod topology;
mod trouble;

pub use config::AmqpConfig;
pub use consumer::{AmqpConsumer, AmqpConsumerConfig, Order};
pub use error::InvalidAmqpConfig;
pub use outbox_core::subscriber::{SubscriberHandle, SubscriberShutdown};
pub use publisher::AmqpPublisher;
pub use receipts::{AmqpReceiptSink, ReceiptListener, ReceiptListenerConfig};
pub use route::Route;
pub use shelf::QueueKind;
pub use topology::{Argument, Exchange, Queue, Topology};
