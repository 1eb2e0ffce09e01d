//! What receipts do to rows, before anything is written.

use std::collections::{BTreeMap, HashMap};

use outbox_core::state::{Event, Next, RowState, Stale, apply};
use outbox_core::{Receipt, ReceiptReport, RowId, Status, Timestamp, Verdict};
use serde_json::{Value, json};

use crate::sql::storable_text;

pub(crate) const HANDLED: &str = "handled";
pub(crate) const REJECTED: &str = "rejected";

/// A locked row, as it was found and as the receipts leave it.
pub(crate) struct Locked {
    pub(crate) id: RowId,
    pub(crate) found: RowState,
    pub(crate) state: RowState,
}

/// What a group says of a message, to be kept.
pub(crate) type Record<'a> = BTreeMap<(&'a str, &'a str), &'a Receipt>;

/// Applies `receipts` to `rows` one after another; returns those that are to be kept.
pub(crate) fn hear<'a>(
    receipts: &[&'a Receipt],
    rows: &mut HashMap<String, Locked>,
    now: Timestamp,
    report: &mut ReceiptReport,
) -> Record<'a> {
    let mut record = Record::new();
    for receipt in receipts {
        match rows.get_mut(&receipt.msg_id).map(|row| hear_one(receipt, row, now)) {
            None => report.unknown += 1,
            Some(Err(Stale)) => {
                report.stale += 1;
                continue;
            }
            Some(Ok(completed)) => {
                report.recorded += 1;
                report.completed += usize::from(completed);
            }
        }
        record_latest(&mut record, receipt);
    }
    record
}

/// Says whether the row is completed now and was not before.
fn hear_one(receipt: &Receipt, row: &mut Locked, now: Timestamp) -> Result<bool, Stale> {
    let group = receipt.group.clone();
    let event = match &receipt.verdict {
        Verdict::Handled => Event::Receipt { group },
        Verdict::Rejected { reason } => {
            Event::Reject { group, claim_no: receipt.claim_no, reason: storable_text(reason) }
        }
    };
    let was = row.state.status;
    if let Next::Row(next) = apply(&row.state, &event, now)? {
        row.state = next;
    }
    Ok(was != Status::Completed && row.state.status == Status::Completed)
}

fn record_latest<'a>(record: &mut Record<'a>, receipt: &'a Receipt) {
    let latest = record.entry((&receipt.msg_id, &receipt.group)).or_insert(receipt);
    if latest.verdict != Verdict::Handled {
        *latest = receipt;
    }
}

pub(crate) fn kept(receipt: &Receipt) -> Value {
    let (verdict, reason) = match &receipt.verdict {
        Verdict::Handled => (HANDLED, None),
        Verdict::Rejected { reason } => (REJECTED, Some(storable_text(reason))),
    };
    let claim_no = i64::try_from(receipt.claim_no).unwrap_or(i64::MAX);
    json!({
        "msg_id": receipt.msg_id, "consumer_group": receipt.group,
        "claim_no": claim_no, "verdict": verdict, "reason": reason
    })
}

pub(crate) fn change(Locked { id, found, state }: &Locked) -> Option<Value> {
    let changed = state.status != found.status || state.received() != found.received();
    changed.then(|| {
        let (status, received, error) = (state.status.code(), state.received(), &state.last_error);
        json!({ "id": id.0, "new_status": status, "received": received, "error": error })
    })
}
