use std::sync::Arc;
use std::time::Duration;

use outbox_core::{Message, PublishError};
use rdkafka::producer::DeliveryFuture;
use rdkafka::types::RDKafkaErrorCode::{self, PurgeQueue, QueueFull};
use tokio::time::{Instant, sleep};

use crate::flight::{Ending, Flight};
use crate::judge::{Meaning, Verdict, failed, meaning, rejected, timed_out, unavailable};
use crate::line::Line;
use crate::parcel::Parcel;
use crate::route::route;
use crate::session::Session;
use crate::trouble::Trouble;

/// How long a full queue is left alone before it is tried again.
pub(crate) const PAUSE: Duration = Duration::from_millis(5);

/// The messages of one call, on their way to a verdict each.
pub(crate) struct Batch<'a> {
    session: &'a Session,
    deadline: Instant,
    parcels: Vec<Parcel<'a>>,
    verdicts: Vec<Option<Verdict>>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(session: &'a Session, messages: &'a [Message]) -> Self {
        let (config, router) = (&session.config, &session.config.router);
        Self {
            session,
            deadline: Instant::now() + config.confirm_timeout,
            parcels: messages.iter().map(|message| Parcel::new(message, route(router, message))).collect(),
            verdicts: messages.iter().map(|_| None).collect(),
        }
    }

    pub(crate) async fn run(mut self) -> Vec<Verdict> {
        let trouble = self.deliver().await.err().unwrap_or_else(Trouble::purged);
        let open = || Err(trouble.clone().error());
        self.verdicts.into_iter().map(|verdict| verdict.unwrap_or_else(open)).collect()
    }

    /// Gives each message its verdict, or says what is wrong with the rest.
    async fn deliver(&mut self) -> Result<(), Trouble> {
        let together = self.session.line()?;
        let suspects = self.round(&together, (0..self.parcels.len()).collect()).await;
        if suspects.is_empty() {
            return Ok(());
        }
        if Instant::now() >= self.deadline {
            return Err(Trouble::unfinished());
        }
        tracing::debug!(messages = suspects.len(), "too large together; each is sent by itself");
        let alone = Arc::new(Line::open_for_single_messages(&self.session.config)?);
        for index in self.round(&alone, suspects).await {
            let error = rejected(RDKafkaErrorCode::MessageSizeTooLarge, self.parcels[index].topic());
            self.verdicts[index] = Some(Err(error));
        }
        Ok(())
    }

    /// Sends messages in order and waits for their reports; returns those that were too large together.
    async fn round(&mut self, line: &Arc<Line>, indices: Vec<usize>) -> Vec<usize> {
        let mut under_way = Vec::with_capacity(indices.len());
        for index in indices {
            match self.send(line, index).await {
                Ok(report) => under_way.push((index, report)),
                Err(error) => self.verdicts[index] = Some(Err(error)),
            }
        }
        let mut flight = Flight::new(self.session, line, self.deadline);
        let mut open = Vec::new();
        for (index, report) in under_way {
            match flight.land(report).await {
                Ok(()) => self.verdicts[index] = Some(Ok(())),
                Err(code) => open.push((index, code)),
            }
        }
        self.judge(line, open, flight.ending()).await
    }

    /// Waits while the queue is full.
    async fn send(&self, line: &Line, index: usize) -> Result<DeliveryFuture, PublishError> {
        let parcel = &self.parcels[index];
        loop {
            match line.send(parcel.record()?) {
                Ok(report) => return Ok(report),
                Err(QueueFull) if Instant::now() < self.deadline => sleep(PAUSE).await,
                Err(code) => return Err(refused(line, code, parcel.topic())),
            }
        }
    }

    /// Gives verdicts to what was not stored; returns what was too large together.
    async fn judge(
        &mut self,
        line: &Arc<Line>,
        open: Vec<(usize, RDKafkaErrorCode)>,
        ending: Option<Ending>,
    ) -> Vec<usize> {
        let mut suspects = Vec::new();
        let state = self.state(line, &open, ending).await;
        for (index, code) in open {
            let topic = self.parcels[index].topic();
            let error = match (meaning(code), &state) {
                (Meaning::Rejected, _) => rejected(code, topic),
                (Meaning::TooLargeTogether, _) => {
                    suspects.push(index);
                    continue;
                }
                (_, Some(Ending::Trouble(trouble))) if code == PurgeQueue => trouble.clone().error(),
                (_, Some(Ending::Trouble(trouble))) => trouble.clone().and_sent().error(),
                (Meaning::Failed, _) => failed(code, topic),
                (Meaning::TimedOut, _) | (_, Some(Ending::Late)) => timed_out(topic),
                (Meaning::Unavailable, None) => unavailable(code).error(),
            };
            self.verdicts[index] = Some(Err(error));
        }
        suspects
    }

    /// What is wrong with the line: asked for, if there is no other reason why messages were given up.
    async fn state(
        &self,
        line: &Arc<Line>,
        open: &[(usize, RDKafkaErrorCode)],
        ending: Option<Ending>,
    ) -> Option<Ending> {
        if let Some(trouble) = line.fatal() {
            return Some(Ending::Trouble(trouble));
        }
        if ending.is_some() || !open.iter().any(|(_, code)| meaning(*code) == Meaning::TimedOut) {
            return ending;
        }
        let trouble = line.probe(self.session.config.connect_timeout).await.err()?;
        self.session.retire(line);
        Some(Ending::Trouble(trouble))
    }
}

/// The producer did not take the message, so it was not sent.
fn refused(line: &Line, code: RDKafkaErrorCode, topic: &str) -> PublishError {
    match meaning(code) {
        Meaning::Rejected | Meaning::TooLargeTogether => rejected(code, topic),
        Meaning::Failed | Meaning::TimedOut => failed(code, topic),
        Meaning::Unavailable => line.fatal().unwrap_or_else(|| unavailable(code)).error(),
    }
}
