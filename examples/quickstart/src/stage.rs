use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use outbox::{Filter, Row, Status};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::broker::Broker;
use crate::deliveries::Deliveries;
use crate::narrator::Narrator;
use crate::relay::{LEASE, MortalRelay};
use crate::report::{Ledger, Report};
use crate::shop::{Order, Payment, Shop};

const PATIENCE: Duration = Duration::from_secs(30);

/// The shop, the broker with its consumer, and their books.
pub struct Stage {
    pub broker: Arc<dyn Broker>,
    pub narrator: Narrator,
    shop: Box<dyn Shop>,
    consumer: JoinHandle<Result<()>>,
    deliveries: Arc<Deliveries>,
    ledger: Ledger,
    placed: usize,
}

impl Stage {
    /// Starts the consumer.
    pub fn new(shop: Box<dyn Shop>, broker: Arc<dyn Broker>, narrator: Narrator) -> Self {
        let deliveries = Arc::new(Deliveries::default());
        let consumer = tokio::spawn({
            let (broker, deliveries) = (broker.clone(), deliveries.clone());
            async move { broker.consume(&deliveries).await }
        });
        Self { broker, narrator, shop, consumer, deliveries, ledger: Ledger::default(), placed: 0 }
    }

    /// Starts a relay with a connection to the broker of its own.
    pub fn start_relay(&self) -> MortalRelay {
        MortalRelay::start(self.shop.outbox(), self.broker.publisher())
    }

    /// Places orders. Every fifth payment is refused, and that order is rolled back.
    pub async fn place_orders(&mut self, orders: usize) -> Result<()> {
        let (committed, rolled_back) = (self.ledger.committed.len(), self.ledger.rolled_back.len());
        for n in 1..=orders {
            self.place_order().await.context("could not place an order")?;
            self.narrator.mention(|| format!("{n} of {orders} orders placed"));
        }
        self.narrator.say(format_args!(
            "orders placed: {} committed, {} rolled back",
            self.ledger.committed.len() - committed,
            self.ledger.rolled_back.len() - rolled_back,
        ));
        Ok(())
    }

    async fn place_order(&mut self) -> Result<()> {
        self.placed += 1;
        let order = Order { id: format!("A-{}", self.placed), cents: 990 };
        if self.placed.is_multiple_of(5) {
            self.ledger.rolled_back.push(self.shop.place(&order, Payment::Refused).await?);
        } else {
            self.ledger.committed.push(self.shop.place(&order, Payment::Accepted).await?);
        }
        Ok(())
    }

    /// Waits until every committed message has been received and none is pending.
    ///
    /// # Errors
    /// When nothing moves any more.
    pub async fn until_delivered(&mut self) -> Result<()> {
        let committed = self.ledger.committed.len();
        let mut before = (0, 0);
        let mut moved = Instant::now();
        loop {
            let received = self.deliveries.received_of(&self.ledger.committed);
            let pending = self.shop.outbox().stats().await?.count(Status::Pending);
            if (received, pending) == (committed, 0) {
                self.narrator.say(format_args!("all {committed} committed messages delivered"));
                return Ok(());
            }
            let progress = format!("{received} of {committed} received, {pending} pending");
            if (received, pending) != before {
                (before, moved) = ((received, pending), Instant::now());
            } else if moved.elapsed() > PATIENCE {
                bail!("nothing has moved for {PATIENCE:?}: {progress}");
            }
            self.narrator.mention(|| progress);
            self.check_consumer().await?;
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn check_consumer(&mut self) -> Result<()> {
        if self.consumer.is_finished() {
            (&mut self.consumer).await?.context("the consumer stopped")?;
        }
        Ok(())
    }

    /// Says how many messages wait to be published, and how many failed attempts they were charged.
    pub async fn say_what_waits(&self) -> Result<()> {
        let rows = self.pending().await?;
        let attempts: u32 = rows.iter().map(|row| row.retry_count).sum();
        self.narrator
            .say(format_args!("{} messages wait, charged with {attempts} failed attempts", rows.len()));
        Ok(())
    }

    /// Says how many messages only a lease keeps from the next relay.
    pub async fn say_what_is_claimed(&self) -> Result<()> {
        let now = self.shop.outbox().clock().now();
        let is_claimed = |row: &Row| row.lease_until.is_some_and(|until| until > now);
        let claimed = self.pending().await?.into_iter().filter(is_claimed).count();
        self.narrator
            .say(format_args!("{claimed} messages stay claimed until their lease of {LEASE:?} runs out"));
        Ok(())
    }

    async fn pending(&self) -> Result<Vec<Row>> {
        let pending = Filter::default().with_status(Status::Pending).with_limit(self.placed);
        Ok(self.shop.outbox().find(&pending).await?)
    }

    /// Waits until nothing arrives any more, then compares the books.
    pub async fn report(&self) -> Result<Report> {
        let mut before = None;
        while before.replace(self.deliveries.total()) != Some(self.deliveries.total()) {
            sleep(Duration::from_millis(500)).await;
        }
        let messages = self.shop.outbox().stats().await?;
        let orders = usize::try_from(self.shop.orders().await?)?;
        Ok(Report::new(&self.ledger, orders, messages, &self.deliveries))
    }
}
