//! Effects against orders.

use std::fmt;

use anyhow::Result;
use outbox::{OutboxStore, Stats, Status};
use sqlx::{AssertSqlSafe, PgPool};

use crate::orders;
use crate::place::{Place, Service};

/// Reads the tables of all services, as none of them can.
pub struct Auditor {
    orders: PgPool,
    inventory: PgPool,
    points: PgPool,
}

/// How often an effect happened to each of the orders.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Effect {
    pub never: i64,
    pub once: i64,
    pub more: i64,
    /// For orders that are not there.
    pub unknown: i64,
}

/// The books of all services, side by side.
#[derive(Debug)]
pub struct Books {
    pub orders: i64,
    pub messages: Stats,
    pub deducted: Effect,
    pub turnover: Effect,
    pub points: Effect,
}

impl Auditor {
    /// Connects to each.
    pub async fn new(place: &Place) -> Result<Self> {
        Ok(Self {
            orders: place.database(Service::Orders).await?,
            inventory: place.database(Service::Inventory).await?,
            points: place.database(Service::Points).await?,
        })
    }

    /// How things are now.
    pub async fn books(&self) -> Result<Books> {
        let orders: Vec<String> = sqlx::query_scalar("SELECT id FROM orders").fetch_all(&self.orders).await?;
        Ok(Books {
            orders: i64::try_from(orders.len())?,
            messages: orders::outbox(&self.orders).stats().await?,
            deducted: effect(&self.inventory, "deductions", &orders).await?,
            turnover: effect(&self.points, "bookings WHERE kind = 'turnover'", &orders).await?,
            points: effect(&self.points, "bookings WHERE kind = 'points'", &orders).await?,
        })
    }
}

impl Books {
    /// Whether nothing is under way any more.
    pub fn are_closed(&self) -> bool {
        self.messages.count(Status::Pending) + self.messages.count(Status::Sent) == 0
    }

    /// Every promise that was broken; none is what we want.
    pub fn broken_promises(&self) -> Vec<String> {
        let mut broken = Vec::new();
        let completed = self.messages.count(Status::Completed);
        if i64::try_from(completed) != Ok(2 * self.orders) {
            broken.push(format!("{completed} messages are completed, {} orders have two each", self.orders));
        }
        for (name, effect) in self.effects() {
            if effect.never + effect.unknown > 0 {
                broken.push(format!("{name}: {effect:?}"));
            }
        }
        if self.deducted.more > 0 {
            broken.push(format!("{} orders were deducted twice, in spite of the inbox", self.deducted.more));
        }
        broken
    }

    fn effects(&self) -> [(&'static str, Effect); 3] {
        [
            ("inventory: deducted (inbox)", self.deducted),
            ("points: turnover booked (Redis)", self.turnover),
            ("points: points granted (Redis)", self.points),
        ]
    }
}

async fn effect(pool: &PgPool, effects: &str, orders: &[String]) -> Result<Effect> {
    let sql = format!(
        "WITH done AS (SELECT order_id, count(*) AS times FROM (SELECT order_id FROM {effects}) AS e GROUP BY 1) \
         SELECT count(*) FILTER (WHERE o.id IS NOT NULL AND times IS NULL), \
                count(*) FILTER (WHERE o.id IS NOT NULL AND times = 1), \
                count(*) FILTER (WHERE o.id IS NOT NULL AND times > 1), \
                count(*) FILTER (WHERE o.id IS NULL) \
         FROM unnest($1::text[]) AS o(id) FULL JOIN done ON done.order_id = o.id"
    );
    let (never, once, more, unknown) =
        sqlx::query_as(AssertSqlSafe(sql)).bind(orders).fetch_one(pool).await?;
    Ok(Effect { never, once, more, unknown })
}

impl fmt::Display for Books {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:<34}{:>8}{:>8}{:>8}{:>8}", "orders", "never", "once", "more", "unknown")?;
        for (name, Effect { never, once, more, unknown }) in self.effects() {
            writeln!(f, "  {name:<34}{never:>8}{once:>8}{more:>8}{unknown:>8}")?;
        }
        writeln!(f, "\n  {:<34}{:>8}", "orders", self.orders)?;
        for status in Status::ALL {
            writeln!(f, "  {:<34}{:>8}", format!("messages {status}"), self.messages.count(status))?;
        }
        Ok(())
    }
}
