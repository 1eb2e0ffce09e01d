//! What must hold, whatever happens.

use outbox_core::state::{RowState, Status};

use super::rows::{Facts, MAX_ATTEMPTS, MAX_REDELIVERIES, NOW, RowEvent};
use super::world::World;
use super::{GROUPS, Model};

/// The promises about a row alone.
pub(super) fn row_promises(row: &RowState) -> Result<(), String> {
    let (sent, completed) = (row.status == Status::Sent, row.status == Status::Completed);
    let required = row.required_groups.as_ref();
    let all_in = required.is_some_and(|groups| groups.is_subset(&row.receipts));
    holds("completed means all receipts are in", !completed || all_in)?;
    holds("all receipts in means completed", !sent || !all_in)?;
    holds("only a pending row has a token", row.claim_token.is_none() || row.status == Status::Pending)?;
    holds("a token comes with a lease", row.claim_token.is_some() == row.lease_until.is_some())?;
    holds("a sent row, and no other, has an end of patience", sent == row.ack_due.is_some())?;
    holds("a completed row, and no other, says since when", completed == row.completed_at.is_some())?;
    holds("a failed row says why", row.status != Status::Failed || row.last_error.is_some())?;
    holds("attempts do not pass the maximum", row.retry_count <= MAX_ATTEMPTS)?;
    holds("redeliveries do not pass the maximum", row.redeliveries <= MAX_REDELIVERIES)
}

/// The promises about a change of a row.
pub(super) fn step_promises(before: &RowState, event: RowEvent, after: &RowState) -> Result<(), String> {
    let moved = |from, to| before.status == from && after.status == to;
    let is_held = before.lease_until.is_some_and(|until| until > NOW);
    holds("nobody claims a row while somebody's lease on it lives", event != RowEvent::Claim || !is_held)?;
    holds(
        "a stale outcome changes nothing",
        match event {
            RowEvent::Settle(age, _) | RowEvent::Renew(age) => age == 0 && before.status == Status::Pending,
            RowEvent::Reject(group, age) => age == 0 && !before.receipts.contains(GROUPS[group]),
            _ => true,
        },
    )?;
    let counts = matches!(event, RowEvent::Claim | RowEvent::Requeue | RowEvent::Redeliver);
    holds("a claim number grows by claim, requeue and redelivery only", {
        after.claim_no == before.claim_no + u64::from(counts)
    })?;
    holds("completed stays completed", {
        before.status != Status::Completed || after.status == Status::Completed
    })?;
    holds("1 becomes 0 by redelivery only", {
        !moved(Status::Sent, Status::Pending) || event == RowEvent::Redeliver
    })?;
    holds("9 becomes 0 by requeue only", {
        !moved(Status::Failed, Status::Pending) || event == RowEvent::Requeue
    })?;
    holds("1 becomes 9 by rejection only", {
        !moved(Status::Sent, Status::Failed) || matches!(event, RowEvent::Reject(..))
    })?;
    holds("receipts are never taken back", after.receipts.is_superset(&before.receipts))?;
    holds("who must acknowledge is decided once", {
        before.required_groups.is_none() || before.required_groups == after.required_groups
    })?;
    holds("attempts shrink by requeue and redelivery only", {
        after.retry_count >= before.retry_count || matches!(event, RowEvent::Requeue | RowEvent::Redeliver)
    })
}

impl Model {
    /// The promises about a row and the world around it.
    pub(super) fn world_promises(&self, world: &World, row: Facts) -> Result<(), String> {
        let effects = (0..GROUPS.len()).map(|g| u8::from(world.groups[g].effect) << g).sum::<u8>();
        let completed = row.status == Status::Completed;
        holds("without faults it is published once", self.faults || world.stored <= 1)?;
        holds("sent means that the broker stored it", row.status != Status::Sent || world.stored > 0)?;
        holds("completed means that the broker stored it", !completed || world.stored > 0)?;
        holds("completed means that every required group's effect happened", {
            !completed || row.required & !effects == 0
        })?;
        holds("a receipt means that the effect happened", row.receipts & !effects == 0)
    }
}

fn holds(promise: &str, holds: bool) -> Result<(), String> {
    if holds { Ok(()) } else { Err(promise.to_owned()) }
}
