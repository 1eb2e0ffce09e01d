//! Every message three times, and consumers that end in the middle of one.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use outbox_core::Message;
use outbox_tests::{Conduct, ConsumerSetup, FaultPoint, RoundTrip, ids, orders, round_trip, stop};

use crate::{GROUPS, start};

const ORDERS: usize = 12;

/// Puts three deliveries of each message into the queue of each group.
async fn three_of_each(t: &RoundTrip<'_>, orders: &[Message]) -> Result<()> {
    let relay = t.scenario().relay("relay").start_here().await?;
    t.commit(orders).await?;
    t.sent().await?;
    relay.stop().await?;
    t.publish_again(orders).await?;
    t.publish_again(orders).await
}

/// Nobody is in a hurry to take a lease over from one who lives.
fn patient(setup: ConsumerSetup) -> ConsumerSetup {
    ConsumerSetup { lease: Duration::from_secs(15), ..setup }
}

/// A process of the group is killed at `point`, with one message in its hands; two others do the rest.
async fn kill_one(t: &RoundTrip<'_>, group: &str, point: FaultPoint) -> Result<()> {
    let victim = ConsumerSetup { concurrency: 1, fault: Some(point), ..t.consumer(group, "victim")? };
    let victim = start(&victim).await?;
    victim.says("fault").await?;
    victim.kill().await?;
    t.consume_all(&patient(t.consumer(group, "heir")?)).await
}

/// How often all messages together have had their effect.
async fn effects(t: &RoundTrip<'_>, group: &str) -> Result<usize> {
    Ok(t.effects().counts(group).await?.values().sum())
}

/// With a dedup store, `again` effects happen twice; with the inbox, none.
async fn killed_at(point: FaultPoint, again: usize) -> Result<()> {
    round_trip(&GROUPS, async |t| {
        let listener = t.listener().start()?;
        three_of_each(t, &orders(ORDERS)?).await?;
        try_join_all(GROUPS.map(|group| kill_one(t, group, point))).await?;
        t.completed().await?;
        stop(listener).await?;
        t.verify().await?;
        t.nothing_is_dead().await?;
        for (group, expected) in [("inventory", 0), ("mails", again), ("points", again)] {
            let found = effects(t, group).await?;
            ensure!(found == ORDERS + expected, "{group} had {found} effects");
        }
        t.scenario().verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn consumer_killed_before_the_handler_has_each_effect_once() -> Result<()> {
    killed_at(FaultPoint::BeforeHandler, 0).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn consumer_killed_after_the_effect_repeats_it_unless_it_has_an_inbox() -> Result<()> {
    killed_at(FaultPoint::AfterEffect, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn consumer_killed_after_the_marker_has_each_effect_once() -> Result<()> {
    killed_at(FaultPoint::AfterMarker, 0).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn consumer_killed_before_the_ack_has_each_effect_once() -> Result<()> {
    killed_at(FaultPoint::AfterReceipt, 0).await
}

/// Each of the three deliveries may fail by itself. Only a panic after the effect can repeat it, and only without an
/// inbox.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn handler_that_fails_or_panics_at_first_has_each_effect() -> Result<()> {
    round_trip(&GROUPS, async |t| {
        let conducts = [Conduct::FailsOnce, Conduct::PanicsOnce, Conduct::PanicsLateOnce];
        let badly =
            |(n, order): (usize, Message)| conducts.get(n % 4).map_or(Ok(order.clone()), |c| c.of(order));
        let orders = orders(ORDERS)?.into_iter().enumerate().map(badly).collect::<Result<Vec<_>, _>>()?;
        let late: Vec<String> = ids(&orders).into_iter().skip(2).step_by(4).collect();
        let listener = t.listener().start()?;
        three_of_each(t, &orders).await?;
        try_join_all(GROUPS.map(async |group| t.consume_all(&patient(t.consumer(group, "consumer")?)).await))
            .await?;
        t.completed().await?;
        stop(listener).await?;
        t.verify().await?;
        t.nothing_is_dead().await?;
        for group in ["mails", "points"] {
            for (id, count) in t.effects().counts(group).await? {
                let most = if late.contains(&id) { 4 } else { 1 };
                ensure!(count <= most, "{group}: {id} had {count} effects");
            }
        }
        t.scenario().verify().await
    })
    .await
}
