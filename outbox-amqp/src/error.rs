use std::io;

use lapin::ErrorKind;
use lapin::protocol::{AMQPError, AMQPErrorKind};
use outbox_core::PublishError;

use crate::address::Address;
use crate::topology::DeclareError;

/// What is wrong with a configuration. The URI is never quoted: it holds a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidAmqpConfig {
    /// Not an AMQP URI.
    #[error("the AMQP URI is not of the form amqp://user:password@host:5672/vhost (or amqps://…:5671/…)")]
    NotAUri,
    /// There is an `@` behind the host: part of a password or name was not encoded.
    #[error("the AMQP URI has an @ behind the host; percent-encode / ? # and @ in user, password and vhost")]
    NotEncoded,
}

/// Why the broker takes nothing now; becomes the error of every message that it concerns.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    text: String,
    source: Option<lapin::Error>,
}

impl Trouble {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), source: None }
    }

    pub(crate) fn lost(error: lapin::Error) -> Self {
        let text = format!("the connection to RabbitMQ was lost: {error}; it is opened anew at the next try");
        Self { text, source: Some(error) }
    }

    pub(crate) fn connecting(address: &Address, error: lapin::Error) -> Self {
        let text = format!("cannot connect to {address}: {}", hint(address, &error));
        Self { text, source: Some(error) }
    }

    pub(crate) fn declaring(error: DeclareError) -> Self {
        let text = format!("the topology could not be declared: {error}; nothing is published until it can");
        match error {
            DeclareError::Refused(source) => Self { text, source: Some(source) },
            DeclareError::TooLong(_) => Self::new(text),
        }
    }

    /// Several hosts, none of which can be used.
    pub(crate) fn all(troubles: Vec<Self>) -> Self {
        let text = troubles.iter().map(|trouble| trouble.text.as_str()).collect::<Vec<_>>().join("; ");
        Self { text, source: troubles.into_iter().find_map(|trouble| trouble.source) }
    }

    pub(crate) fn blocked() -> Self {
        Self::new(
            "RabbitMQ takes no messages (memory or disk alarm); what it had not confirmed may be stored later, \
             so a duplicate is possible",
        )
    }

    pub(crate) fn busy() -> Self {
        Self::new(
            "nothing was sent: no channel became free in time; raise the number of channels or batch more",
        )
    }

    pub(crate) fn late() -> Self {
        Self::new("nothing was sent: no connection to RabbitMQ within the confirm timeout")
    }

    pub(crate) fn silent() -> Self {
        Self::new("RabbitMQ does not answer; the connection was cut and is opened anew at the next try")
    }

    pub(crate) fn unavailable(&self) -> PublishError {
        let error = PublishError::unavailable(self.text.clone());
        match &self.source {
            Some(source) => error.with_source(source.clone()),
            None => error,
        }
    }
}

fn hint(address: &Address, error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(refusal) => refused(address, refusal),
        ErrorKind::IOError(cause) if cause.kind() == io::ErrorKind::ConnectionRefused => {
            "nothing listens there; is RabbitMQ up, and are host and port right?".into()
        }
        ErrorKind::IOError(cause) => cause.to_string(),
        _ => error.to_string(),
    }
}

fn refused(address: &Address, refusal: &AMQPError) -> String {
    let text = refusal.get_message();
    match refusal.get_id() {
        403 => format!("user {:?} was not let in; check user name and password ({text})", address.user()),
        530 => format!(
            "vhost {:?} cannot be opened; does it exist, and may user {:?} use it? ({text})",
            address.vhost(),
            address.user()
        ),
        _ => text.to_string(),
    }
}

/// What the broker said when it closed a channel or the connection, if it did.
pub(crate) fn spoken(error: &lapin::Error) -> Option<&AMQPError> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error),
        _ => None,
    }
}

/// Whether the broker closed only the channel.
pub(crate) fn is_soft(error: &AMQPError) -> bool {
    matches!(error.kind(), AMQPErrorKind::Soft(_))
}
