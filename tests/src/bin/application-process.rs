//! An application in a process of its own, whose clock may be off. It commits two messages to `DATABASE_URL`, one
//! to be delivered at once and one in two seconds, and says what it did on stdout: its own time, the ids, and
//! when the second is due.

use std::time::Duration;

use anyhow::Result;
use chrono::Utc;
use outbox_core::{Enqueue, OutboxStore};
use outbox_sqlx::PgStore;
use outbox_tests::{orders, required};
use sqlx::PgPool;

const DELAY: Duration = Duration::from_secs(2);

#[tokio::main]
async fn main() -> Result<()> {
    let pool = PgPool::connect(&required("DATABASE_URL")?).await?;
    let store = PgStore::new(pool.clone());
    let mut messages = orders(2)?;
    let mut tx = pool.begin().await?;
    store.enqueue(&mut tx, &messages[..1]).await?;
    // It only enqueues: that is how the store knows the server's time.
    let due = store.clock().now() + DELAY;
    messages[1] = messages[1].clone().with_deliver_after(due);
    store.enqueue(&mut tx, &messages[1..]).await?;
    tx.commit().await?;
    println!(
        "{} {} {} {}",
        Utc::now().timestamp(),
        messages[0].msg_id(),
        messages[1].msg_id(),
        due.to_rfc3339()
    );
    Ok(())
}
