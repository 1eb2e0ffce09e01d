//! Receipts that travel through a broker, and the store that takes them.
#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::memory::{BrokerFault, MemoryBroker};
use outbox_core::slip::{self, Fate};
use outbox_core::{
    Claim, ClaimRequest, Claimed, Clock, Filter, OutboxStore, Receipt, ReceiptReport, Requeued, Row, RowId,
    Settled, Settlement, Stats, StoreError, StoreErrorKind, SystemClock,
};

/// Notes the sizes of the calls, refuses some receipts, and takes nothing else.
#[derive(Default)]
struct Picky {
    calls: Mutex<Vec<usize>>,
    away: bool,
}

fn unused<T>() -> Result<T, StoreError> {
    Err(StoreError::new(StoreErrorKind::Other, "not used here"))
}

#[async_trait]
impl OutboxStore for Picky {
    fn clock(&self) -> &dyn Clock {
        &SystemClock
    }
    async fn claim(&self, _: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        unused()
    }
    async fn renew(&self, _: &[Claim], _: Duration) -> Result<Vec<Claim>, StoreError> {
        unused()
    }
    async fn settle(&self, _: &[Settlement]) -> Result<Settled, StoreError> {
        unused()
    }
    async fn record_receipts(&self, receipts: &[Receipt]) -> Result<ReceiptReport, StoreError> {
        self.calls.lock().unwrap().push(receipts.len());
        let has = |id: &str| receipts.iter().any(|receipt| receipt.msg_id == id);
        assert!(!has("panic"), "as told");
        match (self.away, has("bad")) {
            (true, _) => Err(StoreError::new(StoreErrorKind::Unavailable, "no connection")),
            (_, true) => Err(StoreError::new(StoreErrorKind::Other, "a trigger says no")),
            _ => Ok(ReceiptReport { recorded: receipts.len(), ..ReceiptReport::default() }),
        }
    }
    async fn requeue(&self, _: RowId, _: u64) -> Result<Requeued, StoreError> {
        unused()
    }
    async fn find(&self, _: &Filter) -> Result<Vec<Row>, StoreError> {
        unused()
    }
    async fn stats(&self) -> Result<Stats, StoreError> {
        unused()
    }
}

fn body(msg_id: &str) -> Vec<u8> {
    slip::message(&Receipt::handled(msg_id, "points", 1)).unwrap().payload().as_bytes().to_vec()
}

async fn apply(store: &Picky, ids: &[&str], batch: usize) -> Vec<Fate> {
    let bodies: Vec<Vec<u8>> =
        ids.iter().map(|id| if *id == "?" { b"no receipt".to_vec() } else { body(id) }).collect();
    slip::apply(store, bodies.iter().map(Vec::as_slice), batch).await
}

fn words(fates: &[Fate]) -> Vec<&'static str> {
    let word = |fate: &Fate| match fate {
        Fate::Applied => "applied",
        Fate::Refused(_) => "refused",
        Fate::Kept => "kept",
    };
    fates.iter().map(word).collect()
}

#[tokio::test]
async fn each_body_has_its_own_fate_and_the_good_ones_go_together() {
    let store = Picky::default();
    let fates = apply(&store, &["a", "?", "b", "c"], 100).await;
    assert_eq!(words(&fates), ["applied", "refused", "applied", "applied"]);
    assert_eq!(*store.calls.lock().unwrap(), [3]);
    assert!(apply(&store, &[], 100).await.is_empty());
}

#[tokio::test]
async fn no_call_is_larger_than_the_batch() {
    let store = Picky::default();
    assert_eq!(words(&apply(&store, &["a"; 7], 3).await), ["applied"; 7]);
    assert_eq!(*store.calls.lock().unwrap(), [3, 3, 1]);
    assert_eq!(words(&apply(&store, &["a"; 2], 0).await), ["applied"; 2]);
}

#[tokio::test]
async fn a_refused_receipt_is_found_and_keeps_no_other_back() {
    let store = Picky::default();
    let fates = apply(&store, &["a", "b", "bad", "c"], 100).await;
    assert_eq!(words(&fates), ["applied", "applied", "refused", "applied"]);
}

#[tokio::test]
async fn a_store_that_takes_none_is_away_or_panics_keeps_all() {
    assert_eq!(words(&apply(&Picky::default(), &["bad", "bad"], 100).await), ["kept"; 2]);
    let away = Picky { away: true, ..Picky::default() };
    assert_eq!(words(&apply(&away, &["a", "b"], 1).await), ["kept"; 2]);
    assert_eq!(away.calls.lock().unwrap().len(), 1, "the others would fare no better");
    assert_eq!(
        words(&apply(&Picky::default(), &["a", "panic", "?"], 100).await),
        ["kept", "kept", "refused"]
    );
}

#[tokio::test]
async fn what_is_sent_can_be_read_and_a_failure_is_counted() {
    let broker = MemoryBroker::new();
    let receipts = ["a", "b"].map(|id| Receipt::handled(id, "points", 1));
    slip::send(&broker, &receipts).await.unwrap();
    let read: Vec<Receipt> =
        broker.delivered().iter().map(|message| slip::read(message.payload().as_bytes()).unwrap()).collect();
    assert_eq!(read, receipts);
    broker.fail(slip::BIZ_TYPE, BrokerFault::Reject);
    let error = slip::send(&broker, &receipts).await.unwrap_err();
    assert!(error.to_string().contains("of 2 were not stored"), "{error}");
}
