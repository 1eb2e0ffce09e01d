use std::collections::BTreeMap;

use chrono::Utc;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use uuid::Uuid;

use crate::message::{Message, StoredMessage};
use crate::payload::Payload;
use crate::receipt::{Receipt, Verdict};

/// The `biz_type` of receipts.
pub const BIZ_TYPE: &str = "outbox.receipt";
const VERSION: u32 = 1;

/// A receipt as it travels.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Slip {
    version: u32,
    msg_id: String,
    group: String,
    #[serde(default, deserialize_with = "number")]
    claim_no: u64,
    verdict: Word,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Handled,
    Rejected,
}

/// As a number, or in digits: that is how it stands in the header it is copied from.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Plain(u64),
        Digits(String),
    }
    match Number::deserialize(from)? {
        Number::Plain(number) => Ok(number),
        Number::Digits(digits) => digits.parse().map_err(D::Error::custom),
    }
}

/// Only what all versions have.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// The message that carries `receipt`. It goes into no table, so nothing in it is too long for one.
///
/// # Errors
/// None that is known.
pub fn message(receipt: &Receipt) -> Result<Message, serde_json::Error> {
    let Receipt { msg_id, group, claim_no, verdict } = receipt.clone();
    let (verdict, reason) = match verdict {
        Verdict::Handled => (Word::Handled, None),
        Verdict::Rejected { reason } => (Word::Rejected, Some(reason)),
    };
    let slip = Slip { version: VERSION, msg_id, group, claim_no, verdict, reason };
    Ok(Message::from_stored(StoredMessage {
        msg_id: Uuid::now_v7().to_string(),
        biz_type: BIZ_TYPE.to_owned(),
        biz_id: receipt.msg_id.clone(),
        payload: Payload::Binary(serde_json::to_vec(&slip)?.into()),
        content_type: Some("application/json".to_owned()),
        headers: BTreeMap::new(),
        ordering_key: None,
        created_at: Utc::now(),
        claim_no: 0,
    }))
}

/// Reads a body; in what is said of an unreadable one, nothing of it is quoted.
///
/// # Errors
/// Why it is no receipt, for people.
pub fn read(body: &[u8]) -> Result<Receipt, String> {
    let unreadable = |error: serde_json::Error| format!("no receipt: {:?} error", error.classify());
    let Versioned { version } = serde_json::from_slice(body).map_err(unreadable)?;
    if version != VERSION {
        return Err(format!("a receipt of version {version}, which needs a newer listener"));
    }
    let slip: Slip = serde_json::from_slice(body).map_err(unreadable)?;
    if slip.msg_id.is_empty() || slip.group.is_empty() {
        return Err("a receipt without a message or a group".to_owned());
    }
    Ok(match slip.verdict {
        Word::Handled => Receipt::handled(slip.msg_id, slip.group, slip.claim_no),
        Word::Rejected => {
            // Whatever an error of a handler said: no table takes this character.
            let reason = slip.reason.unwrap_or_default().replace('\0', "\u{fffd}");
            Receipt::rejected(slip.msg_id, slip.group, slip.claim_no, reason)
        }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_read_as_it_was() {
        for receipt in
            [Receipt::handled("m-1", "points", 7), Receipt::rejected("m-1", "points", 7, "no such product")]
        {
            assert_eq!(read(message(&receipt).unwrap().payload().as_bytes()), Ok(receipt));
        }
    }

    #[test]
    fn no_text_keeps_a_rejection_from_being_told() {
        let receipt = Receipt::rejected("m".repeat(300), "points", 7, "a\0b");
        let read = read(message(&receipt).unwrap().payload().as_bytes()).unwrap();
        assert_eq!(read, Receipt::rejected("m".repeat(300), "points", 7, "a\u{fffd}b"));
    }

    /// Others write and read them: this is the contract.
    #[test]
    fn the_format_is_the_documented_one() {
        let body =
            |receipt| String::from_utf8(message(&receipt).unwrap().payload().as_bytes().to_vec()).unwrap();
        assert_eq!(
            body(Receipt::handled("m-1", "points", 7)),
            r#"{"version":1,"msg_id":"m-1","group":"points","claim_no":7,"verdict":"handled"}"#
        );
        assert_eq!(
            body(Receipt::rejected("m-1", "points", 7, "why")),
            r#"{"version":1,"msg_id":"m-1","group":"points","claim_no":7,"verdict":"rejected","reason":"why"}"#
        );
        let foreign = br#"{"group":"points","more":[1],"msg_id":"m-1","verdict":"handled","version":1}"#;
        assert_eq!(read(foreign), Ok(Receipt::handled("m-1", "points", 0)));
        let digits = br#"{"version":1,"msg_id":"m-1","group":"points","claim_no":"7","verdict":"handled"}"#;
        assert_eq!(read(digits), Ok(Receipt::handled("m-1", "points", 7)));
    }

    #[test]
    fn unreadable_ones_say_why_and_quote_nothing() {
        for (body, part) in [
            ("secret", "Syntax error"),
            (r#"{"version":1,"msg_id":"m","group":"g","verdict":"secret"}"#, "Data error"),
            (r#"{"version":1,"msg_id":"","group":"g","verdict":"handled"}"#, "without a message"),
            (r#"{"version":2,"secret":"other"}"#, "version 2, which needs a newer listener"),
            (r#"{"msg_id":"m","group":"g","verdict":"handled"}"#, "Data error"),
        ] {
            let words = read(body.as_bytes()).unwrap_err();
            assert!(words.contains(part) && !words.contains("secret"), "{words}");
        }
    }
}
