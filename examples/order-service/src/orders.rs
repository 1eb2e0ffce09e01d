//! The order service: orders and their messages in one transaction, a relay, and the way back of receipts.

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox::amqp::{AmqpConfig, AmqpPublisher, ReceiptListener};
use outbox::relay::Waker;
use outbox::sqlx::PgStore;
use outbox::{Enqueue, Message, Policies, Policy, Relay, RelayConfig};
use sqlx::PgPool;
use tokio::time::interval;

use crate::child::READY;
use crate::events::{ORDER_CREATED, OrderCreated, POINT_GRANTED, PointGranted};
use crate::place::{Place, Service, execute};
use crate::{INVENTORY, POINTS};

/// A process that dies keeps its messages from others for this long.
const LEASE: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(10);

/// Who must have handled what before it counts as completed.
fn policies() -> Policies {
    Policies::default()
        .with_rule(ORDER_CREATED, Policy::default().with_required_groups([INVENTORY, POINTS]))
        .with_rule(POINT_GRANTED, Policy::default().with_required_groups([POINTS]))
}

/// The outbox of the order service.
pub fn outbox(pool: &PgPool) -> PgStore {
    PgStore::new(pool.clone()).with_policies(policies())
}

/// Creates the tables.
pub async fn set_up(place: &Place) -> Result<()> {
    let pool = place.database(Service::Orders).await?;
    execute(&pool, "CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, cents bigint NOT NULL)").await?;
    Ok(outbox(&pool).migrate().await?)
}

/// Places orders while a relay delivers and receipts come back; runs until it is told to stop.
pub async fn run(place: &Place, orders: u32, stop: impl Future<Output = ()>) -> Result<()> {
    set_up(place).await?;
    let pool = place.database(Service::Orders).await?;
    let outbox = outbox(&pool);
    let broker = AmqpConfig::new(&place.amqp_url)?.with_exchange(place.exchange());
    let relay = Relay::new(outbox.clone(), AmqpPublisher::new(broker.clone()))
        .with_policies(policies())
        .with_config(RelayConfig::default().with_lease(LEASE))
        .spawn();
    let receipts = ReceiptListener::new(broker, place.receipts(), outbox.clone()).spawn();
    println!("{READY}");

    let placed = Shop { pool, outbox }.place_all(orders, &relay.waker()).await;
    if placed.is_ok() {
        stop.await;
    }
    receipts.shutdown(PATIENCE).await;
    let report = relay.shutdown(PATIENCE).await;
    placed?;
    ensure!(report.is_clean(), "the relay left claims behind, which wait for their lease to end: {report:?}");
    Ok(())
}

fn order(number: u32) -> OrderCreated {
    OrderCreated {
        order: format!("A-{number}"),
        member: format!("M-{}", number % 7),
        sku: format!("S-{}", number % 3),
        quantity: 1 + i64::from(number % 4),
        cents: 990,
    }
}

struct Shop {
    pool: PgPool,
    outbox: PgStore,
}

impl Shop {
    /// Takes an order every two milliseconds; every fifth is taken back.
    async fn place_all(&self, orders: u32, relay: &Waker) -> Result<()> {
        let mut customers = interval(Duration::from_millis(2));
        for number in 1..=orders {
            customers.tick().await;
            self.place(&order(number), number % 5 == 0).await?;
            relay.wake();
        }
        Ok(())
    }

    /// The order and what is to be told about it are written together, or not at all.
    async fn place(&self, order: &OrderCreated, take_back: bool) -> Result<()> {
        let points = PointGranted {
            order: order.order.clone(),
            member: order.member.clone(),
            points: order.cents / 100,
        };
        let messages = [
            Message::json(ORDER_CREATED, &order.order, order)?,
            Message::json(POINT_GRANTED, &order.order, &points)?,
        ];
        let mut tx = self.pool.begin().await?;
        sqlx::query("INSERT INTO orders (id, cents) VALUES ($1, $2)")
            .bind(&order.order)
            .bind(order.cents)
            .execute(&mut *tx)
            .await?;
        self.outbox.enqueue(&mut tx, &messages).await?;
        if take_back {
            tx.rollback().await?
        } else {
            tx.commit().await?
        }
        Ok(())
    }
}
