//! The tables as they are to be.

use crate::keys::{Layout, MAX_GROUP, MAX_MSG_ID};
use crate::names::{Names, TableName};

/// UTC with microseconds, in a form that sorts; the same in every row, whoever wrote it.
pub(super) const NOW: &str = "(strftime('%Y-%m-%d %H:%M:%f000', 'now'))";

/// What a column is for, as far as its definition follows from it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text of so many characters at most.
    Text(usize),
    Json,
    Bytes,
    Int,
    /// A counter, 0 at first.
    Count,
    Time,
    /// A time that every row has.
    TimeSet,
    /// Computed by the database.
    Computed,
}

use Kind::{Bytes, Computed, Count, Int, Json, Text, Time, TimeSet};

/// All but the key. The article's come first, under its names.
pub(super) const COLUMNS: [(&str, Kind); 26] = [
    ("msg_id", Text(64)),
    ("biz_type", Text(128)),
    ("biz_id", Text(255)),
    ("payload", Json),
    ("status", Count),
    ("retry_count", Count),
    ("next_retry_time", TimeSet),
    ("created_at", TimeSet),
    ("sent_at", Time),
    ("payload_bin", Bytes),
    ("content_type", Text(128)),
    ("headers", Json),
    ("ordering_key", Text(255)),
    ("lane", Int),
    ("key_seq", Int),
    ("claim_token", Text(36)),
    ("claim_no", Count),
    ("lease_until", Time),
    ("unsettled_claims", Count),
    ("required_groups", Json),
    ("required_count", Computed),
    ("received_count", Count),
    ("ack_due", Time),
    ("redeliveries", Count),
    ("completed_at", Time),
    ("last_error", Text(usize::MAX)),
];

/// What PostgreSQL's types refuse, and what all databases check.
const CHECKS: [&str; 6] = [
    "UNIQUE (msg_id)",
    "CHECK (msg_id IS NOT NULL AND biz_type IS NOT NULL AND biz_id IS NOT NULL)",
    "CHECK (status IN (0, 1, 2, 9))",
    "CHECK ((payload IS NULL) <> (payload_bin IS NULL))",
    "CHECK (json_type(headers) = 'object')",
    "CHECK (json_type(required_groups) = 'array')",
];

/// Indexes by the suffix of their names.
pub(super) const INDEXES: [(&str, &str); 4] = [
    ("_due", "(next_retry_time, id) WHERE status = 0"),
    ("_overdue", "(ack_due) WHERE status = 1"),
    ("_failed", "(id) WHERE status = 9"),
    ("_biz_id", "(biz_id)"),
];

pub(super) fn create_outbox(names: &Names, suffix: &str) -> String {
    let columns = COLUMNS.map(|(name, kind)| format!("    {name} {},\n", definition(name, kind))).concat();
    format!(
        "CREATE TABLE {} (\n    id INTEGER PRIMARY KEY AUTOINCREMENT,\n{columns}    {}\n);",
        names.table.qualified(suffix),
        CHECKS.join(",\n    ")
    )
}

fn definition(name: &str, kind: Kind) -> String {
    match kind {
        Text(usize::MAX) => "TEXT".to_owned(),
        Text(max) => format!("TEXT CHECK (typeof({name}) IN ('text', 'null') AND length({name}) <= {max})"),
        Json => {
            format!("TEXT CHECK (typeof({name}) IN ('text', 'null') AND json_valid({name}) IS NOT FALSE)")
        }
        Bytes => format!("BLOB CHECK (typeof({name}) IN ('blob', 'null'))"),
        Int => "INTEGER".to_owned(),
        Count => format!("INTEGER NOT NULL DEFAULT 0 CHECK (typeof({name}) = 'integer')"),
        Time => format!("TEXT CHECK ({})", is_time(name)),
        TimeSet => format!("TEXT NOT NULL DEFAULT {NOW} CHECK ({})", is_time(name)),
        Computed => {
            "INTEGER GENERATED ALWAYS AS (COALESCE(json_array_length(required_groups), 0))".to_owned()
        }
    }
}

/// A time in another form would sort wrongly, and its row be delivered late or never.
fn is_time(name: &str) -> String {
    const SECONDS: &str = "[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9]";
    format!("{name} GLOB '{SECONDS}' OR {name} GLOB '{SECONDS}.[0-9]*'")
}

pub(super) fn create_receipts(names: &Names) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {} (
            msg_id TEXT NOT NULL,
            consumer_group TEXT NOT NULL,
            claim_no INTEGER NOT NULL,
            verdict TEXT NOT NULL CHECK (verdict IN ('handled', 'rejected')),
            reason TEXT,
            received_at TEXT NOT NULL DEFAULT {NOW},
            PRIMARY KEY (msg_id, consumer_group)
        ) WITHOUT ROWID;",
        names.receipts
    )
}

pub(super) fn create_keys(table: &TableName, Layout { token, time }: &Layout) -> String {
    let token = if *token { format!("token {},", definition("token", Text(36))) } else { String::new() };
    let (group, id) = ("consumer_group", "msg_id");
    format!(
        "CREATE TABLE IF NOT EXISTS {table} (
            {group} {} NOT NULL,
            {id} {} NOT NULL,
            {token}
            {time} {},
            PRIMARY KEY ({group}, {id})
        ) WITHOUT ROWID;",
        definition(group, Text(MAX_GROUP)),
        definition(id, Text(MAX_MSG_ID)),
        definition(time, TimeSet)
    )
}

pub(super) fn create_index(table: &TableName, suffix: &str, definition: &str) -> String {
    format!("CREATE INDEX IF NOT EXISTS {} ON {} {definition};", table.qualified(suffix), table.local(""))
}
