use std::collections::BTreeMap;
use std::sync::Arc;

use outbox_core::{Message, Payload, Policies, StoreError, Timestamp};
use serde_json::json;
use sqlx::Connection;

use crate::dialect::Dialect;
use crate::error::{duplicate, not_in_transaction, store_error};
use crate::sql::Sql;
use crate::store::{SqlDatabase, SqlStore};
use crate::time::storable;

/// What becomes of messages that are in the outbox already.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known {
    Refused,
    LeftOut,
}

impl Known {
    fn end<DB: Dialect>(self) -> String {
        if self == Self::LeftOut { DB::unless_there("msg_id").1 } else { String::new() }
    }

    /// Whether the database has refused a statement for one that was to be left out.
    fn is_why<DB: Dialect>(self, error: &sqlx::Error) -> bool {
        self == Self::LeftOut && error.as_database_error().is_some_and(DB::is_there)
    }
}

/// A message on its way into the table.
#[derive(Debug)]
pub struct NewRow {
    pub(crate) msg_id: String,
    pub(crate) biz_type: String,
    pub(crate) biz_id: String,
    pub(crate) json: Option<String>,
    pub(crate) bytes: Option<Vec<u8>>,
    pub(crate) content_type: Option<String>,
    pub(crate) headers: Option<String>,
    pub(crate) ordering_key: Option<String>,
    pub(crate) required_groups: Option<Vec<String>>,
    /// Now, if none is given.
    pub(crate) due: Option<Timestamp>,
}

/// The columns of a [`NewRow`], in its order.
const COLUMNS: &str = "msg_id, biz_type, biz_id, payload, payload_bin, content_type, headers, ordering_key, \
     required_groups, received_count, next_retry_time, created_at";

impl NewRow {
    pub(crate) fn required_json(&self) -> Option<String> {
        self.required_groups.as_ref().map(|groups| json!(groups).to_string())
    }
}

impl<DB: SqlDatabase> SqlStore<DB> {
    pub(crate) async fn insert(
        &self,
        conn: &mut DB::Connection,
        messages: &[Message],
        known: Known,
    ) -> Result<usize, StoreError> {
        if !conn.is_in_transaction() {
            return Err(not_in_transaction("the message could exist without the business data", "enqueue"));
        }
        for message in messages {
            message.validate(&self.limits)?;
        }
        if !messages.is_empty() {
            self.db.look_at_the_clock_once(conn).await?;
        }
        match &*split(messages, DB::ROWS_PER_INSERT, DB::BYTES_PER_INSERT) {
            [] => Ok(0),
            [batch] => self.insert_batch(conn, batch, known).await,
            batches => self.insert_batches(conn, batches, known).await,
        }
    }

    /// In a savepoint: all of them or none.
    async fn insert_batches(
        &self,
        conn: &mut DB::Connection,
        batches: &[&[Message]],
        known: Known,
    ) -> Result<usize, StoreError> {
        let mut savepoint = conn.begin().await.map_err(store_error::<DB>)?;
        let mut written = 0;
        for batch in batches {
            written += self.insert_batch(&mut savepoint, batch, known).await?;
        }
        savepoint.commit().await.map_err(store_error::<DB>)?;
        Ok(written)
    }

    /// All of them or none.
    async fn insert_batch(
        &self,
        conn: &mut DB::Connection,
        messages: &[Message],
        known: Known,
    ) -> Result<usize, StoreError> {
        match self.try_insert(conn, messages, known).await {
            Err(error) if known.is_why::<DB>(&error) => self.insert_one_by_one(conn, messages).await,
            done => done.map_err(|error| duplicate::<DB>(error, messages)),
        }
    }

    /// Where one that is there keeps the others of a statement from being written.
    async fn insert_one_by_one(
        &self,
        conn: &mut DB::Connection,
        messages: &[Message],
    ) -> Result<usize, StoreError> {
        let mut savepoint = conn.begin().await.map_err(store_error::<DB>)?;
        let mut written = 0;
        for message in messages.chunks(1) {
            written += match self.try_insert(&mut savepoint, message, Known::LeftOut).await {
                Err(error) if Known::LeftOut.is_why::<DB>(&error) => 0,
                done => done.map_err(|error| duplicate::<DB>(error, message))?,
            };
        }
        savepoint.commit().await.map_err(store_error::<DB>)?;
        Ok(written)
    }

    async fn try_insert(
        &self,
        conn: &mut DB::Connection,
        messages: &[Message],
        known: Known,
    ) -> Result<usize, sqlx::Error> {
        let rows = messages.iter().map(|message| self.new_row(message)).collect();
        let sql = self.sql().text(format!("INSERT INTO {} ({COLUMNS}) ", self.names.outbox));
        let sql = DB::push_new_rows(sql, rows, &self.names.receipts).text(known.end::<DB>());
        sql.try_execute(conn).await
    }

