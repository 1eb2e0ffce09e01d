use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::fault::{Faults, Operation};
use super::lock;
use super::table::{Entry, Table};
use crate::claim::RowId;
use crate::store::{StoreError, StoreErrorKind};

/// What all clones of a store share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) database: Mutex<Database>,
    pub(super) faults: Faults,
    /// Changes whenever a transaction ends.
    pub(super) finished: watch::Sender<()>,
}

/// The committed rows, and what open transactions hold.
#[derive(Debug, Default)]
pub(super) struct Database {
    pub(super) table: Table,
    last_row: i64,
    last_tx: u64,
    /// The `msg_id`s of rows that are not committed, as a unique index knows them.
    held: HashMap<String, u64>,
    waits_for: HashMap<u64, u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    RefuseDuplicates,
    SkipDuplicates,
}

impl Database {
    fn holder_of_any(&self, entries: &[Entry], asking: u64) -> Option<u64> {
        let holders = entries.iter().filter_map(|entry| self.held.get(entry.message.msg_id()));
        holders.copied().find(|holder| *holder != asking)
    }

    fn waits_for(&self, mut waiting: u64, holder: u64) -> bool {
        while let Some(next) = self.waits_for.get(&waiting) {
            if *next == holder {
                return true;
            }
            waiting = *next;
        }
        false
    }

    fn reserve(&mut self, msg_id: &str, number: u64) -> Option<RowId> {
        if self.table.contains(msg_id) || self.held.contains_key(msg_id) {
            return None;
        }
        self.held.insert(msg_id.to_owned(), number);
        self.last_row += 1;
        Some(RowId(self.last_row))
    }

    fn free(&mut self, rows: &[(RowId, Entry)]) {
        for (_, entry) in rows {
            self.held.remove(entry.message.msg_id());
        }
    }
}

/// A transaction of a [`MemoryStore`](super::MemoryStore). Dropping it rolls it back.
#[derive(Debug)]
pub struct MemoryTx {
    shared: Arc<Shared>,
    number: u64,
    rows: Vec<(RowId, Entry)>,
    open: bool,
}

impl MemoryTx {
    pub(super) fn begin(shared: &Arc<Shared>) -> Self {
        let mut database = lock(&shared.database);
        database.last_tx += 1;
        Self { shared: Arc::clone(shared), number: database.last_tx, rows: Vec::new(), open: true }
    }

    /// Makes its rows visible. After it, whatever it answers, the transaction has ended, and the store
    /// refuses it as [`NotInTransaction`](StoreErrorKind::NotInTransaction).
    ///
    /// # Errors
    /// `NotInTransaction` when it has ended before; else only what
    /// [`fail_next`](super::MemoryStore::fail_next) asked for.
    pub async fn commit(&mut self) -> Result<(), StoreError> {
        let shared = Arc::clone(&self.shared);
        let answer = shared.faults.around(Operation::Commit, || self.publish_rows()).await;
        self.rollback();
        answer
    }

    /// Ends it without a trace; does nothing when it has ended.
    pub fn rollback(&mut self) {
        let rows = std::mem::take(&mut self.rows);
        self.end(|database| database.free(&rows));
    }

    fn publish_rows(&mut self) -> Result<(), StoreError> {
        if !self.open {
            return Err(not_in_transaction("this transaction has ended"));
        }
        let rows = std::mem::take(&mut self.rows);
        self.end(|database| {
            database.free(&rows);
            rows.into_iter().for_each(|(id, entry)| database.table.insert(id, entry));
        });
        Ok(())
    }

    fn end(&mut self, last: impl FnOnce(&mut Database)) {
        if std::mem::take(&mut self.open) {
            let mut database = lock(&self.shared.database);
            database.waits_for.remove(&self.number);
            last(&mut database);
            self.shared.finished.send_replace(());
        }
    }

    /// Writes all `entries` or none, and says how many; `None`: another transaction must end first.
    pub(super) fn write(
        &mut self,
        store: &Arc<Shared>,
        entries: Vec<Entry>,
        mode: Write,
    ) -> Result<Option<usize>, StoreError> {
        if !self.open || !Arc::ptr_eq(store, &self.shared) {
            return Err(not_in_transaction("this transaction has ended, or is one of another store"));
        }
        let mut database = lock(&store.database);
        database.waits_for.remove(&self.number);
        if let Some(holder) = database.holder_of_any(&entries, self.number) {
            return wait_for(&mut database, self.number, holder);
        }
        let mut rows = Vec::with_capacity(entries.len());
        for entry in entries {
            match database.reserve(entry.message.msg_id(), self.number) {
                Some(id) => rows.push((id, entry)),
                None if mode == Write::SkipDuplicates => {}
                None => {
                    database.free(&rows);
                    return Err(duplicate(&entry));
                }
            }
        }
        let written = rows.len();
        self.rows.extend(rows);
        Ok(Some(written))
    }
}

impl Drop for MemoryTx {
    fn drop(&mut self) {
        self.rollback();
    }
}

fn wait_for(database: &mut Database, waiting: u64, holder: u64) -> Result<Option<usize>, StoreError> {
    if database.waits_for(holder, waiting) {
        return Err(StoreError::new(
            StoreErrorKind::Conflict,
            "two transactions wait for each other's msg_id; run this one again from its beginning",
        ));
    }
    database.waits_for.insert(waiting, holder);
    Ok(None)
}

