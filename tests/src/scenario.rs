use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::FutureExt;
use outbox_core::{Enqueue, Message};
use outbox_sqlx::PgStore;
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, PgPool};

use crate::audit::{self, Step};
use crate::broker::Broker;
use crate::deliveries::Deliveries;
use crate::drain::Drain;
use crate::ledger::Ledger;
use crate::orders::{ids, orders};
use crate::place::Place;
use crate::promises::Evidence;
use crate::redis::Redis;
use crate::relay::RelaySetup;
use crate::services::amqp_url;
use crate::tables::Tables;
use crate::wait::until;

/// How long anything may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A place in the database, an exchange, a queue bound to `order.#`, and the books about them.
#[derive(Debug)]
pub struct Scenario {
    place: Place,
    pool: PgPool,
    store: PgStore,
    broker: Broker,
    redis: OnceLock<Redis>,
    deliveries: Deliveries,
    drains: Mutex<Vec<Drain>>,
    ledger: Mutex<Ledger>,
}

/// Runs a test in a schema of its own.
pub async fn scenario(body: impl AsyncFnOnce(&Scenario) -> Result<()>) -> Result<()> {
    Scenario::run(Place::schema().await?, "", body).await
}

impl Scenario {
    /// Runs a test in a place where `existing` was done before the framework came. The place and everything
    /// else is dropped afterwards, also when the test fails or panics.
    pub async fn run(
        place: Place,
        existing: &str,
        body: impl AsyncFnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        let scenario = Self::new(place)?;
        let play = async {
            scenario.set_up(existing).await?;
            body(&scenario).await
        };
        let result = AssertUnwindSafe(play).catch_unwind().await;
        let removed = scenario.remove().await;
        match result {
            Ok(result) => result.and(removed),
            Err(panic) => resume_unwind(panic),
        }
    }

