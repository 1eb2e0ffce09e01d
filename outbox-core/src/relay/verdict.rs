use tracing::{debug, warn};

use super::context::Context;
use crate::claim::{Claim, Claimed, Outcome, Settlement};
use crate::explain::explain;
use crate::message::Message;
use crate::publisher::{PublishError, PublishErrorKind};

pub(crate) type PublishResult = Result<(), PublishError>;

/// What the relay keeps of a row while its message is being published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ticket {
    pub(crate) claim: Claim,
    retry_count: u32,
}

/// Takes tickets off the rows.
pub(crate) fn check_in(rows: Vec<Claimed>) -> (Vec<Ticket>, Vec<Message>) {
    rows.into_iter()
        .map(|row| (Ticket { claim: row.claim, retry_count: row.retry_count }, row.message))
        .unzip()
}

/// Turns what the publisher said of a batch into outcomes.
pub(crate) struct Verdicts<'a> {
    context: &'a Context,
    blamed: bool,
    settlements: Vec<Settlement>,
}

impl<'a> Verdicts<'a> {
    /// If `blamed`, an attempt is charged even where the broker is unavailable.
    pub(crate) fn new(context: &'a Context, blamed: bool) -> Self {
        Self { context, blamed, settlements: Vec::new() }
    }

    pub(crate) fn settlements(self) -> Vec<Settlement> {
        count(&self.settlements);
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
            self.settlements.push(Settlement { claim: row.claim, outcome: Outcome::Failed { error } });
        }
        rows
    }

    pub(crate) fn release(&mut self, tickets: &[Ticket]) {
        let released = tickets.iter().map(|row| Settlement { claim: row.claim, outcome: Outcome::Released });
        self.settlements.extend(released);
    }

    /// Judges every row; a result that is missing counts as failed.
    pub(crate) fn judge(&mut self, tickets: &[Ticket], messages: &[Message], results: Vec<PublishResult>) {
        let mut tally = Tally::default();
        let mut results = results.into_iter();
        for (ticket, message) in tickets.iter().zip(messages) {
            let result = results.next().unwrap_or_else(|| Err(unanswered()));
            tally.add(message, &result);
            let outcome = self.outcome(ticket, message, result);
            self.settlements.push(Settlement { claim: ticket.claim, outcome });
        }
        tally.report();
        match tally.unavailable {
            Some(reason) => self.context.breaker.trip(&reason),
            None if tally.answered => self.context.breaker.answered(),
            None => {}
        }
    }

    fn outcome(&self, ticket: &Ticket, message: &Message, result: PublishResult) -> Outcome {
        let policy = self.context.policies.of(message.biz_type());
        let Err(error) = result else {
            return Outcome::Confirmed {
                required_groups: policy.required_groups().to_vec(),
                ack_timeout: policy.ack_timeout(),
            };
        };
        match error.kind() {
            PublishErrorKind::Rejected => Outcome::Failed { error: explain(&error) },
            PublishErrorKind::Unavailable if !self.blamed => Outcome::Released,
            PublishErrorKind::Failed | PublishErrorKind::Unavailable => Outcome::Retry {
                delay: policy.retry().delay(ticket.retry_count + 1, fastrand::f64()),
                max_attempts: policy.retry().max_attempts(),
                error: explain(&error),
            },
        }
    }
}

/// What a batch shows of the broker, and one line for the log however many messages failed.
#[derive(Default)]
struct Tally {
    answered: bool,
    unavailable: Option<String>,
    failed: usize,
    sample: Option<(String, String)>,
}

impl Tally {
    fn add(&mut self, message: &Message, result: &PublishResult) {
        let Err(error) = result else {
            self.answered = true;
            return;
        };
        debug!(
            msg_id = message.msg_id(),
            biz_type = message.biz_type(),
            error = explain(error),
            "not published"
        );
        if error.kind() == PublishErrorKind::Unavailable {
            self.unavailable.get_or_insert_with(|| explain(error));
        } else {
            self.answered = true;
            self.failed += 1;
            self.sample.get_or_insert_with(|| (message.msg_id().to_owned(), explain(error)));
        }
    }

    fn report(&self) {
        if let Some((msg_id, error)) = &self.sample {
            warn!(failed = self.failed, msg_id, error, "messages not published; one of them shown");
        }
    }
}

fn unanswered() -> PublishError {
    PublishError::failed("the publisher gave no answer for this message: publish_batch must answer for each")
}

fn count(settlements: &[Settlement]) {
    let of = |kind: fn(&Outcome) -> bool| settlements.iter().filter(|s| kind(&s.outcome)).count() as u64;
    let counts = [
        ("confirmed", of(|outcome| matches!(outcome, Outcome::Confirmed { .. }))),
        ("retry", of(|outcome| matches!(outcome, Outcome::Retry { .. }))),
        ("failed", of(|outcome| matches!(outcome, Outcome::Failed { .. }))),
        ("released", of(|outcome| matches!(outcome, Outcome::Released))),
    ];
    for (outcome, messages) in counts {
        metrics::counter!("outbox_published_total", "outcome" => outcome).increment(messages);
    }
}
