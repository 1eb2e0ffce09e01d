use lapin::ErrorKind;
use lapin::protocol::{AMQPError, AMQPErrorKind};

/// What the broker said when it closed a channel or the connection, if it did.
pub(crate) fn spoken(error: &lapin::Error) -> Option<&AMQPError> {
    match error.kind() {
        ErrorKind::ProtocolError(words) => Some(words),
        _ => None,
    }
}

/// Whether other channels of the connection go on.
pub(crate) fn ends_channel_only(words: &AMQPError) -> bool {
    matches!(words.kind(), AMQPErrorKind::Soft(_))
}

/// Why a channel ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The broker did not like a message.
    ForAMessage,
    /// Of itself: no message is the cause.
    OfTheChannel,
    /// The whole connection ended.
    OfTheConnection,
}

pub(crate) fn ending(error: &lapin::Error) -> Ending {
    let Some(words) = spoken(error) else { return Ending::OfTheChannel };
    match (words.kind(), words.get_id()) {
        (AMQPErrorKind::Soft(_), _) => Ending::ForAMessage,
        // "Channel error": lapin still had frames for a channel that the broker had closed just before.
        (AMQPErrorKind::Hard(_), 504) => Ending::OfTheChannel,
        (AMQPErrorKind::Hard(_), 501..=506 | 540..) => Ending::ForAMessage,
        (AMQPErrorKind::Hard(_), _) => Ending::OfTheConnection,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn endings_by_what_the_broker_says() {
        for (code, expected) in [
            (404, Ending::ForAMessage),
            (406, Ending::ForAMessage),
            (501, Ending::ForAMessage),
            (541, Ending::ForAMessage),
            (504, Ending::OfTheChannel),
            (320, Ending::OfTheConnection),
            (530, Ending::OfTheConnection),
        ] {
            let words = AMQPError::from_id(code, "x".into()).unwrap();
            assert_eq!(ending(&ErrorKind::ProtocolError(words).into()), expected, "{code}");
        }
        assert_eq!(ending(&ErrorKind::InvalidChannel(1).into()), Ending::OfTheChannel);
    }
}
