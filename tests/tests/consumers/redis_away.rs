//! Redis goes away, falls silent, and forgets.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use outbox_core::Message;
use outbox_tests::{
    ConsumerSetup, Direction, Memory, Process, Proxy, RoundTrip, dead_letters, round_trip, services_ctl,
    stop, until,
};
use tokio::time::sleep;

use crate::start;

const LIMIT: Duration = Duration::from_secs(30);
const GROUP: &str = "points";
const ORDERS: usize = 100;

/// A consumer that reaches Redis through `proxy`.
fn by_proxy(t: &RoundTrip<'_>, proxy: &Proxy) -> Result<ConsumerSetup> {
    let redis = t.scenario().redis()?;
    let memory = Memory::Redis { url: proxy.url(redis.url()), prefix: redis.prefix().to_owned() };
    Ok(ConsumerSetup { memory, ..t.consumer(GROUP, "consumer")? })
}

async fn publish(t: &RoundTrip<'_>, count: usize) -> Result<Vec<Message>> {
    let relay = t.scenario().relay("relay").start_here().await?;
    let orders = t.commit_orders(count).await?;
    t.sent().await?;
    relay.stop().await?;
    Ok(orders)
}

async fn effects(t: &RoundTrip<'_>) -> Result<usize> {
    Ok(t.effects().all().await?.len())
}

/// For so long nothing is handled and nothing leaves the queue: the consumer holds as many as it may, and the others
/// wait.
async fn endure(t: &RoundTrip<'_>, held: usize, handled: usize, outage: Duration) -> Result<()> {
    let (broker, queue) = (t.scenario().broker(), t.queue(GROUP)?);
    let waiting = u32::try_from(ORDERS - held)?;
    until("the consumer has its prefetch", LIMIT, async || {
        Ok((broker.ready(queue).await? == waiting).then_some(()))
    })
    .await?;
    let end = Instant::now() + outage;
    while Instant::now() < end {
        sleep(Duration::from_millis(500)).await;
        let found = broker.waiting(queue).await?;
        ensure!(found == waiting, "{found} are in the queue, so some were acknowledged or put off");
        ensure!(t.effects().runs().await?.len() == handled, "a handler ran without the dedup store");
        ensure!(broker.ready(&dead_letters(queue)).await? == 0, "something was given up");
    }
    Ok(())
}

/// The same process, which was never started anew, handles everything once.
async fn recover(t: &RoundTrip<'_>, consumer: Process, handled: usize) -> Result<()> {
    let listener = t.listener().start()?;
    t.completed().await?;
    consumer.stop().await?;
    stop(listener).await?;
    let effects = effects(t).await?;
    ensure!(effects == handled, "{effects} effects");
    t.verify().await?;
    t.nothing_is_dead().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn redis_away_pauses_consumption_and_acknowledges_nothing_unhandled() -> Result<()> {
    round_trip(&[GROUP], async |t| {
        let proxy = Proxy::before(t.scenario().redis()?.url()).await?;
        proxy.refuse();
        publish(t, ORDERS).await?;
        let setup = by_proxy(t, &proxy)?;
        let consumer = start(&setup).await?;
        endure(t, usize::from(setup.prefetch), 0, Duration::from_secs(4)).await?;
        proxy.resume();
        recover(t, consumer, ORDERS).await
    })
    .await
}

/// What was running when Redis fell silent may have its effect again; nothing else may.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn redis_falling_silent_under_load_repeats_what_was_running_at_most() -> Result<()> {
    round_trip(&[GROUP], async |t| {
        let proxy = Proxy::before(t.scenario().redis()?.url()).await?;
        let listener = t.listener().start()?;
        publish(t, 300).await?;
        let setup = by_proxy(t, &proxy)?;
        let consumer = start(&setup).await?;
        until("some are handled", LIMIT, async || Ok((effects(t).await? > 20).then_some(()))).await?;
        proxy.stall(Direction::ToClient);
        proxy.stall(Direction::ToServer);
        sleep(Duration::from_secs(3)).await;
        let before = effects(t).await?;
        ensure!(before < 300, "there was no load");
        sleep(Duration::from_secs(1)).await;
        ensure!(effects(t).await? == before, "a handler ran without the dedup store");
        proxy.cut();
        proxy.resume();
        t.completed().await?;
        consumer.stop().await?;
        stop(listener).await?;
        let effects = effects(t).await?;
        ensure!(effects <= 300 + setup.concurrency, "{effects} effects of 300");
        t.verify().await?;
        t.nothing_is_dead().await
    })
    .await
}

/// Redis remembers until it is emptied; then what comes again is handled again, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn redis_emptied_repeats_what_comes_again_and_nothing_else() -> Result<()> {
    round_trip(&[GROUP], async |t| {
        let listener = t.listener().start()?;
        let setup = ConsumerSetup { lease: Duration::from_secs(15), ..t.consumer(GROUP, "consumer")? };
        let orders = publish(t, 30).await?;
        let again = &orders[..10];
        t.publish_again(again).await?;
        t.consume_all(&setup).await?;
        ensure!(effects(t).await? == 30, "Redis forgot by itself");
        let keys = t.scenario().redis()?.empty().await?;
        ensure!(keys == 30, "{keys} keys");
        t.publish_again(again).await?;
        t.consume_all(&setup).await?;
        t.completed().await?;
        stop(listener).await?;
        let counts = t.effects().counts(GROUP).await?;
        for order in &orders {
            let expected = if again.contains(order) { 2 } else { 1 };
            let count = counts.get(order.msg_id()).copied();
            ensure!(count == Some(expected), "{} had {count:?} effects", order.msg_id());
        }
        t.verify().await?;
        t.scenario().verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ, and Redis that may be stopped: run scripts/test.sh"]
async fn alone_redis_stopped_pauses_consumption_and_needs_no_restart_of_consumers() -> Result<()> {
    round_trip(&[GROUP], async |t| {
        let setup = t.consumer(GROUP, "consumer")?;
        let listener = t.listener().start()?;
        let consumer = start(&setup).await?;
        publish(t, 10).await?;
        t.completed().await?;
        stop(listener).await?;
        let outage = async {
            services_ctl("stop", "redis").await?;
            publish(t, ORDERS).await?;
            endure(t, usize::from(setup.prefetch), 10, Duration::from_secs(10)).await
        };
        let endured = outage.await;
        services_ctl("start", "redis").await?;
        endured?;
        recover(t, consumer, 10 + ORDERS).await
    })
    .await
}
