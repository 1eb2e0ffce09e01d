//! The inventory: its effect and the inbox's marker are one transaction, so it deducts exactly once.

use anyhow::Result;
use async_trait::async_trait;
use outbox::consumer::{Delivery, Handler, HandlerError};
use outbox::sqlx::PgInbox;
use sqlx::PgConnection;

use crate::INVENTORY;
use crate::events::OrderCreated;
use crate::place::{Place, Service, execute};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS stock (sku text PRIMARY KEY, quantity bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS deductions (order_id text NOT NULL, sku text NOT NULL, quantity bigint NOT NULL);
    INSERT INTO stock SELECT 'S-' || n, 1000000 FROM generate_series(0, 2) AS n ON CONFLICT DO NOTHING";

pub struct Inventory {
    inbox: PgInbox,
}

impl Inventory {
    pub async fn open(place: &Place) -> Result<Self> {
        let pool = place.database(Service::Inventory).await?;
        execute(&pool, TABLES).await?;
        let inbox = PgInbox::new(pool);
        inbox.migrate().await?;
        Ok(Self { inbox })
    }
}

#[async_trait]
impl Handler for Inventory {
    type Payload = OrderCreated;

    async fn handle(&self, delivery: Delivery<OrderCreated>) -> Result<(), HandlerError> {
        let deduct = async |tx: &mut PgConnection| deduct(tx, delivery.payload()).await;
        self.inbox.once(INVENTORY, delivery.msg_id(), deduct).await.map(drop)
    }
}

async fn deduct(tx: &mut PgConnection, order: &OrderCreated) -> Result<(), HandlerError> {
    sqlx::query("UPDATE stock SET quantity = quantity - $2 WHERE sku = $1")
        .bind(&order.sku)
        .bind(order.quantity)
        .execute(&mut *tx)
        .await?;
    sqlx::query("INSERT INTO deductions VALUES ($1, $2, $3)")
        .bind(&order.order)
        .bind(&order.sku)
        .bind(order.quantity)
        .execute(tx)
        .await?;
    Ok(())
}
