use std::time::Duration;
use std::{fmt, io};

use lapin::ErrorKind;
use lapin::protocol::AMQPError;
use lapin::types::ShortStringError;
use outbox_core::PublishError;

use crate::address::Address;
use crate::ending::spoken;
use crate::topology::DeclareError;

/// What is wrong with all messages that have no verdict of their own.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    make: fn(String) -> PublishError,
    text: String,
    source: Option<lapin::Error>,
}

impl Trouble {
    fn unavailable(text: impl Into<String>) -> Self {
        Self { make: PublishError::unavailable, text: text.into(), source: None }
    }

    fn with_source(mut self, source: lapin::Error) -> Self {
        self.source = Some(source);
        self
    }

    pub(crate) fn connecting(address: &Address, error: lapin::Error) -> Self {
        Self::unavailable(format!("cannot connect to {address}: {}", hint(address, &error)))
            .with_source(error)
    }

    /// Several hosts, none of which can be used.
    pub(crate) fn all(troubles: Vec<Self>) -> Self {
        let text = troubles.iter().map(|trouble| trouble.text.as_str()).collect::<Vec<_>>().join("; ");
        let source = troubles.into_iter().find_map(|trouble| trouble.source);
        Self { source, ..Self::unavailable(text) }
    }

    pub(crate) fn declaring(error: DeclareError) -> Self {
        let text = format!(
            "the topology cannot be declared: {error}; nothing is published or consumed until it can"
        );
        match error {
            DeclareError::Refused(source) => Self::unavailable(text).with_source(source),
            DeclareError::TooLong(_) => Self::unavailable(text),
        }
    }

    pub(crate) fn not_declared_in_time() -> Self {
        Self::unavailable("RabbitMQ did not answer in time when the topology was declared")
    }

    pub(crate) fn missing(queue: &str, error: lapin::Error) -> Self {
        let advice = match spoken(&error).map(AMQPError::get_id) {
            Some(404) => "declare it, for example with `AmqpConfig::with_topology`, or correct the name",
            Some(403) => "grant the user the permission to read it",
            _ => "the next try opens a new channel",
        };
        Self::unavailable(format!("queue {queue:?} cannot be used: {error}; {advice}")).with_source(error)
    }

    pub(crate) fn unroutable(queue: &str) -> Self {
        let text =
            format!("returned as unroutable: there is no queue {queue:?}; declare it, or let the consumer");
        Self { make: PublishError::failed, text, source: None }
    }

    pub(crate) fn nacked(queue: &str) -> Self {
        let text = format!("refused (nack) by queue {queue:?}: it is full or cannot store now");
        Self { make: PublishError::failed, text, source: None }
    }

    pub(crate) fn not_confirming() -> Self {
        Self::unavailable("the channel was not in confirm mode, so nothing is known; it is sent again")
    }

    pub(crate) fn too_long(error: ShortStringError) -> Self {
        let text = format!("a name is longer than AMQP takes: {error}; use shorter ones");
        Self { make: PublishError::rejected, text, source: None }
    }

    pub(crate) fn lost(error: lapin::Error) -> Self {
        let text = format!("the connection to RabbitMQ was lost: {error}; the next try opens a new one");
        Self::unavailable(text).with_source(error)
    }

    pub(crate) fn blocked() -> Self {
        Self::unavailable(
            "RabbitMQ takes no messages now (memory or disk alarm); it goes on when the alarm ends",
        )
    }

    pub(crate) fn busy() -> Self {
        Self::unavailable("no channel became free in time; allow more of them or publish larger batches")
    }

    pub(crate) fn late() -> Self {
        Self::unavailable("no connection to RabbitMQ within the confirm timeout")
    }

    pub(crate) fn silent() -> Self {
        Self::unavailable("RabbitMQ does not answer; the next try opens a new connection")
    }

    pub(crate) fn not_closed() -> Self {
        Self::unavailable("RabbitMQ did not answer when the connection was closed; it was cut")
    }

    /// The search for a message for which the broker closes the channel took too long.
    pub(crate) fn unfinished() -> Self {
        Self::unavailable("RabbitMQ closes the channel for one of these messages; which one is not found yet")
    }

    /// What it means for one message: no attempt is charged for what was never sent.
    pub(crate) fn of(&self, sent: bool) -> PublishError {
        if sent {
            return self.clone().and_sent().error();
        }
        Self { make: PublishError::unavailable, ..self.clone() }.error()
    }

    /// Something may have reached the broker.
    pub(crate) fn and_sent(mut self) -> Self {
        self.text += "; it may have been stored all the same, so it may arrive twice";
        self
    }

    /// The broker is well, but has not confirmed.
    pub(crate) fn unconfirmed(limit: Duration) -> Self {
        let text = format!(
            "not confirmed within {limit:?}, though RabbitMQ answers: a queue may lack its majority or be overloaded"
        );
        Self { make: PublishError::failed, text, source: None }
    }

    pub(crate) fn error(&self) -> PublishError {
        let error = (self.make)(self.text.clone());
        match &self.source {
            Some(source) => error.with_source(source.clone()),
            None => error,
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn hint(address: &Address, error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(words) => refused(address, words),
        ErrorKind::IOError(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => {
            "nothing listens there; is RabbitMQ up, and are host and port right?".into()
        }
        ErrorKind::IOError(cause) => cause.to_string(),
        _ => error.to_string(),
    }
}

fn refused(address: &Address, words: &AMQPError) -> String {
    let (text, user) = (words.get_message(), address.user());
    match words.get_id() {
        403 => format!("user {user:?} was not let in; check user name and password ({text})"),
        530 => format!(
            "vhost {:?} cannot be opened; does it exist, and may user {user:?} use it? ({text})",
            address.vhost()
        ),
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use outbox_core::PublishErrorKind;

    use super::*;

    #[test]
    fn a_broker_that_answers_is_charged_and_one_that_does_not_is_not() {
        let kind = |trouble: Trouble| trouble.error().kind();
        assert_eq!(kind(Trouble::unconfirmed(Duration::from_secs(1))), PublishErrorKind::Failed);
        assert_eq!(kind(Trouble::silent().and_sent()), PublishErrorKind::Unavailable);
        assert_eq!(kind(Trouble::all(vec![Trouble::blocked()])), PublishErrorKind::Unavailable);
    }
}
