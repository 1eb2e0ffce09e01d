use std::collections::HashMap;

use lapin::Confirmation;
use lapin::message::BasicReturnMessage;
use lapin::protocol::AMQPError;
use outbox_core::PublishError;

use crate::envelope::Envelope;
use crate::error::spoken;
use crate::flight::Landed;

pub(crate) type Verdict = Result<(), PublishError>;

/// What a flight says about each of its messages.
#[derive(Default)]
pub(crate) struct Verdicts {
    pub(crate) known: Vec<(usize, Verdict)>,
    /// Why the channel ended, if it did.
    pub(crate) error: Option<lapin::Error>,
    /// Nothing is outstanding, so that the channel can serve another batch.
    pub(crate) clean: bool,
}

impl Verdicts {
    /// `of` names the envelope of each of the `sent` messages.
    pub(crate) fn new<'a>(
        landed: Vec<(usize, Landed)>,
        sent: usize,
        of: impl Fn(usize) -> Option<&'a Envelope>,
    ) -> Self {
        let mut verdicts = Self::default();
        let (confirmed, errors): (Vec<_>, Vec<_>) =
            landed.into_iter().partition(|(_, landed)| landed.is_ok());
        verdicts.error = errors.into_iter().filter_map(|(_, landed)| landed.err()).reduce(more_telling);
        let confirmed: Vec<(usize, Confirmation)> =
            confirmed.into_iter().filter_map(|(index, landed)| Some((index, landed.ok()?))).collect();
        let complete = confirmed.len() == sent;
        let unrequested = confirmed.iter().any(|(_, c)| matches!(c, Confirmation::NotRequested));
        verdicts.clean = complete && !unrequested;
        verdicts.known = judge(confirmed, complete, of);
        verdicts
    }
}

/// lapin hands a returned message to whichever confirmation comes next, so it is found by its id. A
/// confirmation that carries a stranger proves nothing before all are in: its own return may be next in line.
fn judge<'a>(
    confirmed: Vec<(usize, Confirmation)>,
    complete: bool,
    of: impl Fn(usize) -> Option<&'a Envelope>,
) -> Vec<(usize, Verdict)> {
    let mut returns = HashMap::new();
    let mut plain = Vec::with_capacity(confirmed.len());
    for (index, confirmation) in confirmed {
        let acknowledged = match &confirmation {
            Confirmation::Ack(_) => Some(true),
            Confirmation::Nack(_) => Some(false),
            Confirmation::NotRequested => None,
        };
        let returned = confirmation.take_message();
        plain.push((index, acknowledged, returned.is_some()));
        if let Some(returned) = returned {
            returns.insert(returned.properties.message_id().clone(), returned);
        }
    }
    plain
        .into_iter()
        .filter_map(|(index, acknowledged, carried)| {
            let envelope = of(index)?;
            let returned = returns.get(envelope.properties.message_id());
            let verdict = match (returned, acknowledged) {
                (Some(returned), _) => Err(unroutable(envelope, returned)),
                (None, Some(false)) => Err(nacked(envelope)),
                (None, None) => Err(not_requested()),
                (None, Some(true)) if carried && !complete => return None,
                (None, Some(true)) => Ok(()),
            };
            Some((index, verdict))
        })
        .collect()
}

fn unroutable(envelope: &Envelope, returned: &BasicReturnMessage) -> PublishError {
    PublishError::failed(format!(
        "returned as unroutable ({} {}): no queue takes {}; bind one or correct the route",
        returned.reply_code,
        returned.reply_text,
        envelope.target()
    ))
}

fn nacked(envelope: &Envelope) -> PublishError {
    PublishError::failed(format!(
        "refused (nack) by a queue behind {}: it is full or cannot store now; trying again may help",
        envelope.target()
    ))
}

fn not_requested() -> PublishError {
    PublishError::failed("the channel was not in confirm mode, so nothing is known; it is sent again")
}

/// What the broker said tells more than the state lapin was in when it noticed.
fn more_telling(first: lapin::Error, second: lapin::Error) -> lapin::Error {
    if spoken(&first).is_none() && spoken(&second).is_some() { second } else { first }
}

/// Whether the broker closed the channel because of this message, as far as its words tell.
pub(crate) fn is_blamed(error: &AMQPError, envelope: &Envelope, body: &[u8]) -> bool {
    let text = error.get_message().as_str();
    let exchange = &envelope.exchange;
    match error.get_id() {
        404 => text.starts_with(&format!("NOT_FOUND - no exchange '{exchange}' in vhost ")),
        403 => {
            let topic = format!("topic '{}' in exchange '{exchange}' in vhost ", envelope.routing_key);
            text.contains(&topic)
                || (text.contains(&format!("exchange '{exchange}' in vhost ")) && !text.contains(" topic '"))
        }
        406 => refused_size(text).is_some_and(|size| body.len() >= size),
        _ => false,
    }
}

/// From "message size 134217729 is larger than configured max size 134217728".
fn refused_size(text: &str) -> Option<usize> {
    let (_, size) = text.split_once("message size ")?;
    size.split_whitespace().next()?.parse().ok()
}

/// The error of a message for which the broker closed the channel or the connection.
pub(crate) fn guilty(error: &AMQPError, envelope: &Envelope) -> PublishError {
    let text = error.get_message();
    match error.get_id() {
        404 => PublishError::failed(format!("{text}; declare the exchange or correct the route")),
        403 => PublishError::failed(format!("{text}; grant the permission or correct the route")),
        311 | 406 => PublishError::rejected(format!("the broker refuses it for good: {text}")),
        _ => PublishError::failed(format!("the broker broke off at {}: {text}", envelope.target())),
    }
}
