//! Membership in a consumer group: what comes, how far it is done, and what of it is committed.

mod board;
mod letter;
mod reader;

use std::time::Duration;

use outbox_core::relay::Backoff;
use outbox_core::subscriber::{Stop, after};
use tokio::time::Instant;
use tracing::warn;

pub(crate) use board::{Partition, Place};
pub(crate) use letter::Letter;
pub(crate) use reader::{LEAVING, Reader, Shared};

use crate::config::KafkaConfig;

/// A membership that lasted so long had nothing to do with the error that ended it.
const LONG: Duration = Duration::from_secs(60);

/// A group and the topics it reads.
pub(crate) struct Membership {
    pub(crate) shared: Shared,
    kafka: KafkaConfig,
    group: String,
    topics: Vec<String>,
    backoff: Backoff,
    joined: Option<Instant>,
}

impl Membership {
    pub(crate) fn new(kafka: KafkaConfig, group: String, topics: Vec<String>, shared: Shared) -> Self {
        let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        Self { shared, kafka, group, topics, backoff, joined: None }
    }

    /// Joins the group, again and again with growing pauses; none when it is time to stop.
    pub(crate) async fn join(&mut self, stop: &Stop) -> Option<Reader> {
        self.shared.set_subscribed(false);
        while self.rest(stop).await {
            self.joined = Some(Instant::now());
            match Reader::open(&self.kafka, &self.group, &self.topics, self.shared.clone()) {
                Ok(reader) => return Some(reader),
                Err(trouble) => warn!(error = %trouble.error(), "no consumer; trying again"),
            }
        }
        None
    }

    /// Waits between one try and the next; `false`: it is time to stop.
    async fn rest(&mut self, stop: &Stop) -> bool {
        let Some(joined) = self.joined else { return !stop.is_asked() };
        if joined.elapsed() > LONG {
            self.backoff.reset();
        }
        stop.wait_until(after(self.backoff.pause())).await
    }
}