fn not_in_transaction(what: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::NotInTransaction,
        format!("{what}; begin a new one and enqueue before its commit"),
    )
}

fn duplicate(entry: &Entry) -> StoreError {
    StoreError::new(
        StoreErrorKind::Duplicate,
        format!(
            "msg_id {} is there already; if this is a retry, the first attempt was committed",
            entry.message.msg_id()
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::super::{MemoryStore, StoreFault};
    use super::*;
    use crate::message::Message;
    use crate::store::Enqueue;

    fn message(msg_id: &str) -> Message {
        Message::json("order.created", "A-1", &1).unwrap().with_msg_id(msg_id).unwrap()
    }

    async fn kind_of(store: &MemoryStore, tx: &mut MemoryTx, msg_ids: &[&str]) -> Option<StoreErrorKind> {
        let messages: Vec<Message> = msg_ids.iter().map(|id| message(id)).collect();
        store.enqueue(tx, &messages).await.err().map(|error| error.kind())
    }

    #[tokio::test]
    async fn rows_appear_at_commit_and_never_after_rollback() {
        let store = MemoryStore::new();
        let (mut kept, mut dropped) = (store.begin(), store.begin());
        store.enqueue(&mut kept, &[message("kept")]).await.unwrap();
        store.enqueue(&mut dropped, &[message("dropped")]).await.unwrap();
        assert!(store.snapshot().is_empty());
        drop(dropped);
        kept.commit().await.unwrap();
        assert_eq!(store.snapshot().into_keys().collect::<Vec<_>>(), ["kept"]);
    }

    #[tokio::test]
    async fn an_id_is_free_again_after_rollback() {
        let store = MemoryStore::new();
        let mut tx = store.begin();
        assert_eq!(kind_of(&store, &mut tx, &["a"]).await, None);
        tx.rollback();
        assert_eq!(kind_of(&store, &mut store.begin(), &["a"]).await, None);
    }

    #[tokio::test]
    async fn ended_and_foreign_transactions_are_refused() {
        let store = MemoryStore::new();
        let mut ended = store.begin();
        ended.commit().await.unwrap();
        let refused = Some(StoreErrorKind::NotInTransaction);
        assert_eq!(kind_of(&store, &mut ended, &["a"]).await, refused);
        assert_eq!(ended.commit().await.unwrap_err().kind(), StoreErrorKind::NotInTransaction);
        assert_eq!(kind_of(&store, &mut MemoryStore::new().begin(), &["a"]).await, refused);
    }

    #[tokio::test]
    async fn a_duplicate_takes_back_its_whole_batch() {
        let store = MemoryStore::new();
        let mut tx = store.begin();
        assert_eq!(kind_of(&store, &mut tx, &["a"]).await, None);
        assert_eq!(kind_of(&store, &mut tx, &["b", "a"]).await, Some(StoreErrorKind::Duplicate));
        assert_eq!(kind_of(&store, &mut tx, &["c", "c"]).await, Some(StoreErrorKind::Duplicate));
        assert_eq!(kind_of(&store, &mut tx, &["b", "c"]).await, None);
        tx.commit().await.unwrap();
        assert_eq!(store.snapshot().len(), 3);
    }

    #[tokio::test]
    async fn a_second_transaction_waits_for_the_first_ones_end() {
        for (commits, expected) in [(true, Some(StoreErrorKind::Duplicate)), (false, None)] {
            let store = MemoryStore::new();
            let (mut first, mut second) = (store.begin(), store.begin());
            assert_eq!(kind_of(&store, &mut first, &["a"]).await, None);
            let waiting = tokio::spawn(async move { kind_of(&store, &mut second, &["a"]).await });
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            assert!(!waiting.is_finished());
            if commits {
                first.commit().await.unwrap();
            } else {
                first.rollback();
            }
            assert_eq!(waiting.await.unwrap(), expected);
        }
    }

    #[tokio::test]
    async fn waiting_for_each_other_is_a_conflict() {
        let store = MemoryStore::new();
        let (mut first, mut second) = (store.begin(), store.begin());
        assert_eq!(kind_of(&store, &mut first, &["a"]).await, None);
        assert_eq!(kind_of(&store, &mut second, &["b"]).await, None);
        let cross = async |mut tx: MemoryTx, msg_id| kind_of(&store, &mut tx, &[msg_id]).await;
        let (one, other) = tokio::join!(cross(first, "b"), cross(second, "a"));
        assert_eq!(one.or(other), Some(StoreErrorKind::Conflict));
        assert_eq!(one.and(other), None);
    }

    #[tokio::test]
    async fn a_commit_that_fails_has_happened_or_not_as_told() {
        for (fault, rows) in [(StoreFault::Before as fn(_) -> _, 0), (StoreFault::After, 1)] {
            let store = MemoryStore::new();
            let mut tx = store.begin();
            assert_eq!(kind_of(&store, &mut tx, &["a"]).await, None);
            store.fail_next(1, Operation::Commit, fault(StoreErrorKind::Unavailable));
            assert_eq!(tx.commit().await.unwrap_err().kind(), StoreErrorKind::Unavailable);
            assert_eq!(store.snapshot().len(), rows);
        }
    }
}
