use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::producer::{DeliveryFuture, FutureProducer, FutureRecord, Producer, PurgeConfig};
use rdkafka::types::RDKafkaErrorCode;
use tokio::task::spawn_blocking;

use crate::config::KafkaConfig;
use crate::trouble::Trouble;

/// A record whose key and payload are bytes.
pub(crate) type Record<'a> = FutureRecord<'a, [u8], [u8]>;

/// One of librdkafka's producers: connections, a thread, and the queue of what is to be sent.
pub(crate) struct Line {
    /// Always there until the line is dropped.
    producer: Option<FutureProducer<Ear>>,
    ear: Ear,
}

impl Line {
    /// Connects in the background; says nothing about whether there is a broker.
    pub(crate) fn open(config: &KafkaConfig) -> Result<Self, Trouble> {
        Self::with(config, &[])
    }

    /// As slow as it is fair: no message shares a request's fate with another one.
    pub(crate) fn open_for_single_messages(config: &KafkaConfig) -> Result<Self, Trouble> {
        Self::with(config, &[("batch.num.messages", "1")])
    }

    fn with(config: &KafkaConfig, properties: &[(&str, &str)]) -> Result<Self, Trouble> {
        let mut client = config.producer();
        properties.iter().for_each(|(name, value)| {
            client.set(*name, *value);
        });
        let ear = Ear::default();
        let producer = FutureProducer::from_config_and_context(&client, ear.clone());
        Ok(Self { producer: Some(producer.map_err(Trouble::creating)?), ear })
    }

    fn producer(&self) -> Result<&FutureProducer<Ear>, Trouble> {
        self.producer.as_ref().ok_or_else(Trouble::closed)
    }

    /// Puts the record in the queue, or says why not.
    pub(crate) fn send(&self, record: Record<'_>) -> Result<DeliveryFuture, RDKafkaErrorCode> {
        let producer = self.producer().map_err(|_| RDKafkaErrorCode::Fatal)?;
        producer.send_result(record).map_err(|(error, _)| {
            // All other errors mean that a text holds a zero byte.
            error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::InvalidArgument)
        })
    }

    /// Why the producer can never send again, if it cannot.
    pub(crate) fn fatal(&self) -> Option<Trouble> {
        let (_, reason) = self.producer().ok()?.client().fatal_error()?;
        Some(Trouble::fatal(&reason))
    }

    /// Asks for an answer of any broker. Dropping it ends the waiting, not the question.
    pub(crate) async fn probe(&self, limit: Duration) -> Result<(), Trouble> {
        let producer = self.producer()?.clone();
        // Blocks, and for no longer than the limit.
        let question = spawn_blocking(move || producer.client().fetch_metadata(None, limit).map(drop));
        let answer = question.await.unwrap_or(Err(KafkaError::Canceled));
        match (answer, self.fatal()) {
            (_, Some(trouble)) => Err(trouble),
            (Ok(()), None) => Ok(()),
            (Err(error), None) => Err(Trouble::silent(error, self.ear.last_words())),
        }
    }

    /// Ends what is in the queue or under way; nothing of it is sent from now on.
    pub(crate) fn purge(&self) {
        if let Some(producer) = &self.producer {
            producer.purge(PurgeConfig::default().queue().inflight());
        }
    }

    /// Waits until everything in the queue was answered for.
    pub(crate) async fn flush(&self, limit: Duration) -> Result<(), Trouble> {
        let producer = self.producer()?.clone();
        let flushing = spawn_blocking(move || producer.flush(limit));
        flushing.await.unwrap_or(Err(KafkaError::Canceled)).map_err(|_| Trouble::not_flushed(limit))
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(producer) = self.producer.take() {
            drop_elsewhere(producer);
        }
    }
}

/// The end of a producer joins its thread and takes up to half a second.
fn drop_elsewhere(producer: FutureProducer<Ear>) {
    let ending = std::thread::Builder::new().name("outbox-kafka-end".into());
    if let Err(error) = ending.spawn(move || drop(producer)) {
        tracing::warn!(%error, "no thread to end a Kafka producer; it was ended in place");
    }
}

/// Hears what librdkafka says.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Option<String>>>);

impl Ear {
    fn last_words(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl ClientContext for Ear {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, text: &str) {
        log(level, facility, text);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // Says less than what came before it.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.into());
        }
    }
}

/// librdkafka tries again whatever it logs, so nothing of it is an error of ours.
pub(crate) fn log(level: RDKafkaLogLevel, facility: &str, text: &str) {
    match level {
        RDKafkaLogLevel::Debug => tracing::debug!(facility, "librdkafka: {text}"),
        RDKafkaLogLevel::Info | RDKafkaLogLevel::Notice => tracing::info!(facility, "librdkafka: {text}"),
        _ => tracing::warn!(facility, "librdkafka: {text}"),
    }
}
