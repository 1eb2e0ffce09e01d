use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use crate::claim::{Claim, ClaimMode, ClaimRequest, ClaimToken, Claimed, RowId, Settled, Settlement};
use crate::clock::Timestamp;
use crate::message::{Message, StoredMessage};
use crate::receipt::{Receipt, ReceiptReport, Verdict};
use crate::state::{Event, Next, RowState, Stale, Status, apply};
use crate::store::{Filter, Row, Stats};

/// A message and where it stands.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) message: Message,
    pub(super) created_at: Timestamp,
    pub(super) state: RowState,
}

/// The committed rows.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: BTreeMap<RowId, Entry>,
    ids: HashMap<String, RowId>,
    /// Pending rows in claim order: the index that a SQL store has.
    due: BTreeSet<(Timestamp, RowId)>,
    /// Receipts for messages that are not here.
    unknown: HashMap<String, BTreeSet<String>>,
}

impl Table {
    pub(super) fn contains(&self, msg_id: &str) -> bool {
        self.ids.contains_key(msg_id)
    }

    pub(super) fn insert(&mut self, id: RowId, mut entry: Entry) {
        let msg_id = entry.message.msg_id().to_owned();
        entry.state.receipts = self.unknown.remove(&msg_id).unwrap_or_default();
        self.due.insert((entry.state.next_retry_time, id));
        self.ids.insert(msg_id, id);
        self.rows.insert(id, entry);
    }

    pub(super) fn by_msg_id(&self, msg_id: &str) -> Option<&Entry> {
        self.rows.get(self.ids.get(msg_id)?)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.rows.values()
    }

    pub(super) fn claim(&mut self, request: &ClaimRequest, now: Timestamp) -> Vec<Claimed> {
        let event = Event::Claim { token: ClaimToken::random(), lease: request.lease };
        let due = self.due.range(..=(now, RowId(i64::MAX))).map(|(_, id)| *id);
        let free = due.filter(|id| self.may_claim(*id, request.mode, &event, now));
        let taken: Vec<RowId> = free.take(request.limit).collect();
        taken.into_iter().filter_map(|id| self.claim_one(id, &event, now)).collect()
    }

    fn may_claim(&self, id: RowId, mode: ClaimMode, event: &Event, now: Timestamp) -> bool {
        let Some(entry) = self.rows.get(&id) else { return false };
        let wanted = match mode {
            ClaimMode::Ordinary { suspect_after } => entry.state.unsettled_claims < suspect_after,
            ClaimMode::Suspects { suspect_after } => entry.state.unsettled_claims >= suspect_after,
        };
        wanted && apply(&entry.state, event, now).is_ok()
    }

    fn claim_one(&mut self, id: RowId, event: &Event, now: Timestamp) -> Option<Claimed> {
        let entry = self.happen(id, event, now).ok()?;
        Some(Claimed {
            claim: Claim { id, token: entry.state.claim_token? },
            message: stored(entry),
            retry_count: entry.state.retry_count,
            unsettled_claims: entry.state.unsettled_claims,
        })
    }

    pub(super) fn renew(&mut self, claims: &[Claim], lease: Duration, now: Timestamp) -> Vec<Claim> {
        let held =
            |claim: &Claim| self.happen(claim.id, &Event::Renew { token: claim.token, lease }, now).is_ok();
        claims.iter().copied().filter(held).collect()
    }

    pub(super) fn settle(&mut self, settlements: &[Settlement], now: Timestamp) -> Settled {
        let mut settled = Settled::default();
        for Settlement { claim, outcome } in settlements {
            let event = Event::Settle { token: claim.token, outcome: outcome.clone() };
            match self.happen(claim.id, &event, now) {
                Ok(_) => settled.applied += 1,
                Err(Stale) => settled.lost += 1,
            }
        }
        settled
    }

    pub(super) fn record_receipts(&mut self, receipts: &[Receipt], now: Timestamp) -> ReceiptReport {
        let mut report = ReceiptReport::default();
        for receipt in receipts {
            self.record_receipt(receipt, now, &mut report);
        }
        report
    }

