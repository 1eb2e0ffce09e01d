use std::collections::{BTreeMap, BTreeSet};

use outbox_core::{JsonText, Message, Payload, Row, RowId, Status, StoredMessage, Timestamp};
use serde_json::Value;

use crate::dialect::Dialect;

/// The columns that [`stored`] reads, in its order.
pub(crate) fn stored_columns<DB: Dialect>() -> String {
    let (payload, headers) = (text::<DB>("payload"), text::<DB>("headers"));
    format!(
        "id, msg_id, biz_type, biz_id, {payload}, payload_bin, content_type, {headers}, ordering_key, created_at, \
         claim_no, retry_count, unsettled_claims"
    )
}

/// The columns that [`row`] reads, in its order.
pub(crate) fn row_columns<DB: Dialect>() -> String {
    let (stored, required) = (stored_columns::<DB>(), text::<DB>("required_groups"));
    format!(
        "{stored}, status, next_retry_time, lease_until, {required}, received_count, sent_at, completed_at, \
         ack_due, redeliveries, last_error"
    )
}

/// A JSON column, as text.
pub(crate) fn text<DB: Dialect>(column: &str) -> String {
    format!("CAST({column} AS {})", DB::TEXT)
}

/// Reads a row's columns from left to right.
pub(crate) struct Cells<'r, DB: Dialect> {
    row: &'r DB::Row,
    next: usize,
}

impl<'r, DB: Dialect> Cells<'r, DB> {
    pub(crate) fn of(row: &'r DB::Row) -> Self {
        Self { row, next: 0 }
    }

    fn column(&mut self) -> usize {
        self.next += 1;
        self.next - 1
    }

    /// A number; 0 where it is none or negative.
    pub(crate) fn number<T: TryFrom<i64> + Default>(&mut self) -> T {
        let column = self.column();
        DB::int(self.row, column).and_then(|n| T::try_from(n).ok()).unwrap_or_default()
    }

    pub(crate) fn id(&mut self) -> RowId {
        RowId(self.number())
    }

    pub(crate) fn text(&mut self) -> Option<String> {
        let column = self.column();
        DB::text(self.row, column)
    }

    pub(crate) fn time(&mut self) -> Option<Timestamp> {
        let column = self.column();
        DB::read_time(self.row, column)
    }

    fn bytes(&mut self) -> Option<Vec<u8>> {
        let column = self.column();
        DB::bytes(self.row, column)
    }
}

/// A message as it is on disk, and the counters of its row.
pub(crate) struct Stored {
    pub(crate) id: RowId,
    pub(crate) message: StoredMessage,
    pub(crate) retry_count: u32,
    pub(crate) unsettled_claims: u32,
}

pub(crate) fn stored<DB: Dialect>(cells: &mut Cells<'_, DB>) -> Stored {
    let id = cells.id();
    let message = StoredMessage {
        msg_id: cells.text().unwrap_or_default(),
        biz_type: cells.text().unwrap_or_default(),
        biz_id: cells.text().unwrap_or_default(),
        payload: payload(cells.text(), cells.bytes()),
        content_type: cells.text(),
        headers: cells.text().as_deref().map(headers).unwrap_or_default(),
        ordering_key: cells.text(),
        created_at: cells.time().unwrap_or_default(),
        claim_no: cells.number(),
    };
    Stored { id, message, retry_count: cells.number(), unsettled_claims: cells.number() }
}

pub(crate) fn row<DB: Dialect>(cells: &mut Cells<'_, DB>) -> Row {
    let Stored { id, message, retry_count, unsettled_claims } = stored(cells);
    Row {
        id,
        message: Message::from_stored(message),
        retry_count,
        unsettled_claims,
        status: status(cells.number()),
        next_retry_time: cells.time().unwrap_or_default(),
        lease_until: cells.time(),
        required_groups: cells.text().as_deref().map(groups).map(|groups| groups.into_iter().collect()),
        received: cells.number(),
        sent_at: cells.time(),
        completed_at: cells.time(),
        ack_due: cells.time(),
        redeliveries: cells.number(),
        last_error: cells.text(),
    }
}

/// A code that has no status is for a person to look at.
pub(crate) fn status(code: i16) -> Status {
    Status::from_code(code).unwrap_or(Status::Failed)
}

fn payload(json: Option<String>, bytes: Option<Vec<u8>>) -> Payload {
    match bytes {
        Some(bytes) => Payload::Binary(bytes.into()),
        None => Payload::Json(JsonText::from_stored(json.unwrap_or_else(|| "null".to_owned()))),
    }
}

/// A stranger's headers may have values of any JSON type: they become their JSON text.
fn headers(json: &str) -> BTreeMap<String, String> {
    let Ok(Value::Object(members)) = serde_json::from_str(json) else { return BTreeMap::new() };
    members.into_iter().map(|(name, value)| (name, string(value))).collect()
}

/// Names of groups from a JSON array.
pub(crate) fn groups(json: &str) -> BTreeSet<String> {
    let Ok(Value::Array(items)) = serde_json::from_str(json) else { return BTreeSet::new() };
    items.into_iter().map(string).collect()
}

fn string(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_headers_become_their_json_text() {
        let headers = headers(r#"{"a": "x", "b": 1, "c": null, "d": {"e": [true]}}"#);
        let expected = [("a", "x"), ("b", "1"), ("c", "null"), ("d", r#"{"e":[true]}"#)];
        assert_eq!(headers, expected.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    }

    #[test]
    fn what_is_not_an_object_has_no_headers() {
        assert!(headers("[1]").is_empty() && headers("{").is_empty());
    }
}
