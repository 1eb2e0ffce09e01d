use std::sync::Arc;
use std::time::Duration;

use rdkafka::producer::DeliveryFuture;
use rdkafka::types::RDKafkaErrorCode;
use tokio::time::{Instant, timeout_at};

use crate::line::Line;
use crate::session::Session;
use crate::trouble::Trouble;

/// For how long reports are waited for after the producer was given up.
const AFTERWARDS: Duration = Duration::from_secs(1);

/// Why not all reports were waited for.
#[derive(Clone)]
pub(crate) enum Ending {
    /// Kafka cannot be reached.
    Trouble(Trouble),
    /// It can, but the time is up.
    Late,
}

/// What was sent and is not reported yet.
pub(crate) struct Flight<'a> {
    session: &'a Session,
    line: &'a Arc<Line>,
    deadline: Instant,
    ending: Option<Ending>,
}

impl<'a> Flight<'a> {
    pub(crate) fn new(session: &'a Session, line: &'a Arc<Line>, deadline: Instant) -> Self {
        Self { session, line, deadline, ending: None }
    }

    pub(crate) fn ending(self) -> Option<Ending> {
        self.ending
    }

    /// Waits for the report of one message.
    pub(crate) async fn land(&mut self, mut report: DeliveryFuture) -> Result<(), RDKafkaErrorCode> {
        if self.ending.is_none() {
            match self.wait(&mut report).await {
                Ok(answer) => return answer,
                Err(ending) => self.give_up(ending),
            }
        }
        // Without a report it is not known whether it was sent.
        let late = Err(RDKafkaErrorCode::PurgeInflight);
        timeout_at(self.deadline, read(&mut report)).await.unwrap_or(late)
    }

    /// Asks, whenever there was no report for a while, whether Kafka is there.
    async fn wait(&self, report: &mut DeliveryFuture) -> Result<Result<(), RDKafkaErrorCode>, Ending> {
        let patience = self.session.config.connect_timeout;
        loop {
            let until = self.deadline.min(Instant::now() + patience);
            if let Ok(answer) = timeout_at(until, read(report)).await {
                return Ok(answer);
            }
            self.line.probe(patience).await.map_err(Ending::Trouble)?;
            if Instant::now() >= self.deadline {
                return Err(Ending::Late);
            }
        }
    }

    fn give_up(&mut self, ending: Ending) {
        tracing::warn!("Kafka reports no deliveries; the producer is given up with what is in it");
        self.session.retire(self.line);
        self.deadline = Instant::now() + AFTERWARDS;
        self.ending = Some(ending);
    }
}

async fn read(report: &mut DeliveryFuture) -> Result<(), RDKafkaErrorCode> {
    match report.await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err((error, _))) => Err(error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown)),
        // The producer ended.
        Err(_) => Err(RDKafkaErrorCode::PurgeInflight),
    }
}