    fn new(place: Place) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(4).connect_lazy(&place.url_as("test"))?;
        Ok(Self {
            place,
            store: PgStore::new(pool.clone()),
            pool,
            broker: Broker::new(&amqp_url()?),
            redis: OnceLock::new(),
            deliveries: Deliveries::default(),
            drains: Mutex::default(),
            ledger: Mutex::default(),
        })
    }

    async fn set_up(&self, existing: &str) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(existing)).execute(&self.pool).await?;
        self.store.migrate().await?;
        audit::install(&self.pool).await?;
        self.broker.declare().await?;
        self.listen(&["order.#"]).await
    }

    async fn remove(&self) -> Result<()> {
        for drain in self.take_drains() {
            drop(drain.stop().await);
        }
        self.pool.close().await;
        let (broker, place) = (self.broker.remove().await, self.place.remove().await);
        if let Some(redis) = self.redis.get() {
            redis.empty().await?;
        }
        broker.and(place)
    }

    /// Where the tables are.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Connections of the test's own.
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    /// The application's store.
    pub fn store(&self) -> &PgStore {
        &self.store
    }

    /// The broker.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The test's own part of Redis.
    pub fn redis(&self) -> Result<&Redis> {
        let redis = Redis::new()?;
        Ok(self.redis.get_or_init(|| redis))
    }

    /// What the queues got so far.
    pub fn deliveries(&self) -> &Deliveries {
        &self.deliveries
    }

    /// What is in the table.
    pub fn tables(&self) -> Tables {
        Tables::new(self.pool.clone())
    }

    /// How the rows came to where they are.
    pub async fn steps(&self) -> Result<Vec<Step>> {
        audit::steps(&self.pool).await
    }

    /// The books.
    pub fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settings of a relay, to be changed with `..`.
    pub fn relay(&self, name: &str) -> RelaySetup {
        RelaySetup {
            database_url: self.place.url_as(name),
            time_zone: None,
            amqp_url: self.broker.url().to_owned(),
            exchange: self.broker.exchange().to_owned(),
            routes: Vec::new(),
            batch: 100,
            lease: Duration::from_secs(3),
            sweep_max: Duration::from_millis(200),
            backoff_max: Duration::from_millis(500),
            confirm_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(10),
            retry_steps: vec![Duration::from_millis(500)],
            max_attempts: 5,
            jitter: 0.0,
            fault: None,
        }
    }

    /// Declares a queue, binds it to these keys, and collects what it gets.
    pub async fn listen(&self, keys: &[&str]) -> Result<()> {
        let queue = self.broker.queue(keys).await?;
        self.drain(&queue).await
    }

    /// Collects again from every queue, after [`stop_listening`](Self::stop_listening).
    pub async fn listen_again(&self) -> Result<()> {
        for queue in self.broker.queues() {
            self.drain(&queue).await?;
        }
        Ok(())
    }

    async fn drain(&self, queue: &str) -> Result<()> {
        let drain = Drain::start(self.broker.url(), queue, self.deliveries.clone()).await?;
        self.drains().push(drain);
        Ok(())
    }

    /// Commits `count` messages of the type `order.created` in one transaction, and answers their ids.
    pub async fn commit_orders(&self, count: usize) -> Result<Vec<String>> {
        self.commit(&orders(count)?).await
    }

    /// Commits these in one transaction.
    pub async fn commit(&self, messages: &[Message]) -> Result<Vec<String>> {
        self.commit_by(&self.store, messages).await
    }

    /// Commits these in one transaction, through a store of the same table.
    pub async fn commit_by(&self, store: &PgStore, messages: &[Message]) -> Result<Vec<String>> {
        let mut tx = self.pool.begin().await?;
        store.enqueue(&mut tx, messages).await?;
        tx.commit().await?;
        let ids = ids(messages);
        self.ledger().committed(&ids);
        Ok(ids)
    }

    /// Writes `count` messages and rolls back.
    pub async fn roll_back_orders(&self, count: usize) -> Result<Vec<String>> {
        let messages = orders(count)?;
        let mut tx = self.pool.begin().await?;
        self.store.enqueue(&mut tx, &messages).await?;
        tx.rollback().await?;
        Ok(ids(&messages))
    }

    /// Waits until each of these was delivered.
    pub async fn delivered(&self, ids: &[String]) -> Result<()> {
        let wait = until("all are delivered", LIMIT, async || Ok(self.deliveries.has_all(ids).then_some(())));
        wait.await.map_err(|error| error.context(format!("{} messages came", self.deliveries.messages())))
    }

    /// Waits until nothing is pending any more.
    pub async fn settled(&self) -> Result<()> {
        let tables = self.tables();
        until("nothing is pending", LIMIT, async || Ok((tables.count(0).await? == 0).then_some(()))).await
    }

    /// Where it cannot be known from outside what was in flight: a message may have come once for each claim.
    pub async fn explain_by_claims(&self) -> Result<()> {
        for row in self.tables().rows().await? {
            (1..row.claim_no).for_each(|_| self.ledger().may_repeat([row.msg_id.as_str()]));
        }
        Ok(())
    }

    /// Waits until everything has come to rest, then checks every promise. Stop the relays before: whatever
    /// they published is in the queues then.
    pub async fn verify(&self) -> Result<()> {
        self.settled().await?;
        self.stop_listening().await?;
        let ledger = self.ledger().clone();
        let (rows, steps) = (self.tables().rows().await?, self.steps().await?);
        let evidence = Evidence { ledger, deliveries: self.deliveries.clone(), rows, steps };
        ensure!(!evidence.steps.is_empty() || evidence.rows.is_empty(), "the audit saw nothing");
        evidence.judge()
    }

    /// Takes everything that is in the queues now, and ends the consumers.
    pub async fn stop_listening(&self) -> Result<()> {
        for drain in self.take_drains() {
            drain.finish().await?;
        }
        Ok(())
    }

    fn drains(&self) -> MutexGuard<'_, Vec<Drain>> {
        self.drains.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_drains(&self) -> Vec<Drain> {
        std::mem::take(&mut *self.drains())
    }
}
