//! The tables as they are to be.

use crate::keys::{Layout, MAX_GROUP, MAX_MSG_ID};
use crate::names::{Names, TableName};

/// The one index beside the keys, by the suffix of its name: the order of claims, and the counts of all statuses.
pub(super) const DUE: &str = "_due";
pub(super) const DUE_COLUMNS: &str = "(status, next_retry_time, id)";

/// The collation of text that is never looked up.
pub(super) const BYTES: &str = "utf8mb4_bin";

/// What a column is for, as far as its definition follows from it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text of so many characters at most, compared byte for byte.
    Text(usize),
    Error,
    Json,
    Bytes,
    Token,
    Small,
    Int,
    Long,
    Time,
    RequiredCount,
}

use Kind::{Bytes, Error, Int, Json, Long, RequiredCount, Small, Text, Time, Token};

/// Whether a column may be NULL, and what it is at first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    MayBeNull,
    Given,
    Default(&'static str),
}

use Rest::{Default, Given, MayBeNull};

/// In UTC, whatever the time zone of the session that writes.
pub(super) const NOW: &str = "(UTC_TIMESTAMP(6))";

/// All but the key. The article's come first, under its names.
pub(super) const COLUMNS: [(&str, Kind, Rest); 26] = [
    ("msg_id", Text(64), Given),
    ("biz_type", Text(128), Given),
    ("biz_id", Text(255), Given),
    ("payload", Json, MayBeNull),
    ("status", Small, Default("0")),
    ("retry_count", Int, Default("0")),
    ("next_retry_time", Time, Default(NOW)),
    ("created_at", Time, Default(NOW)),
    ("sent_at", Time, MayBeNull),
    ("payload_bin", Bytes, MayBeNull),
    ("content_type", Text(128), MayBeNull),
    ("headers", Json, MayBeNull),
    ("ordering_key", Text(255), MayBeNull),
    ("lane", Small, MayBeNull),
    ("key_seq", Long, MayBeNull),
    ("claim_token", Token, MayBeNull),
    ("claim_no", Long, Default("0")),
    ("lease_until", Time, MayBeNull),
    ("unsettled_claims", Int, Default("0")),
    ("required_groups", Json, MayBeNull),
    ("required_count", RequiredCount, MayBeNull),
    ("received_count", Int, Default("0")),
    ("ack_due", Time, MayBeNull),
    ("redeliveries", Int, Default("0")),
    ("completed_at", Time, MayBeNull),
    ("last_error", Error, MayBeNull),
];

/// Constraints, by the suffix of their names.
pub(super) const CHECKS: [(&str, &str); 4] = [
    ("_status", "status IN (0, 1, 2, 9)"),
    ("_one_payload", "(payload IS NULL) <> (payload_bin IS NULL)"),
    ("_headers", "JSON_TYPE(headers) = 'OBJECT'"),
    ("_groups", "JSON_TYPE(required_groups) = 'ARRAY'"),
];

pub(super) fn kind(kind: Kind, collation: &str) -> String {
    match kind {
        Text(max) => format!("VARCHAR({max}) CHARACTER SET utf8mb4 COLLATE {collation}"),
        Error => format!("TEXT CHARACTER SET utf8mb4 COLLATE {BYTES}"),
        Json => "JSON".to_owned(),
        Bytes => "LONGBLOB".to_owned(),
        Token => "BINARY(16)".to_owned(),
        Small => "SMALLINT".to_owned(),
        Int => "INT".to_owned(),
        Long => "BIGINT".to_owned(),
        Time => "DATETIME(6)".to_owned(),
        RequiredCount => "INT AS (COALESCE(JSON_LENGTH(required_groups), 0)) STORED".to_owned(),
    }
}

pub(super) fn definition(name: &str, kind: &str, rest: Rest) -> String {
    let rest = match rest {
        // A `TIMESTAMP` that was NOT NULL would stay so.
        MayBeNull if !kind.contains(" AS ") => " NULL".to_owned(),
        MayBeNull => String::new(),
        Given => " NOT NULL".to_owned(),
        Default(value) => format!(" NOT NULL DEFAULT {value}"),
    };
    format!("{name} {kind}{rest}")
}

fn options(collation: &str) -> String {
    format!("ENGINE = InnoDB ROW_FORMAT = DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}")
}

pub(super) fn check(table: &TableName, (suffix, check): (&str, &str)) -> String {
    format!("CONSTRAINT {} CHECK ({check})", table.local(suffix))
}

pub(super) fn unique(table: &TableName) -> String {
    format!("UNIQUE KEY {} (msg_id)", table.local("_msg_id"))
}

pub(super) fn due(table: &TableName) -> String {
    format!("KEY {} {DUE_COLUMNS}", table.local(DUE))
}

pub(super) fn create_outbox(names: &Names, collation: &str) -> String {
    let columns = COLUMNS
        .map(|(name, of, rest)| format!("    {},\n", definition(name, &kind(of, collation), rest)))
        .concat();
    let checks = CHECKS.map(|one| check(&names.table, one)).join(",\n    ");
    format!(
        "CREATE TABLE {} (\n    id BIGINT AUTO_INCREMENT PRIMARY KEY,\n{columns}    {},\n    {},\n    {checks}\n) {}",
        names.outbox,
        unique(&names.table),
        due(&names.table),
        options(collation)
    )
}

pub(super) fn create_receipts(names: &Names, collation: &str) -> String {
    let [msg_id, group] = [64, 255].map(|max| kind(Text(max), collation));
    format!(
        "CREATE TABLE IF NOT EXISTS {} (
            msg_id {msg_id} NOT NULL,
            consumer_group {group} NOT NULL,
            claim_no BIGINT NOT NULL,
            verdict VARCHAR(8) NOT NULL CHECK (verdict IN ('handled', 'rejected')),
            reason {},
            received_at DATETIME(6) NOT NULL DEFAULT {NOW},
            PRIMARY KEY (msg_id, consumer_group)
        ) {}",
        names.receipts,
        kind(Error, collation),
        options(collation)
    )
}

pub(super) fn create_keys(table: &TableName, Layout { token, time }: &Layout, collation: &str) -> String {
    let token = if *token { format!("token {},", kind(Token, collation)) } else { String::new() };
    let [group, msg_id] = [MAX_GROUP, MAX_MSG_ID].map(|max| kind(Text(max), collation));
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (
            consumer_group {group} NOT NULL,
            msg_id {msg_id} NOT NULL,
            {token}
            {time} DATETIME(6) NOT NULL DEFAULT {NOW},
            PRIMARY KEY (consumer_group, msg_id)
        ) {}",
        options(collation)
    )
}
