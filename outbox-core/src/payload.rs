use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::message::InvalidMessage;

/// The body of a message: JSON text, stored in a JSON column that people can query, or bytes of any kind.
#[derive(Clone, PartialEq, Eq)]
pub enum Payload {
    /// A JSON document.
    Json(JsonText),
    /// Anything else.
    Binary(Bytes),
}

/// Text that is one JSON document which every JSON column accepts. PostgreSQL normalises what it stores: the
/// published bytes may differ from the enqueued ones in key order, white space and number form.
#[derive(Clone, PartialEq, Eq)]
pub struct JsonText(String);

impl JsonText {
    /// Text that a database or a broker holds as JSON, taken at its word: for adapters that read messages back.
    #[must_use]
    pub fn from_stored(text: String) -> Self {
        Self(text)
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Payload {
    /// Serializes `value` to JSON.
    ///
    /// # Errors
    /// [`InvalidMessage`] when `value` does not serialize, or when it holds what no JSON column accepts.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, InvalidMessage> {
        let text = serde_json::to_string(value).map_err(|e| InvalidMessage::new("payload", e.to_string()))?;
        refuse_nul(&text)?;
        Ok(Self::Json(JsonText(text)))
    }

    /// Takes JSON that is already text.
    ///
    /// # Errors
    /// [`InvalidMessage`] when `text` is not one valid JSON document.
    pub fn json_text(text: impl Into<String>) -> Result<Self, InvalidMessage> {
        let text = text.into();
        // Parsing into a Value, not IgnoredAny, also finds lone surrogates and numbers out of range.
        serde_json::from_str::<serde_json::Value>(&text)
            .map_err(|e| InvalidMessage::new("payload", format!("is not JSON: {e}")))?;
        refuse_nul(&text)?;
        Ok(Self::Json(JsonText(text)))
    }

    /// The bytes that go to the broker.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Json(text) => text.0.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.as_bytes().len()
    }

    /// Whether there are no bytes at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }

    pub(crate) fn default_content_type(&self) -> &'static str {
        match self {
            Self::Json(_) => "application/json",
            Self::Binary(_) => "application/octet-stream",
        }
    }

    /// Decodes JSON, from either kind.
    ///
    /// # Errors
    /// What `serde_json` says.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(self.as_bytes())
    }
}

/// Never prints the contents: payloads carry personal data, and `Debug` ends in logs.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(text) => write!(f, "Json({} bytes)", text.0.len()),
            Self::Binary(bytes) => write!(f, "Binary({} bytes)", bytes.len()),
        }
    }
}

/// PostgreSQL's JSONB cannot hold U+0000 and would abort the business transaction; so no store takes it.
fn refuse_nul(text: &str) -> Result<(), InvalidMessage> {
    let mut rest = text;
    while let Some(at) = rest.find("\\u0000") {
        let backslashes = rest[..at].bytes().rev().take_while(|b| *b == b'\\').count();
        if backslashes % 2 == 0 {
            return Err(InvalidMessage::new(
                "payload",
                "holds the character U+0000, which JSON columns refuse; send it as a binary payload",
            ));
        }
        rest = &rest[at + 6..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nul_is_refused_but_its_escaped_spelling_is_not() {
        assert!(Payload::json(&"a\0b").is_err());
        assert!(Payload::json(&"a\\u0000b").is_ok());
        assert!(Payload::json(&"\\\0").is_err());
    }

    #[test]
    fn text_must_be_one_json_document() {
        assert!(Payload::json_text("{\"a\":1}").is_ok());
        for bad in ["", "{", "1 2", "\"\\ud800\"", "1e999999"] {
            assert!(Payload::json_text(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn debug_shows_the_size_only() {
        let payload = Payload::json(&"secret").unwrap();
        assert_eq!(format!("{payload:?}"), "Json(8 bytes)");
    }
}
