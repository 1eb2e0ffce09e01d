//! Handlers that fail, that are slow, and that stand still.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use outbox_core::Message;
use outbox_tests::{Conduct, ConsumerSetup, FaultPoint, Process, RoundTrip, orders, round_trip, stop, until};

use crate::{GROUPS, start};

const LIMIT: Duration = Duration::from_secs(30);
const LEASE: Duration = Duration::from_secs(1);

/// How often the handler of a group has begun.
async fn runs(t: &RoundTrip<'_>, group: &str) -> Result<usize> {
    Ok(t.effects().runs().await?.iter().filter(|run| run.consumer_group == group).count())
}

async fn effects(t: &RoundTrip<'_>, group: &str) -> Result<usize> {
    Ok(t.effects().counts(group).await?.values().sum())
}

/// One of two deliveries with each of two processes: the first has begun, and the second has its own.
async fn two_processes(t: &RoundTrip<'_>, group: &str) -> Result<[Process; 2]> {
    let setup =
        |name| t.consumer(group, name).map(|setup| ConsumerSetup { prefetch: 1, lease: LEASE, ..setup });
    let first = start(&setup("first")?).await?;
    until("the first has begun", LIMIT, async || Ok((runs(t, group).await? > 0).then_some(()))).await?;
    let second = start(&setup("second")?).await?;
    t.emptied(t.queue(group)?).await?;
    Ok([first, second])
}

async fn two_deliveries(t: &RoundTrip<'_>, order: Message) -> Result<()> {
    let order = [order];
    let relay = t.scenario().relay("relay").start_here().await?;
    t.commit(&order).await?;
    t.sent().await?;
    relay.stop().await?;
    t.publish_again(&order).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn handler_that_fails_after_begin_is_run_by_the_redelivery_at_once() -> Result<()> {
    round_trip(&GROUPS, async |t| {
        let listener = t.listener().start()?;
        let relay = t.scenario().relay("relay").start_here().await?;
        // A lease that was not given back would last longer than the test may.
        let lease = Duration::from_secs(600);
        let consumers =
            GROUPS.map(|group| ConsumerSetup { lease, ..t.consumer(group, "consumer")? }.start_here());
        t.commit(&[Conduct::FailsOnce.of(orders(1)?.remove(0))?]).await?;
        t.completed().await?;
        for consumer in consumers {
            stop(consumer?).await?;
        }
        relay.stop().await?;
        stop(listener).await?;
        for group in GROUPS {
            let (runs, effects) = (runs(t, group).await?, effects(t, group).await?);
            ensure!((runs, effects) == (2, 1), "{group}: {runs} runs, {effects} effects");
        }
        t.verify().await?;
        t.nothing_is_dead().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn handler_slower_than_its_lease_runs_once_while_the_lease_is_renewed() -> Result<()> {
    let groups = ["mails", "points"];
    round_trip(&groups, async |t| {
        let listener = t.listener().start()?;
        two_deliveries(t, Conduct::Takes(5_000).of(orders(1)?.remove(0))?).await?;
        let processes = try_join_all(groups.map(|group| two_processes(t, group))).await?;
        ensure!(t.effects().all().await?.is_empty(), "the handlers had ended before there were two");
        t.completed().await?;
        for process in processes.into_iter().flatten() {
            process.stop().await?;
        }
        stop(listener).await?;
        for group in groups {
            let (runs, waiting) =
                (runs(t, group).await?, t.scenario().broker().waiting(t.queue(group)?).await?);
            ensure!(runs == 1, "{group}: the handler began {runs} times");
            // The other delivery may still have been waiting for its turn.
            ensure!(waiting <= 1, "{group}: {waiting} are in the queue");
        }
        t.verify().await
    })
    .await
}

/// A process stands still in its handler, with one delivery, while another handles the other.
async fn replaced(t: &RoundTrip<'_>, group: &str) -> Result<[Process; 2]> {
    let fault = Some(FaultPoint::BeforeHandler);
    let first = ConsumerSetup { fault, prefetch: 1, lease: LEASE, ..t.consumer(group, "first")? };
    let mut first = start(&first).await?;
    first.says("fault").await?;
    first.freeze().await?;
    let second = start(&t.consumer(group, "second")?).await?;
    until("another takes over", LIMIT, async || Ok((effects(t, group).await? > 0).then_some(()))).await?;
    first.thaw().await?;
    first.tell("go").await?;
    Ok([first, second])
}

/// A process that stands still cannot renew: another takes over. When it wakes, only an inbox surely keeps it from
/// doing it again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn consumer_that_stands_still_past_its_lease_is_replaced() -> Result<()> {
    round_trip(&GROUPS, async |t| {
        let listener = t.listener().start()?;
        two_deliveries(t, orders(1)?.remove(0)).await?;
        let processes = try_join_all(GROUPS.map(|group| replaced(t, group))).await?;
        t.completed().await?;
        for group in GROUPS {
            t.emptied(t.queue(group)?).await?;
        }
        for process in processes.into_iter().flatten() {
            process.stop().await?;
        }
        stop(listener).await?;
        t.verify().await?;
        for group in GROUPS {
            let effects = effects(t, group).await?;
            ensure!(effects == 1 || group != "inventory" && effects == 2, "{group}: {effects} effects");
        }
        t.nothing_is_dead().await
    })
    .await
}
