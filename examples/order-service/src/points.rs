//! The points: no transaction with the marker, which is in Redis. A crash between the two books twice.

use anyhow::Result;
use async_trait::async_trait;
use outbox::Payload;
use outbox::consumer::{Decode, Delivery, Handler, HandlerError};
use sqlx::PgPool;

use crate::events::{ORDER_CREATED, OrderCreated, POINT_GRANTED, PointGranted};
use crate::place::{Place, Service, execute};

const TABLES: &str = "CREATE TABLE IF NOT EXISTS bookings (order_id text NOT NULL, kind text NOT NULL, amount bigint NOT NULL)";

pub struct Points {
    pool: PgPool,
}

impl Points {
    pub async fn open(place: &Place) -> Result<Self> {
        let pool = place.database(Service::Points).await?;
        execute(&pool, TABLES).await?;
        Ok(Self { pool })
    }

    async fn book(&self, order: &str, kind: &str, amount: i64) -> Result<(), HandlerError> {
        // A database that is away charges the message nothing.
        let mut connection = self.pool.acquire().await.map_err(HandlerError::unavailable)?;
        sqlx::query("INSERT INTO bookings VALUES ($1, $2, $3)")
            .bind(order)
            .bind(kind)
            .bind(amount)
            .execute(&mut *connection)
            .await?;
        Ok(())
    }
}

/// Two types of message come on the same queue; both may be about the same order.
#[async_trait]
impl Handler for Points {
    type Payload = Payload;

    async fn handle(&self, delivery: Delivery<Payload>) -> Result<(), HandlerError> {
        match delivery.biz_type() {
            ORDER_CREATED => {
                let order = OrderCreated::decode(delivery.payload())?;
                self.book(&order.order, "turnover", order.cents).await
            }
            POINT_GRANTED => {
                let grant = PointGranted::decode(delivery.payload())?;
                self.book(&grant.order, "points", grant.points).await
            }
            other => Err(HandlerError::reject(format!("points know nothing of {other}"))),
        }
    }
}
