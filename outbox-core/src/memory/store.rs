use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::fault::{Operation, StoreFault};
use super::lock;
use super::table::{Entry, Table};
use super::tx::{MemoryTx, Shared, Write};
use crate::claim::{Claim, ClaimRequest, Claimed, RowId, Settled, Settlement};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::message::{Limits, Message};
use crate::policy::Policies;
use crate::receipt::{Receipt, ReceiptReport};
use crate::state::{RowState, Stale};
use crate::store::{Enqueue, Filter, OutboxStore, Requeued, Row, Stats, StoreError};

/// An [`OutboxStore`] in memory, with transactions. Clones share the rows, each with its own settings.
///
/// Rows change by [`state::apply`](crate::state::apply) only, so this store is the model that others are
/// compared with. As in a database, ids are given at enqueue and rows appear at commit, so that they can
/// appear out of the order of their ids.
#[derive(Debug, Clone)]
pub struct MemoryStore {
    shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    limits: Limits,
    policies: Option<Arc<Policies>>,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self {
            shared: Arc::default(),
            clock: Arc::new(SystemClock),
            limits: Limits::default(),
            policies: None,
        }
    }
}

impl MemoryStore {
    /// An empty store that follows the clock of this host.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Follows another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Snapshots the required groups at enqueue. Without policies they stay open until the relay confirms.
    #[must_use]
    pub fn with_policies(mut self, policies: Policies) -> Self {
        self.policies = Some(Arc::new(policies));
        self
    }

    /// Refuses messages past these limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Begins a transaction, the `Tx` of [`Enqueue`].
    #[must_use]
    pub fn begin(&self) -> MemoryTx {
        MemoryTx::begin(&self.shared)
    }

    /// Makes the next `calls` calls of `operation`, by any clone, fail.
    pub fn fail_next(&self, calls: usize, operation: Operation, fault: StoreFault) {
        self.shared.faults.set(operation, calls, fault);
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.shared.faults.clear();
    }

    /// Every committed row, by `msg_id`.
    #[must_use]
    pub fn snapshot(&self) -> BTreeMap<String, RowState> {
        let database = lock(&self.shared.database);
        database.table.entries().map(|e| (e.message.msg_id().to_owned(), e.state.clone())).collect()
    }

    /// Where a committed message stands.
    #[must_use]
    pub fn state(&self, msg_id: &str) -> Option<RowState> {
        lock(&self.shared.database).table.by_msg_id(msg_id).map(|entry| entry.state.clone())
    }

    async fn run<T>(
        &self,
        operation: Operation,
        effect: impl FnOnce(&mut Table, Timestamp) -> T,
    ) -> Result<T, StoreError> {
        let effect = || Ok(effect(&mut lock(&self.shared.database).table, self.clock.now()));
        self.shared.faults.around(operation, effect).await
    }

    fn entry(&self, message: &Message) -> Entry {
        let now = self.clock.now();
        let groups = |policies: &Arc<Policies>| -> BTreeSet<String> {
            policies.of(message.biz_type()).required_groups().iter().cloned().collect()
        };
        Entry {
            state: RowState::new(message.deliver_after().unwrap_or(now), self.policies.as_ref().map(groups)),
            message: message.clone(),
            created_at: now,
        }
    }

    async fn write(&self, tx: &mut MemoryTx, messages: &[Message], mode: Write) -> Result<usize, StoreError> {
        for message in messages {
            message.validate(&self.limits)?;
        }
        loop {
            let mut finished = self.shared.finished.subscribe();
            let entries = || messages.iter().map(|message| self.entry(message)).collect();
            let effect = || tx.write(&self.shared, entries(), mode);
            match self.shared.faults.around(Operation::Enqueue, effect).await? {
                Some(written) => return Ok(written),
                None => _ = finished.changed().await,
            }
        }
    }
}

#[async_trait]
impl Enqueue for MemoryStore {
    type Tx = MemoryTx;

    /// Waits, as a database does, while another open transaction holds one of the ids.
    async fn enqueue(&self, tx: &mut MemoryTx, messages: &[Message]) -> Result<(), StoreError> {
        self.write(tx, messages, Write::RefuseDuplicates).await.map(|_| ())
    }

