use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::{Instrument, debug, info_span, warn};

use super::Consumer;
use super::attempt;
use super::config::LONGEST;
use super::disposition::Disposition;
use super::end::{End, Label};
use super::handler::{HandlerError, Kind};
use super::hold::Hold;
use super::patience::insist;
use crate::dedup::{Begin, DedupKey};
use crate::explain::explain;
use crate::message::Message;
use crate::receipt::Receipt;

/// What is known of a delivery without its payload.
struct Subject {
    key: DedupKey,
    claim_no: u64,
    attempts: u32,
}

/// What is to be done with a delivery that nobody has and that was not handled before.
enum Task {
    Handle,
    Refuse { reason: String },
}

/// What the dedup store says.
enum Start {
    Run(Hold),
    Done,
    InProgress,
    /// It cannot hold the key.
    Unfit(String),
}

impl Consumer {
    /// Takes one delivery through all steps: lease, handler, done marker, receipt. `attempts` are those
    /// charged to it so far: 0, or what the last [`Disposition::RetryLater`] said.
    ///
    /// Safe to drop at any await, as by a crash: the message was not acknowledged and comes again. What was
    /// not marked as done then runs again.
    pub async fn process(&self, message: Message, attempts: u32) -> Disposition {
        self.conduct(message, attempts, Task::Handle).await
    }

    /// Refuses a delivery without running the handler, as when it has ended the process again and again: tells
    /// the producer, and says [`Disposition::DeadLetter`]. If it was handled before, it is acknowledged all the
    /// same; if another run has it, that one decides.
    pub async fn give_up(&self, message: Message, attempts: u32, reason: impl Into<String>) -> Disposition {
        self.conduct(message, attempts, Task::Refuse { reason: reason.into() }).await
    }

    async fn conduct(&self, message: Message, attempts: u32, task: Task) -> Disposition {
        let subject = Subject {
            key: DedupKey::new(&self.group, message.msg_id()),
            claim_no: message.claim_no(),
            attempts,
        };
        let created_at = message.created_at();
        let span = info_span!(
            "consume",
            group = self.group,
            msg_id = message.msg_id(),
            biz_type = message.biz_type(),
            attempt = attempts.saturating_add(1)
        );
        // The handler's panics are its own; this is for those of a dedup store or a sink of receipts.
        let steps = AssertUnwindSafe(self.steps(&subject, message, task)).catch_unwind();
        let end = steps.instrument(span.clone()).await.unwrap_or_else(|_| End::panicked());
        span.in_scope(|| end.report());
        self.measure(end.label(), created_at);
        end.disposition(attempts, self.config.later)
    }

    async fn steps(&self, subject: &Subject, message: Message, task: Task) -> End {
        match self.start(&subject.key).await {
            Ok(Start::Run(hold)) => match task {
                Task::Handle => self.run(subject, message, hold).await,
                Task::Refuse { reason } => {
                    hold.abandon().await;
                    self.reject(subject, subject.attempts, reason).await
                }
            },
            Ok(Start::Done) => self.acknowledge(subject, End::Duplicate).await,
            Ok(Start::InProgress) => End::InProgress,
            Ok(Start::Unfit(reason)) => self.reject(subject, subject.attempts, reason).await,
            Err(problem) => End::Unavailable { problem },
        }
    }

    async fn start(&self, key: &DedupKey) -> Result<Start, String> {
        let Some(dedup) = &self.dedup else { return Ok(Start::Run(Hold::free())) };
        let (lease, dedup) = (self.config.lease, dedup.clone());
        insist(self.config.patience, || async {
            let asked = Instant::now();
            match dedup.begin(key, lease).await {
                Ok(Begin::Acquired(token)) => {
                    Ok(Start::Run(Hold::new(dedup.clone(), key.clone(), token, lease, asked).await))
                }
                Ok(Begin::Done) => Ok(Start::Done),
                Ok(Begin::InProgress) => Ok(Start::InProgress),
                Err(error) if error.is_unfit() => Ok(Start::Unfit(explain(&error))),
                Err(error) => Err(explain(&error)),
            }
        })
        .await
    }