    fn record_receipt(&mut self, receipt: &Receipt, now: Timestamp, report: &mut ReceiptReport) {
        let Some(id) = self.ids.get(&receipt.msg_id).copied() else {
            report.unknown += 1;
            if receipt.verdict == Verdict::Handled {
                self.unknown.entry(receipt.msg_id.clone()).or_default().insert(receipt.group.clone());
            }
            return;
        };
        let was_completed = self.rows.get(&id).is_some_and(|entry| entry.state.status == Status::Completed);
        match self.happen(id, &event_of(receipt), now) {
            Ok(entry) => {
                report.recorded += 1;
                report.completed += usize::from(!was_completed && entry.state.status == Status::Completed);
            }
            Err(Stale) => report.stale += 1,
        }
    }

    pub(super) fn requeue(&mut self, id: RowId, claim_no: u64, now: Timestamp) -> Result<(), Stale> {
        self.happen(id, &Event::Requeue { claim_no }, now).map(|_| ())
    }

    pub(super) fn find(&self, filter: &Filter) -> Vec<Row> {
        let after = filter.after.unwrap_or(RowId(i64::MIN));
        let matching = self.rows.iter().filter(|(id, entry)| **id > after && matches(filter, entry));
        matching.take(filter.limit).map(|(id, entry)| row(*id, entry)).collect()
    }

    pub(super) fn stats(&self, now: Timestamp) -> Stats {
        let mut stats = Stats::default();
        for entry in self.rows.values() {
            *stats.rows.entry(entry.state.status).or_default() += 1;
        }
        stats.oldest_due = self.due.first().and_then(|(due, _)| (now - due).to_std().ok());
        stats
    }

    /// The only way in which a row changes.
    fn happen(&mut self, id: RowId, event: &Event, now: Timestamp) -> Result<&Entry, Stale> {
        let entry = self.rows.get_mut(&id).ok_or(Stale)?;
        self.due.remove(&(entry.state.next_retry_time, id));
        let next = apply(&entry.state, event, now);
        if let Ok(Next::Row(state)) = &next {
            entry.state = state.clone();
        }
        if entry.state.status == Status::Pending {
            self.due.insert((entry.state.next_retry_time, id));
        }
        next.map(|_| &*entry)
    }
}

fn event_of(receipt: &Receipt) -> Event {
    let group = receipt.group.clone();
    match &receipt.verdict {
        Verdict::Handled => Event::Receipt { group },
        Verdict::Rejected { reason } => {
            Event::Reject { group, claim_no: receipt.claim_no, reason: reason.clone() }
        }
    }
}

fn matches(filter: &Filter, entry: &Entry) -> bool {
    let Entry { message, state, .. } = entry;
    filter.status.is_none_or(|status| status == state.status)
        && filter.msg_id.as_deref().is_none_or(|msg_id| msg_id == message.msg_id())
        && filter.biz_type.as_deref().is_none_or(|biz_type| biz_type == message.biz_type())
        && filter.biz_id.as_deref().is_none_or(|biz_id| biz_id == message.biz_id())
}

fn row(id: RowId, entry: &Entry) -> Row {
    let state = entry.state.clone();
    Row {
        id,
        message: stored(entry),
        status: state.status,
        retry_count: state.retry_count,
        next_retry_time: state.next_retry_time,
        lease_until: state.lease_until,
        unsettled_claims: state.unsettled_claims,
        received: state.received(),
        required_groups: state.required_groups.map(|groups| groups.into_iter().collect()),
        sent_at: state.sent_at,
        completed_at: state.completed_at,
        ack_due: state.ack_due,
        redeliveries: state.redeliveries,
        last_error: state.last_error,
    }
}

fn stored(entry: &Entry) -> Message {
    let Entry { message, created_at, state } = entry;
    Message::from_stored(StoredMessage {
        msg_id: message.msg_id().to_owned(),
        biz_type: message.biz_type().to_owned(),
        biz_id: message.biz_id().to_owned(),
        payload: message.payload().clone(),
        content_type: message.explicit_content_type().map(str::to_owned),
        headers: message.headers().clone(),
        ordering_key: message.ordering_key().map(str::to_owned),
        created_at: *created_at,
        claim_no: state.claim_no,
    })
}
