//! What is not a duplicate.

use anyhow::{Result, ensure};
use outbox_tests::{messages, orders, round_trip, stop};

/// Two groups of each kind share a table or a prefix, and every order has two messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn another_group_and_another_message_of_the_same_order_are_no_duplicates() -> Result<()> {
    const ORDERS: usize = 5;
    let groups = ["inventory", "inventory-2", "mails", "mails-2", "points", "points-2"];
    round_trip(&groups, async |t| {
        let listener = t.listener().start()?;
        let relay = t.scenario().relay("relay").start_here().await?;
        let consumers = groups.map(|group| t.consumer(group, "consumer")?.start_here());
        let (created, granted) = (orders(ORDERS)?, messages("point.granted", ORDERS)?);
        ensure!(created.iter().zip(&granted).all(|(a, b)| a.biz_id() == b.biz_id()), "they are of one order");
        t.commit(&[created, granted].concat()).await?;
        t.completed().await?;
        for consumer in consumers {
            stop(consumer?).await?;
        }
        relay.stop().await?;
        stop(listener).await?;
        t.verify().await?;
        for group in groups {
            let counts = t.effects().counts(group).await?;
            ensure!(counts.len() == 2 * ORDERS, "{group} handled {} messages", counts.len());
            ensure!(counts.values().all(|count| *count == 1), "{group} handled some twice");
        }
        Ok(())
    })
    .await
}
