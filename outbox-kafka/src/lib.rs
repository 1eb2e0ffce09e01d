//! Publishes outbox messages to Kafka: `acks=all`, idempotent, a whole batch in flight at once, in order.
//! [`KafkaConsumer`] reads them, and receipts go back through a topic by [`KafkaReceiptSink`] and
//! [`ReceiptListener`].
//!
//! ```no_run
//! use outbox_kafka::{KafkaConfig, KafkaPublisher, Route};
//!
//! let config = KafkaConfig::new("kafka-1:9092,kafka-2:9092")?
//!     .with_route("order.#", Route::to("orders"))
//!     .with_property("compression.type", "lz4")?;
//! let publisher = KafkaPublisher::new(config);
//! # Ok::<(), outbox_kafka::InvalidKafkaConfig>(())
//! ```
//!
//! The topic is the one named like the `biz_type`, unless a [`Route`] says otherwise. The record's key is the
//! ordering key, else the `biz_id`, and chooses the partition as Kafka's own clients do. The payload is the
//! record's value; the headers are the message's own, those of [`outbox_core::wire`], and `content-type`. The
//! record's time is that of its sending: topics delete by it, and a message may have waited for long.
//!
//! # What becomes of a message
//!
//! | what happens | the message's error | the producer |
//! |---|---|---|
//! | all replicas in sync have it | none | stays |
//! | the topic does not exist, or this user may not write to it | failed, for its own messages only | stays |
//! | larger than its topic takes, not a topic's name, refused as a record | rejected, with the reason | stays |
//! | too large only together with others | none: each is sent by itself | stays |
//! | the leader moves, replicas are missing for a while | none: librdkafka sends again, once and in order | stays |
//! | not confirmed in time though Kafka answers | failed | stays, or made anew |
//! | no broker answers; login or TLS refused | unavailable | made anew |
//! | the queue stays full | unavailable | stays |
//! | a fatal error | unavailable | made anew |
//! | settings that librdkafka does not take together | unavailable, until they are corrected | |
//!
//! What a producer still has when it is given up is never sent later by it.
//!
//! # Good to know
//!
//! - Give topics three replicas and `min.insync.replicas=2`. `acks=all` waits for the replicas in sync, which
//!   may be one: a topic with less loses with its broker what it has confirmed.
//! - More partitions for a topic move its keys to other partitions, which breaks their order for once.
//! - Topics are never made here, neither for messages nor for receipts or dead letters.
//! - A topic that was missing is found within 30 s after it was made, before the first retry.
//! - TLS, and SASL other than PLAIN, need librdkafka with OpenSSL. Add `rdkafka = { version = "0.39", features =
//!   ["ssl"] }` to your dependencies (`ssl-vendored` builds OpenSSL, too), and set the properties:
//!   `security.protocol`, `sasl.mechanisms`, `sasl.username`, `sasl.password`, `ssl.ca.location`.
//! - librdkafka is C, and built with this crate: that takes make, a C and a C++ compiler, and a minute or two.

mod batch;
mod config;
mod consumer;
mod error;
mod flight;
mod judge;
mod line;
mod membership;
mod parcel;
mod post;
mod property;
mod publisher;
mod receipts;
mod route;
mod session;
mod trouble;

pub use config::KafkaConfig;
pub use consumer::{KafkaConsumer, KafkaConsumerConfig, Order};
pub use error::InvalidKafkaConfig;
pub use outbox_core::subscriber::{SubscriberHandle, SubscriberShutdown};
pub use publisher::KafkaPublisher;
pub use receipts::{KafkaReceiptSink, ReceiptListener, ReceiptListenerConfig};
pub use route::Route;
