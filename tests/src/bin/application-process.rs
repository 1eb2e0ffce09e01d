//! An application in a process of its own, whose clock may be off, and that does nothing but enqueue. It commits two
//! messages to `DATABASE_URL`, one to be delivered at once and one in two seconds, and says what it did on stdout:
//! its own time, the ids, and when the second is due.

use std::time::Duration;

use anyhow::Result;
use chrono::Utc;
use outbox_core::{Enqueue, Message, OutboxStore};
use outbox_sqlx::PgStore;
use outbox_tests::{orders, required};
use sqlx::PgPool;

const DELAY: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<()> {
    let pool = PgPool::connect(&required("DATABASE_URL")?).await?;
    let store = PgStore::new(pool);
    let (now, later) = (orders(1)?.remove(0), orders(1)?.remove(0));
    commit(&store, &now).await?;
    let due = store.clock().now() + DELAY;
    let later = later.with_deliver_after(due);
    commit(&store, &later).await?;
    println!("{} {} {} {}", Utc::now().timestamp(), now.msg_id(), later.msg_id(), due.to_rfc3339());
    Ok(())
}

async fn commit(store: &PgStore, message: &Message) -> Result<()> {
    let mut tx = store.pool().begin().await?;
    store.enqueue(&mut tx, std::slice::from_ref(message)).await?;
    Ok(tx.commit().await?)
}
