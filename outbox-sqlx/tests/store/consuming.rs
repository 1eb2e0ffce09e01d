//! The inbox under core's consumer, killed at every step: each effect exactly once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::consumer::{Consumer, Delivery, Handler, HandlerError, NoReceipts, handler_fn};
use outbox_core::memory::MemoryBroker;
use outbox_core::wire::{self, Parts};
use outbox_core::{Disposition, Enqueue, OutboxStore, Publisher, ReceiptSink, Status};
use outbox_sqlx::{SqlDedup, SqlInbox};

use crate::harness::{Env, TestDb, confirmed, message, messages, request, row, settle};
use crate::on_every_database;

on_every_database!(
    a_consumer_that_dies_at_every_step_has_each_effect_once,
    two_groups_each_have_their_effect,
    a_handler_that_fails_after_its_effect_has_it_once,
    a_duplicate_sends_its_receipt_again,
    an_id_that_no_table_can_hold_goes_to_the_dead_letters,
);

/// Fails the first `failures` times, after its effect.
struct Granting<DB: TestDb> {
    env: Arc<Env<DB>>,
    inbox: SqlInbox<DB>,
    group: &'static str,
    failures: AtomicUsize,
}

#[async_trait]
impl<DB: TestDb> Handler for Granting<DB> {
    type Payload = serde_json::Value;

    async fn handle(&self, order: Delivery<serde_json::Value>) -> Result<(), HandlerError> {
        let fails = self.failures.load(Ordering::SeqCst) > 0;
        let grant = async |tx: &mut DB::Connection| {
            self.env.effect(tx, order.msg_id()).await?;
            if fails {
                self.failures.fetch_sub(1, Ordering::SeqCst);
                return Err(HandlerError::retry("out of luck"));
            }
            Ok(())
        };
        self.inbox.once(self.group, order.msg_id(), grant).await.map(drop)
    }
}

struct Scene<DB: TestDb> {
    env: Arc<Env<DB>>,
    inbox: SqlInbox<DB>,
}

impl<DB: TestDb> Scene<DB> {
    async fn new(env: Env<DB>) -> Self {
        let inbox = env.inbox().await;
        Self { env: Arc::new(env), inbox }
    }

    fn dedup_consumer(&self, dedup: SqlDedup<DB>) -> Consumer {
        let handler = handler_fn(async |_: Delivery<serde_json::Value>| Ok(()));
        Consumer::new("points", handler, NoReceipts).with_dedup(dedup)
    }

    fn consumer(&self, group: &'static str, failures: usize, receipts: impl ReceiptSink) -> Consumer {
        let (env, inbox) = (self.env.clone(), self.inbox.clone());
        Consumer::new(group, Granting { env, inbox, group, failures: failures.into() }, receipts)
    }
}

/// The consumer's future is dropped after every time from none to that of a whole run.
async fn a_consumer_that_dies_at_every_step_has_each_effect_once<DB: TestDb>(env: Env<DB>) {
    const MESSAGES: usize = 60;
    let store = env.migrated().await;
    let broker = MemoryBroker::new();
    broker.publish_batch(&messages(MESSAGES)).await;
    let scene = Scene::new(env).await;
    let consumer = scene.consumer("points", 0, store);
    let mut died = 0;
    for (n, delivered) in broker.delivered().into_iter().enumerate() {
        let step = u64::try_from(n % 30).unwrap();
        for _ in 0..3 {
            let patience = Duration::from_micros(step * step * 15);
            let run = tokio::time::timeout(patience, consumer.process(delivered.clone(), 0)).await;
            died += usize::from(run.is_err());
        }
        assert_eq!(consumer.process(delivered, 0).await, Disposition::Ack);
    }
    assert!(died > MESSAGES / 3, "only {died} runs were cut short");
    let env = &scene.env;
    assert_eq!(env.count("{t}_effects", "true").await, MESSAGES);
    assert_eq!(env.count("(SELECT DISTINCT msg_id FROM {t}_effects) AS e", "true").await, MESSAGES);
    assert_eq!(env.count("{t}_inbox", "true").await, MESSAGES);
}

async fn two_groups_each_have_their_effect<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let scene = Scene::new(env).await;
    let groups = [scene.consumer("points", 0, store.clone()), scene.consumer("stock", 0, store)];
    for consumer in &groups {
        for _ in 0..3 {
            assert_eq!(consumer.process(message("m"), 0).await, Disposition::Ack);
        }
    }
    assert_eq!(scene.env.effects("m").await, 2);
}

async fn a_handler_that_fails_after_its_effect_has_it_once<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let scene = Scene::new(env).await;
    let consumer = scene.consumer("points", 2, store);
    for attempts in 0..2 {
        let disposition = consumer.process(message("m"), attempts).await;
        assert!(matches!(disposition, Disposition::RetryLater { attempts: n, .. } if n == attempts + 1));
        assert_eq!(scene.env.effects("m").await, 0);
    }
    for _ in 0..2 {
        assert_eq!(consumer.process(message("m"), 2).await, Disposition::Ack);
    }
    assert_eq!(scene.env.effects("m").await, 1);
}

/// Producer and consumer in one database: the row is complete with the receipt of either delivery.
async fn a_duplicate_sends_its_receipt_again<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    let scene = Scene::new(env).await;
    let env = &scene.env;
    let mut tx = env.begin().await;
    store.enqueue(&mut tx, &[message("m")]).await.unwrap();
    tx.commit().await.unwrap();
    let claimed = store.claim(&request(1)).await.unwrap();
    settle(&store, &claimed, &confirmed(&["points"])).await;
    let delivered = claimed[0].message.clone();

    let silent = scene.consumer("points", 0, outbox_core::consumer::NoReceipts);
    assert_eq!(silent.process(delivered.clone(), 0).await, Disposition::Ack);
    assert_eq!(row(&store, "m").await.status, Status::Sent);
    let consumer = scene.consumer("points", 0, store.clone());
    assert_eq!(consumer.process(delivered, 0).await, Disposition::Ack);
    assert_eq!(row(&store, "m").await.status, Status::Completed);
    assert_eq!(env.effects("m").await, 1);
}

/// From another sender: it must not go round for ever.
async fn an_id_that_no_table_can_hold_goes_to_the_dead_letters<DB: TestDb>(env: Env<DB>) {
    let (_, dedup) = env.both();
    dedup.migrate().await.unwrap();
    let scene = Scene::new(env).await;
    let foreign = |len: usize| {
        let body = bytes::Bytes::from_static(b"1");
        let content_type = Some("application/json".to_owned());
        wire::message(Parts { msg_id: Some("m".repeat(len)), body, content_type, ..Parts::default() })
            .unwrap()
    };
    let consumers = [scene.consumer("points", 0, NoReceipts), scene.dedup_consumer(dedup)];
    for (consumer, attempts) in consumers.iter().zip([4, 0]) {
        assert_eq!(consumer.process(foreign(255), 0).await, Disposition::Ack);
        let end = consumer.process(foreign(256), attempts).await;
        assert!(
            matches!(&end, Disposition::DeadLetter { reason } if reason.contains("limit is 255")),
            "{end:?}"
        );
    }
}