    async fn run(&self, subject: &Subject, message: Message, mut hold: Hold) -> End {
        match hold.during(self.attempt(message, subject.attempts)).await {
            Some(Ok(())) => {
                self.mark(&hold).await;
                self.acknowledge(subject, End::Handled).await
            }
            Some(Err(error)) => {
                hold.abandon().await;
                self.refuse(subject, error).await
            }
            None => End::LeaseLost,
        }
    }

    async fn attempt(&self, message: Message, attempts: u32) -> Result<(), HandlerError> {
        if attempts >= self.config.retry.max_attempts() {
            return Err(HandlerError::reject(format!("it failed {attempts} times before")));
        }
        let started = Instant::now();
        let limit = self.config.handler_timeout;
        let result = attempt::run(self.handler.as_ref(), message, attempts + 1, limit).await;
        let seconds = started.elapsed().as_secs_f64();
        metrics::histogram!("outbox_handler_seconds", "group" => self.group.clone()).record(seconds);
        result
    }

    /// The effect has happened, so not even a dedup store that stays away keeps the delivery from its end:
    /// delivering it again would surely double the effect.
    async fn mark(&self, hold: &Hold) {
        let marked =
            insist(self.config.patience, || async { hold.finish().await.map_err(|error| explain(&error)) });
        match marked.await {
            Ok(true) => {}
            Ok(false) => debug!("another run has the lease: the message may be handled twice"),
            Err(problem) => {
                warn!(problem, "handled, but not marked as done: if it comes again, it runs again")
            }
        }
    }

    async fn acknowledge(&self, subject: &Subject, end: End) -> End {
        let DedupKey { group, msg_id } = &subject.key;
        let receipt = Receipt::handled(msg_id, group, subject.claim_no);
        self.send(receipt).await.map_or_else(|problem| End::Unavailable { problem }, |()| end)
    }

    async fn refuse(&self, subject: &Subject, error: HandlerError) -> End {
        let (attempts, reason) = (subject.attempts.saturating_add(1), explain(error.cause()));
        match error.kind {
            Kind::Unavailable => End::Unavailable { problem: reason },
            Kind::Rejection => self.reject(subject, subject.attempts, reason).await,
            Kind::Retry { delay } if attempts < self.config.retry.max_attempts() => {
                let delay = delay.unwrap_or_else(|| self.config.retry.delay(attempts, fastrand::f64()));
                let delay = delay.min(LONGEST);
                End::Retry { delay, attempts, reason }
            }
            Kind::Retry { .. } => {
                self.reject(subject, attempts, format!("gave up after {attempts} attempts: {reason}")).await
            }
        }
    }

    /// The producer is told first: after that the message leaves this group's hands.
    async fn reject(&self, subject: &Subject, attempts: u32, reason: String) -> End {
        let DedupKey { group, msg_id } = &subject.key;
        match self.send(Receipt::rejected(msg_id, group, subject.claim_no, &reason)).await {
            Ok(()) => End::DeadLetter { reason },
            Err(problem) => End::Untold { attempts, problem },
        }
    }

    async fn send(&self, receipt: Receipt) -> Result<(), String> {
        let send =
            || async { self.receipts.record(receipt.clone()).await.map_err(|error| explain(error.as_ref())) };
        insist(self.config.patience, send).await
    }

    fn measure(&self, label: Label, created_at: Option<crate::Timestamp>) {
        let group = || self.group.clone();
        metrics::counter!("outbox_consumed_total", "group" => group(), "outcome" => label).increment(1);
        if let (Some(at), End::HANDLED) = (created_at, label) {
            let delay = (chrono::Utc::now() - at).to_std().unwrap_or(Duration::ZERO);
            metrics::histogram!("outbox_consumer_delay_seconds", "group" => group())
                .record(delay.as_secs_f64());
        }
    }
}