    fn new_row(&self, message: &Message) -> NewRow {
        let (json, bytes) = match message.payload() {
            Payload::Json(text) => (Some(text.as_str().to_owned()), None),
            Payload::Binary(bytes) => (None, Some(bytes.to_vec())),
        };
        let required = |policies: &Arc<Policies>| policies.of(message.biz_type()).required_groups().to_vec();
        NewRow {
            msg_id: message.msg_id().to_owned(),
            biz_type: message.biz_type().to_owned(),
            biz_id: message.biz_id().to_owned(),
            json,
            bytes,
            content_type: message.explicit_content_type().map(str::to_owned),
            headers: headers(message.headers()),
            ordering_key: message.ordering_key().map(str::to_owned),
            required_groups: self.policies.as_ref().map(required),
            due: message.deliver_after().map(storable),
        }
    }
}

fn headers(headers: &BTreeMap<String, String>) -> Option<String> {
    (!headers.is_empty()).then(|| json!(headers).to_string())
}

/// A row of parameters for each message.
pub(crate) fn push_values<DB: Dialect>(mut sql: Sql<DB>, rows: Vec<NewRow>, receipts: &str) -> Sql<DB> {
    let mut before = "VALUES (";
    for row in rows {
        sql = push_row(sql.text(before), row, receipts);
        before = ", (";
    }
    sql
}

fn push_row<DB: Dialect>(sql: Sql<DB>, row: NewRow, receipts: &str) -> Sql<DB> {
    let (received, required) = (Received::of(&row), row.required_json());
    let sql = sql.bind(row.msg_id).text(", ").bind(row.biz_type).text(", ").bind(row.biz_id).text(", ");
    let sql = sql.bind(row.json).text(DB::AS_JSON).text(", ").bind(row.bytes).text(", ");
    let sql = sql.bind(row.content_type).text(", ").bind(row.headers).text(DB::AS_JSON).text(", ");
    let sql = sql.bind(row.ordering_key).text(", ").bind(required).text(DB::AS_JSON).text(", ");
    let sql = received.push(sql, receipts).text(", ");
    let sql = match row.due {
        Some(due) => sql.time(due),
        None => sql.now(),
    };
    sql.text(", ").now().text(")")
}

/// The receipts that came before their message.
enum Received {
    None,
    Among { msg_id: String, groups: Vec<String> },
}

impl Received {
    fn of(row: &NewRow) -> Self {
        match &row.required_groups {
            Some(groups) if !groups.is_empty() => {
                Self::Among { msg_id: row.msg_id.clone(), groups: groups.clone() }
            }
            _ => Self::None,
        }
    }

    fn push<DB: Dialect>(self, sql: Sql<DB>, receipts: &str) -> Sql<DB> {
        let Self::Among { msg_id, groups } = self else { return sql.text("0") };
        sql.text(format!("(SELECT count(*) FROM {receipts} WHERE verdict = 'handled' AND msg_id = "))
            .bind(msg_id)
            .text(" AND consumer_group")
            .among_texts(groups)
            .text(")")
    }
}

/// Cuts a batch where one statement would get too long.
fn split(mut messages: &[Message], max_rows: usize, max_bytes: usize) -> Vec<&[Message]> {
    let mut batches = Vec::new();
    while !messages.is_empty() {
        let (batch, rest) = messages.split_at(fitting(messages, max_rows, max_bytes));
        batches.push(batch);
        messages = rest;
    }
    batches
}

/// How many of `messages` fit into one statement; at least one.
fn fitting(messages: &[Message], max_rows: usize, max_bytes: usize) -> usize {
    let mut bytes = 0;
    let fits = |message: &&Message| {
        bytes += message.payload().len();
        bytes <= max_bytes
    };
    messages.iter().take(max_rows).take_while(fits).count().max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn messages(sizes: &[usize]) -> Vec<Message> {
        sizes.iter().map(|n| Message::binary("a", "b", vec![0; *n]).unwrap()).collect()
    }

    #[test]
    fn batches_are_cut_by_rows_and_by_bytes() {
        const MAX: usize = 1_000;
        let sizes = |messages: &[Message], rows| -> Vec<usize> {
            split(messages, rows, MAX).iter().map(|batch| batch.len()).collect()
        };
        assert_eq!(sizes(&messages(&[1; 7]), 3), [3, 3, 1]);
        assert_eq!(sizes(&messages(&[MAX + 1, 1, MAX - 1, 1]), 9), [1, 2, 1]);
        assert!(sizes(&[], 3).is_empty());
    }
}
