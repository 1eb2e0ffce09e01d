//! The tables as they are to be.

use crate::keys::{Layout, MAX_GROUP, MAX_MSG_ID};
use crate::names::{Names, TableName};

/// A column of the outbox, its type as the catalog prints it.
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) kind: &'static str,
    /// Default and constraints.
    pub(super) rest: &'static str,
}

const fn column(name: &'static str, kind: &'static str, rest: &'static str) -> Column {
    Column { name, kind, rest }
}

pub(super) const TIME: &str = "timestamp with time zone";

/// All but the key. The article's come first, under its names.
pub(super) const COLUMNS: [Column; 26] = [
    column("msg_id", "character varying(64)", "NOT NULL UNIQUE"),
    column("biz_type", "character varying(128)", "NOT NULL"),
    column("biz_id", "character varying(255)", "NOT NULL"),
    column("payload", "jsonb", ""),
    column("status", "smallint", "NOT NULL DEFAULT 0"),
    column("retry_count", "integer", "NOT NULL DEFAULT 0"),
    column("next_retry_time", TIME, "NOT NULL DEFAULT now()"),
    column("created_at", TIME, "NOT NULL DEFAULT now()"),
    column("sent_at", TIME, ""),
    column("payload_bin", "bytea", ""),
    column("content_type", "character varying(128)", ""),
    column("headers", "jsonb", ""),
    column("ordering_key", "character varying(255)", ""),
    column("lane", "smallint", ""),
    column("key_seq", "bigint", ""),
    column("claim_token", "uuid", ""),
    column("claim_no", "bigint", "NOT NULL DEFAULT 0"),
    column("lease_until", TIME, ""),
    column("unsettled_claims", "integer", "NOT NULL DEFAULT 0"),
    column("required_groups", "jsonb", ""),
    column(
        "required_count",
        "integer",
        "GENERATED ALWAYS AS (COALESCE(jsonb_array_length(required_groups), 0)) STORED",
    ),
    column("received_count", "integer", "NOT NULL DEFAULT 0"),
    column("ack_due", TIME, ""),
    column("redeliveries", "integer", "NOT NULL DEFAULT 0"),
    column("completed_at", TIME, ""),
    column("last_error", "text", ""),
];

/// A constraint, by the suffix of its name.
pub(super) type Check = (&'static str, &'static str);

pub(super) const CHECKS: [Check; 4] = [
    ("_status", "status IN (0, 1, 2, 9)"),
    ("_one_payload", "num_nonnulls(payload, payload_bin) = 1"),
    ("_headers", "jsonb_typeof(headers) = 'object'"),
    ("_groups", "jsonb_typeof(required_groups) = 'array'"),
];

/// Indexes by the suffix of their names. None holds the lease or the count of claims, so that a claim can stay
/// on its page (HOT). They hold few rows: each one that holds all costs a tenth of the database's work for a
/// message, because settling cannot be HOT.
pub(super) const INDEXES: [(&str, &str); 3] = [
    ("_due", "(next_retry_time, id) WHERE status = 0"),
    ("_overdue", "(ack_due) WHERE status = 1"),
    ("_failed", "(id) WHERE status = 9"),
];

/// Half-full pages leave room for the updates of a row's life; vacuum comes often, because claims read past
/// what is dead.
pub(super) const STORAGE: &str = "fillfactor = 50, autovacuum_vacuum_scale_factor = 0.01, \
     autovacuum_vacuum_threshold = 5000, autovacuum_analyze_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0";

pub(super) fn create_outbox(names: &Names) -> String {
    let columns = COLUMNS.map(|Column { name, kind, rest }| format!("    {name} {kind} {rest},\n")).concat();
    let checks = CHECKS
        .map(|(suffix, check)| format!("CONSTRAINT {} CHECK ({check})", names.table.local(suffix)))
        .join(",\n    ");
    format!(
        "CREATE TABLE {} (\n    id bigserial PRIMARY KEY,\n{columns}    {checks}\n) WITH ({STORAGE});",
        names.outbox
    )
}

pub(super) fn create_receipts(names: &Names) -> String {
    format!(
        "CREATE TABLE {} (
            msg_id varchar(64) NOT NULL,
            consumer_group varchar(255) NOT NULL,
            claim_no bigint NOT NULL,
            verdict varchar(8) NOT NULL CHECK (verdict IN ('handled', 'rejected')),
            reason text,
            received_at timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (msg_id, consumer_group)
        );",
        names.receipts
    )
}

pub(super) fn create_keys(table: &TableName, Layout { token, time }: &Layout) -> String {
    let token = if *token { "token uuid," } else { "" };
    format!(
        "CREATE TABLE {table} (
            consumer_group varchar({MAX_GROUP}) NOT NULL,
            msg_id varchar({MAX_MSG_ID}) NOT NULL,
            {token}
            {time} timestamptz NOT NULL DEFAULT now(),
            PRIMARY KEY (consumer_group, msg_id)
        );"
    )
}