    async fn enqueue_idempotent(&self, tx: &mut MemoryTx, messages: &[Message]) -> Result<usize, StoreError> {
        self.write(tx, messages, Write::SkipDuplicates).await
    }
}

#[async_trait]
impl OutboxStore for MemoryStore {
    fn clock(&self) -> &dyn Clock {
        &self.clock
    }

    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        self.run(Operation::Claim, |table, now| table.claim(request, now)).await
    }

    async fn renew(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError> {
        self.run(Operation::Renew, |table, now| table.renew(claims, lease, now)).await
    }

    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        self.run(Operation::Settle, |table, now| table.settle(settlements, now)).await
    }

    async fn record_receipts(&self, receipts: &[Receipt]) -> Result<ReceiptReport, StoreError> {
        self.run(Operation::RecordReceipts, |table, now| table.record_receipts(receipts, now)).await
    }

    async fn requeue(&self, id: RowId, claim_no: u64) -> Result<Requeued, StoreError> {
        self.run(Operation::Requeue, |table, now| match table.requeue(id, claim_no, now) {
            Ok(()) => Requeued::Done,
            Err(Stale) => Requeued::Stale,
        })
        .await
    }

    async fn find(&self, filter: &Filter) -> Result<Vec<Row>, StoreError> {
        self.run(Operation::Find, |table, _| table.find(filter)).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        self.run(Operation::Stats, |table, now| table.stats(now)).await
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::claim::ClaimMode;
    use crate::clock::ManualClock;
    use crate::store::StoreErrorKind;

    fn message(msg_id: &str) -> Message {
        Message::json("order.created", "A-1", &1).unwrap().with_msg_id(msg_id).unwrap()
    }

    async fn committed(msg_ids: &[&str]) -> MemoryStore {
        let store = MemoryStore::new().with_clock(ManualClock::new(DateTime::UNIX_EPOCH));
        let mut tx = store.begin();
        let messages: Vec<Message> = msg_ids.iter().map(|id| message(id)).collect();
        store.enqueue(&mut tx, &messages).await.unwrap();
        tx.commit().await.unwrap();
        store
    }

    fn request() -> ClaimRequest {
        let mode = ClaimMode::Ordinary { suspect_after: 3 };
        ClaimRequest { limit: 10, lease: Duration::from_secs(30), mode }
    }

    #[tokio::test]
    async fn fault_before_has_no_effect_and_ends_after_its_calls() {
        let store = committed(&["a"]).await;
        store.fail_next(2, Operation::Claim, StoreFault::Before(StoreErrorKind::Unavailable));
        for _ in 0..2 {
            let error = store.clone().claim(&request()).await.unwrap_err();
            assert_eq!(error.kind(), StoreErrorKind::Unavailable);
            assert_eq!(store.state("a").unwrap().claim_no, 0);
        }
        assert_eq!(store.claim(&request()).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn fault_after_has_its_effect_and_hides_it() {
        let store = committed(&["a"]).await;
        store.fail_next(usize::MAX, Operation::Claim, StoreFault::After(StoreErrorKind::Unavailable));
        store.claim(&request()).await.unwrap_err();
        assert_eq!(store.state("a").unwrap().claim_no, 1);
        store.heal();
        assert_eq!(store.claim(&request()).await.unwrap().len(), 0);
    }

    #[tokio::test]
    async fn a_fault_hits_its_operation_only() {
        let store = committed(&["a"]).await;
        store.fail_next(1, Operation::Settle, StoreFault::Before(StoreErrorKind::Other));
        assert_eq!(store.claim(&request()).await.unwrap().len(), 1);
        assert_eq!(store.settle(&[]).await.unwrap_err().kind(), StoreErrorKind::Other);
    }

    #[tokio::test]
    async fn receipts_that_came_before_their_row_count_when_it_appears() {
        let store = MemoryStore::new()
            .with_policies(Policies::new(crate::Policy::default().with_required_groups(["points"])));
        let report = store.record_receipts(&[Receipt::handled("a", "points", 1)]).await.unwrap();
        assert_eq!(report, ReceiptReport { unknown: 1, ..Default::default() });
        let mut tx = store.begin();
        store.enqueue(&mut tx, &[message("a")]).await.unwrap();
        tx.commit().await.unwrap();
        assert_eq!(store.state("a").unwrap().received(), 1);
    }
}
