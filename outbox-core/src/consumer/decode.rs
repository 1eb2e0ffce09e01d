use std::any::type_name;

use serde::de::DeserializeOwned;

use super::handler::HandlerError;
use crate::payload::Payload;

/// What a handler can take as its payload: every type that `serde` can read from JSON, or [`Payload`] itself
/// for bytes in a format of your own.
pub trait Decode: Sized + Send {
    /// Reads it.
    ///
    /// # Errors
    /// A rejection: what cannot be read now cannot be read later.
    fn decode(payload: &Payload) -> Result<Self, HandlerError>;
}

impl<T: DeserializeOwned + Send> Decode for T {
    fn decode(payload: &Payload) -> Result<Self, HandlerError> {
        payload.decode().map_err(|error| HandlerError::reject(describe::<T>(&error)))
    }
}

impl Decode for Payload {
    fn decode(payload: &Payload) -> Result<Self, HandlerError> {
        Ok(payload.clone())
    }
}

/// The parser's own words quote the payload, but for those of a missing field, which name only the field.
fn describe<T>(error: &serde_json::Error) -> String {
    let words = error.to_string();
    let problem = if words.starts_with("missing field") {
        words
    } else {
        format!("{:?} error at line {} column {}", error.classify(), error.line(), error.column())
    };
    format!("the payload is no {}: {problem}", type_name::<T>())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Order {
        amount: u32,
    }

    fn json(text: &str) -> Payload {
        Payload::json_text(text).unwrap()
    }

    #[test]
    fn json_is_read_from_either_kind_of_payload() {
        assert_eq!(Order::decode(&json(r#"{"amount": 3}"#)).unwrap(), Order { amount: 3 });
        let bytes = Payload::Binary(Bytes::from_static(br#"{"amount": 3}"#));
        assert_eq!(Order::decode(&bytes).unwrap(), Order { amount: 3 });
        assert_eq!(<Payload as Decode>::decode(&bytes).unwrap(), bytes);
    }

    #[test]
    fn an_unreadable_payload_is_a_rejection_that_quotes_nothing() {
        for (text, part) in
            [(r#"{"amount": "secret"}"#, "Data error at line 1"), ("{}", "missing field `amount`")]
        {
            let error = Order::decode(&json(text)).unwrap_err();
            assert!(error.is_rejection());
            let words = format!("{error} {error:?}");
            assert!(words.contains(part) && !words.contains("secret"), "{words}");
        }
    }
}
