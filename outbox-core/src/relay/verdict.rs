use std::error::Error;

use tracing::{debug, warn};

use super::context::Context;
use crate::claim::{Claimed, Outcome, Settlement};
use crate::publisher::{PublishError, PublishErrorKind};

pub(crate) type PublishResult = Result<(), PublishError>;

const ERROR_CHARS: usize = 1000;

/// Turns what the publisher said of a batch into outcomes.
pub(crate) struct Verdicts<'a> {
    context: &'a Context,
    settlements: Vec<Settlement>,
}

impl<'a> Verdicts<'a> {
    pub(crate) fn new(context: &'a Context) -> Self {
        Self { context, settlements: Vec::new() }
    }

    pub(crate) fn settlements(self) -> Vec<Settlement> {
        self.settlements
    }

    /// Fails the rows that were claimed too often without an outcome, and answers the others.
    pub(crate) fn park_repeat_offenders(&mut self, rows: Vec<Claimed>) -> Vec<Claimed> {
        let max = self.context.config.max_unsettled;
        let (parked, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.unsettled_claims > max);
        for row in parked {
            let error =
                format!("claimed {max} times in a row without an outcome: it may be what stops relays");
            warn!(msg_id = row.message.msg_id(), error, "message failed");
            count("parked", 1);
            self.settlements.push(Settlement { claim: row.claim, outcome: Outcome::Failed { error } });
        }
        rows
    }

    pub(crate) fn release(&mut self, rows: &[Claimed]) {
        count("released", rows.len());
        self.settlements
            .extend(rows.iter().map(|row| Settlement { claim: row.claim, outcome: Outcome::Released }));
    }

    /// Judges every row; a result that is missing counts as failed.
    pub(crate) fn judge(&mut self, rows: &[Claimed], results: Vec<PublishResult>) {
        let mut unavailable = None;
        let mut answered = false;
        let mut results = results.into_iter();
        for row in rows {
            let result = results.next().unwrap_or_else(|| Err(unanswered()));
            match &result {
                Err(error) if error.kind() == PublishErrorKind::Unavailable => {
                    unavailable.get_or_insert_with(|| explain(error));
                }
                _ => answered = true,
            }
            let outcome = self.outcome(row, result);
            self.settlements.push(Settlement { claim: row.claim, outcome });
        }
        match unavailable {
            Some(reason) => self.context.breaker.trip(&reason),
            None if answered => self.context.breaker.answered(),
            None => {}
        }
    }

    fn outcome(&self, row: &Claimed, result: PublishResult) -> Outcome {
        let policy = self.context.policies.of(row.message.biz_type());
        let error = match result {
            Ok(()) => {
                count("confirmed", 1);
                return Outcome::Confirmed {
                    required_groups: policy.required_groups().to_vec(),
                    ack_timeout: policy.ack_timeout(),
                };
            }
            Err(error) => error,
        };
        let (msg_id, biz_type) = (row.message.msg_id(), row.message.biz_type());
        match error.kind() {
            PublishErrorKind::Rejected => {
                count("rejected", 1);
                let error = explain(&error);
                warn!(msg_id, biz_type, error, "message failed: the broker will never take it");
                Outcome::Failed { error }
            }
            PublishErrorKind::Failed => {
                count("failed", 1);
                let attempt = row.retry_count + 1;
                let error = explain(&error);
                warn!(msg_id, biz_type, attempt, error, "attempt to publish failed");
                Outcome::Retry {
                    delay: policy.retry().delay(attempt, fastrand::f64()),
                    max_attempts: policy.retry().max_attempts(),
                    error,
                }
            }
            PublishErrorKind::Unavailable => {
                count("released", 1);
                debug!(msg_id, biz_type, error = explain(&error), "released: broker unavailable");
                Outcome::Released
            }
        }
    }
}

fn unanswered() -> PublishError {
    PublishError::failed("the publisher gave no answer for this message: publish_batch must answer for each")
}

fn count(outcome: &'static str, messages: usize) {
    metrics::counter!("outbox_published_total", "outcome" => outcome).increment(messages as u64);
}

/// The error and its causes in one line of bounded length, for `last_error`.
fn explain(error: &PublishError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    match text.char_indices().nth(ERROR_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
