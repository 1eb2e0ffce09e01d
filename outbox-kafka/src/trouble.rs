use std::time::Duration;

use outbox_core::PublishError;
use rdkafka::error::KafkaError;
use rdkafka::types::RDKafkaErrorCode;

use crate::property::with_hint;

/// What is wrong with all messages that have no verdict of their own: nothing is charged for it.
#[derive(Debug, Clone)]
pub(crate) struct Trouble(String);

impl Trouble {
    /// The error's own text can hold the value of a property.
    pub(crate) fn creating(error: KafkaError) -> Self {
        let reason = match error {
            KafkaError::ClientCreation(reason) => with_hint(reason),
            KafkaError::ClientConfig(_, reason, name, _) => format!("property {name:?}: {reason}"),
            _ => "a setting holds a zero byte".into(),
        };
        Self(format!("librdkafka makes no producer of these settings: {reason}; correct them"))
    }

    pub(crate) fn silent(error: KafkaError, last_words: Option<String>) -> Self {
        let code = error.rdkafka_error_code().map(|code| code.to_string());
        let reason = last_words.or(code).unwrap_or_else(|| "the producer was closed".into());
        Self(format!("no Kafka broker answers ({reason}); are the servers right, and is one of them up?"))
    }

    pub(crate) fn fatal(reason: &str) -> Self {
        Self(format!("the Kafka producer cannot go on ({reason}); the next try makes a new one"))
    }

    pub(crate) fn queue_full() -> Self {
        Self(
            "the producer's queue did not empty in time; publish less at once or raise \
             queue.buffering.max.kbytes"
                .into(),
        )
    }

    /// There was no time to send each message by itself.
    pub(crate) fn unfinished() -> Self {
        Self(
            "Kafka takes some of these messages not together; which of them are too large is not known yet"
                .into(),
        )
    }

    pub(crate) fn purged() -> Self {
        Self("the Kafka producer was given up while the message was in it".into())
    }

    pub(crate) fn subscribing(error: KafkaError) -> Self {
        Self(format!("the topics cannot be subscribed to: {error}; correct their names"))
    }

    /// What a code says that came with a message.
    pub(crate) fn reported(code: RDKafkaErrorCode) -> Self {
        Self(format!("Kafka cannot be used now: {code}"))
    }

    pub(crate) fn closed() -> Self {
        Self("the Kafka producer was closed".into())
    }

    pub(crate) fn not_flushed(limit: Duration) -> Self {
        Self(format!("Kafka did not confirm everything within {limit:?} of closing; the rest was given up"))
    }

    /// Something may have reached the broker.
    pub(crate) fn and_sent(mut self) -> Self {
        self.0 += "; it may have been stored all the same, so it may arrive twice";
        self
    }

    pub(crate) fn error(self) -> PublishError {
        PublishError::unavailable(self.0)
    }
}
