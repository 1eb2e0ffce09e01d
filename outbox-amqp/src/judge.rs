//! What the confirmations of a flight say about its messages.

use std::collections::HashMap;

use lapin::Confirmation;
use lapin::message::BasicReturnMessage;
use lapin::types::ShortString;
use outbox_core::PublishError;

use crate::ending::spoken;
use crate::flight::Landed;
use crate::parcel::Parcel;

/// How publishing one message ended.
pub(crate) type Verdict = Result<(), PublishError>;

#[derive(Default)]
pub(crate) struct Judged {
    pub(crate) verdicts: Vec<(usize, Verdict)>,
    /// Why the channel ended, if it did.
    pub(crate) error: Option<lapin::Error>,
    /// Nothing is outstanding, so that the channel can serve another batch.
    pub(crate) clean: bool,
}

enum Answer {
    Ack { carries_a_return: bool },
    Nack,
    NotRequested,
}

/// lapin hands a returned message to whichever confirmation comes next, so it is found by its id.
#[derive(Default)]
struct Returns(HashMap<ShortString, BasicReturnMessage>);

/// `sent` is the number of messages of the flight, `parcels` are those of the batch.
pub(crate) fn judge(landed: Vec<(usize, Landed)>, sent: usize, parcels: &[Parcel<'_>]) -> Judged {
    let (mut returns, mut answers, mut judged) = (Returns::default(), Vec::new(), Judged::default());
    for (index, landed) in landed {
        match landed {
            Ok(confirmation) => answers.push((index, returns.keep(confirmation))),
            Err(error) => judged.error = Some(more_telling(judged.error.take(), error)),
        }
    }
    let complete = answers.len() == sent;
    judged.clean = complete && !answers.iter().any(|(_, answer)| matches!(answer, Answer::NotRequested));
    for (index, answer) in answers {
        let verdict = returns.verdict(&parcels[index], &answer, complete);
        judged.verdicts.extend(verdict.map(|verdict| (index, verdict)));
    }
    judged
}

impl Returns {
    fn keep(&mut self, confirmation: Confirmation) -> Answer {
        let nack = confirmation.is_nack();
        let returned = match confirmation {
            Confirmation::NotRequested => return Answer::NotRequested,
            Confirmation::Ack(returned) | Confirmation::Nack(returned) => returned,
        };
        let carries_a_return = returned.is_some();
        if let Some(returned) = returned {
            self.0.insert(returned.properties.message_id().clone().unwrap_or_default(), returned);
        }
        if nack { Answer::Nack } else { Answer::Ack { carries_a_return } }
    }

    /// `None`: not known.
    fn verdict(&self, parcel: &Parcel<'_>, answer: &Answer, complete: bool) -> Option<Verdict> {
        if let Some(returned) = self.0.get(parcel.message.msg_id()) {
            return Some(Err(unroutable(parcel, returned)));
        }
        match answer {
            Answer::Nack => Some(Err(nacked(parcel))),
            Answer::NotRequested => Some(Err(not_requested())),
            // It carries a stranger, so its own return may be waiting for a confirmation that has not come.
            Answer::Ack { carries_a_return: true } if !complete => None,
            Answer::Ack { .. } => Some(Ok(())),
        }
    }
}

fn unroutable(parcel: &Parcel<'_>, returned: &BasicReturnMessage) -> PublishError {
    PublishError::failed(format!(
        "returned as unroutable ({} {}): no queue takes {}; bind one or correct the route",
        returned.reply_code,
        returned.reply_text,
        parcel.target()
    ))
}

fn nacked(parcel: &Parcel<'_>) -> PublishError {
    PublishError::failed(format!(
        "refused (nack) by a queue behind {}: it is full or cannot store now; trying again may help",
        parcel.target()
    ))
}

fn not_requested() -> PublishError {
    PublishError::failed("the channel was not in confirm mode, so nothing is known; it is sent again")
}

/// What the broker said tells more than the state in which lapin noticed.
fn more_telling(known: Option<lapin::Error>, new: lapin::Error) -> lapin::Error {
    match known {
        Some(known) if spoken(&known).is_some() || spoken(&new).is_none() => known,
        _ => new,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use lapin::message::Delivery;
    use lapin::{BasicProperties, ErrorKind};
    use outbox_core::{Message, PublishErrorKind};

    use super::*;
    use crate::route::Route;

    fn messages(n: usize) -> Vec<Message> {
        (0..n).map(|i| Message::binary("t", "b", "").unwrap().with_msg_id(i.to_string()).unwrap()).collect()
    }

    fn returned(id: usize) -> Option<BasicReturnMessage> {
        let mut delivery = Delivery::mock(0, "e".into(), "t".into(), false, Vec::new());
        delivery.properties = BasicProperties::default().with_message_id(id.to_string().as_str().into());
        Some(BasicReturnMessage { delivery, reply_code: 312, reply_text: "NO_ROUTE".into() })
    }

    /// Whether each message is known, and published.
    fn outcome(landed: Vec<Landed>, sent: usize) -> (Vec<Option<bool>>, Judged) {
        let messages = messages(sent);
        let parcels: Vec<Parcel<'_>> = messages.iter().map(|m| Parcel::new(m, &Route::to("e"))).collect();
        let judged = judge(landed.into_iter().enumerate().collect(), sent, &parcels);
        let find = |i| judged.verdicts.iter().find(|(index, _)| *index == i).map(|(_, v)| v.is_ok());
        ((0..sent).map(find).collect(), judged)
    }

    #[test]
    fn returns_are_matched_by_id_not_by_position() {
        let landed = vec![
            Ok(Confirmation::Ack(returned(2))),
            Ok(Confirmation::Ack(None)),
            Ok(Confirmation::Ack(None)),
        ];
        let (known, judged) = outcome(landed, 3);
        assert_eq!(known, [Some(true), Some(true), Some(false)]);
        assert!(judged.clean);
    }

    #[test]
    fn an_ack_that_carries_a_strangers_return_proves_nothing_while_others_are_out() {
        let landed = vec![Ok(Confirmation::Ack(returned(2))), Ok(Confirmation::Ack(None))];
        let (known, judged) = outcome(landed, 3);
        assert_eq!(known, [None, Some(true), None]);
        assert!(!judged.clean);
    }

    #[test]
    fn a_channel_outside_confirm_mode_is_a_failure_and_not_used_again() {
        let (known, judged) = outcome(vec![Ok(Confirmation::NotRequested), Ok(Confirmation::Ack(None))], 2);
        assert_eq!(known, [Some(false), Some(true)]);
        assert!(!judged.clean);
        assert_eq!(judged.verdicts[0].1.as_ref().unwrap_err().kind(), PublishErrorKind::Failed);
    }

    #[test]
    fn a_nack_is_a_failure() {
        let (known, judged) =
            outcome(vec![Ok(Confirmation::Nack(None)), Ok(Confirmation::Nack(returned(1)))], 2);
        assert_eq!(known, [Some(false), Some(false)]);
        assert!(judged.clean);
    }

    #[test]
    fn the_brokers_words_are_kept_whatever_comes_first() {
        let words = || lapin::protocol::AMQPError::from_id(404, "NOT_FOUND".into()).unwrap();
        let spoke = || lapin::Error::from(ErrorKind::ProtocolError(words()));
        let state = || lapin::Error::from(ErrorKind::InvalidChannel(1));
        for landed in [vec![Err(spoke()), Err(state())], vec![Err(state()), Err(spoke())]] {
            let (_, judged) = outcome(landed, 2);
            assert_eq!(judged.error, Some(spoke()));
        }
    }
}
