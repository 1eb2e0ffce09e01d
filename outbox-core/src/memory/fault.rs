use std::collections::HashMap;
use std::sync::Mutex;

use super::lock;
use crate::store::{StoreError, StoreErrorKind};

/// What a [`MemoryStore`](super::MemoryStore) can be asked, and can be told to fail at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "they are the methods of that name")]
pub enum Operation {
    Enqueue,
    Commit,
    Claim,
    Renew,
    Settle,
    RecordReceipts,
    Requeue,
    Find,
    Stats,
}

/// How an operation fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreFault {
    /// Without any effect.
    Before(StoreErrorKind),
    /// After its effect, as when the connection is lost before the answer comes.
    After(StoreErrorKind),
}

#[derive(Debug, Default)]
pub(super) struct Faults(Mutex<HashMap<Operation, (usize, StoreFault)>>);

impl Faults {
    pub(super) fn set(&self, operation: Operation, calls: usize, fault: StoreFault) {
        lock(&self.0).insert(operation, (calls, fault));
    }

    pub(super) fn clear(&self) {
        lock(&self.0).clear();
    }

    /// Does `effect` unless it is to fail before, and hides its answer if it is to fail after.
    pub(super) async fn around<T>(
        &self,
        operation: Operation,
        effect: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        tokio::task::yield_now().await;
        let fault = self.next(operation);
        if let Some(StoreFault::Before(kind)) = fault {
            return Err(told_to_fail(kind, operation));
        }
        let answer = effect();
        tokio::task::yield_now().await;
        match fault {
            Some(StoreFault::After(kind)) => Err(told_to_fail(kind, operation)),
            _ => answer,
        }
    }

    fn next(&self, operation: Operation) -> Option<StoreFault> {
        let mut faults = lock(&self.0);
        let (calls, fault) = faults.get_mut(&operation)?;
        *calls = calls.checked_sub(1)?;
        Some(*fault)
    }
}

fn told_to_fail(kind: StoreErrorKind, operation: Operation) -> StoreError {
    StoreError::new(kind, format!("the store was told to fail at {operation:?}"))
}
