//! For which message the broker closed a channel, and what that means for it.

use lapin::protocol::AMQPError;
use outbox_core::PublishError;

use crate::parcel::Parcel;

/// Whether this message is the cause, as far as the broker's words tell.
pub(crate) fn is_blamed(words: &AMQPError, parcel: &Parcel<'_>) -> bool {
    let text = words.get_message().as_str();
    match words.get_id() {
        404 => text.starts_with(&format!("NOT_FOUND - no exchange '{}' in vhost ", parcel.exchange)),
        403 => is_refused(text, parcel),
        406 => size_limit(text).is_some_and(|limit| parcel.body().len() > limit),
        _ => false,
    }
}

/// Access can be refused to an exchange, or to some routing keys of it.
fn is_refused(text: &str, parcel: &Parcel<'_>) -> bool {
    let exchange = format!("exchange '{}' in vhost ", parcel.exchange);
    if text.contains(" topic '") {
        return text.contains(&format!(" topic '{}' in {exchange}", parcel.routing_key));
    }
    text.contains(&exchange)
}

/// From "message size 134217729 is larger than configured max size 134217728".
fn size_limit(text: &str) -> Option<usize> {
    let (_, sizes) = text.split_once("message size ")?;
    sizes.split_whitespace().next_back()?.parse().ok()
}

/// The error of the message that is the cause.
pub(crate) fn guilty(words: &AMQPError, parcel: &Parcel<'_>) -> PublishError {
    let text = words.get_message();
    match words.get_id() {
        404 => PublishError::failed(format!("{text}; declare the exchange or correct the route")),
        403 => PublishError::failed(format!("{text}; grant the permission or correct the route")),
        311 | 406 => PublishError::rejected(format!("the broker will never take it: {text}")),
        _ => PublishError::failed(format!("the broker broke off at {}: {text}", parcel.target())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outbox_core::Message;

    use super::*;
    use crate::route::Route;

    #[test]
    fn words_of_rabbitmq_are_understood() {
        let message = Message::binary("order.created", "1", vec![0; 100]).unwrap();
        let parcel = Parcel::new(&message, &Route::to("shop"));
        for (code, text, blamed) in [
            (404, "NOT_FOUND - no exchange 'shop' in vhost '/'", true),
            (404, "NOT_FOUND - no exchange 'shop2' in vhost '/'", false),
            (403, "ACCESS_REFUSED - cannot publish to internal exchange 'shop' in vhost '/'", true),
            (403, "ACCESS_REFUSED - access to exchange 'shop' in vhost '/' refused for user 'u'", true),
            (403, "ACCESS_REFUSED - write access to exchange 'x' in vhost '/' refused for user 'u'", false),
            (
                403,
                "ACCESS_REFUSED - access to topic 'order.created' in exchange 'shop' in vhost '/' refused",
                true,
            ),
            (
                403,
                "ACCESS_REFUSED - access to topic 'order.paid' in exchange 'shop' in vhost '/' refused",
                false,
            ),
            (406, "PRECONDITION_FAILED - message size 100 is larger than configured max size 99", true),
            (406, "PRECONDITION_FAILED - message size 1000 is larger than configured max size 100", false),
            (406, "PRECONDITION_FAILED - invalid message", false),
        ] {
            let words = AMQPError::from_id(code, text.into()).unwrap();
            assert_eq!(is_blamed(&words, &parcel), blamed, "{text}");
        }
    }
}
