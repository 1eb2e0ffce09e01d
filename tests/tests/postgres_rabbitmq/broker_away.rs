//! RabbitMQ goes away and comes back.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use outbox_tests::{Direction, Process, Proxy, RelaySetup, Scenario, ids, orders, scenario, services_ctl};
use tokio::time::sleep;

use crate::start;

const PENDING: usize = 1_000;

fn by_proxy(s: &Scenario, proxy: &Proxy) -> RelaySetup {
    RelaySetup { amqp_url: proxy.url(s.broker().url()), ..s.relay("relay") }
}

/// A relay that has delivered something and is at rest.
async fn at_work(s: &Scenario, setup: &RelaySetup) -> Result<Process> {
    let relay = start(setup).await?;
    let ids = s.commit_orders(100).await?;
    s.delivered(&ids).await?;
    s.settled().await?;
    Ok(relay)
}

/// Nothing may be charged, now or ever before.
async fn no_attempt_charged(s: &Scenario) -> Result<()> {
    let charged = s.steps().await?.into_iter().find(|step| step.retry_count > 0);
    ensure!(charged.is_none(), "an attempt was charged: {charged:?}");
    Ok(())
}

/// For as long as the broker is away the relay lives, waits, and charges nothing.
async fn endure(s: &Scenario, relay: &mut Process, outage: Duration) -> Result<()> {
    let end = Instant::now() + outage;
    while Instant::now() < end {
        sleep(Duration::from_millis(500)).await;
        no_attempt_charged(s).await?;
        ensure!(s.tables().count(0).await? == PENDING, "something was settled while the broker was away");
    }
    let health = relay.ask("health").await?;
    ensure!(!health.contains("breaker: Closed"), "the relay has not noticed: {health}");
    ensure!(health.contains("store_available: true"), "{health}");
    Ok(())
}

/// The same relay, which was never started anew, delivers everything.
async fn recover(s: &Scenario, relay: Process) -> Result<()> {
    s.settled().await?;
    no_attempt_charged(s).await?;
    relay.stop().await?;
    s.verify().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, and RabbitMQ that may be stopped: run scripts/test.sh"]
async fn alone_broker_stopped_for_a_minute_charges_nothing_and_all_is_delivered_after() -> Result<()> {
    scenario(async |s| {
        let mut relay = at_work(s, &s.relay("relay")).await?;
        // These are confirmed and stay in the queue: they must survive the broker's restart.
        s.stop_listening().await?;
        s.commit_orders(100).await?;
        s.settled().await?;
        let outage = async {
            services_ctl("stop", "rabbit").await?;
            s.commit_orders(PENDING).await?;
            endure(s, &mut relay, Duration::from_secs(60)).await
        };
        let endured = outage.await;
        services_ctl("start", "rabbit").await?;
        endured?;
        s.listen_again().await?;
        recover(s, relay).await
    })
    .await
}

/// What it had confirmed is on its disk, the rest goes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, and RabbitMQ that may be killed: run scripts/test.sh"]
async fn alone_broker_killed_under_load_loses_and_charges_nothing() -> Result<()> {
    scenario(async |s| {
        let relay = at_work(s, &s.relay("relay")).await?;
        s.stop_listening().await?;
        let outage = async {
            for _ in 0..30 {
                s.commit_orders(100).await?;
            }
            services_ctl("kill", "rabbit").await?;
            ensure!(s.tables().count(0).await? > 0, "there was no load");
            ensure!(s.tables().count(2).await? > 100, "nothing was confirmed under load");
            anyhow::Ok(())
        };
        let endured = outage.await;
        services_ctl("start", "rabbit").await?;
        endured?;
        s.listen_again().await?;
        s.settled().await?;
        s.explain_by_claims().await?;
        recover(s, relay).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn broker_refusing_connections_charges_nothing_and_all_is_delivered_after() -> Result<()> {
    scenario(async |s| {
        let proxy = Proxy::before(s.broker().url()).await?;
        let mut relay = at_work(s, &by_proxy(s, &proxy)).await?;
        proxy.refuse();
        s.commit_orders(PENDING).await?;
        endure(s, &mut relay, Duration::from_secs(5)).await?;
        proxy.resume();
        recover(s, relay).await
    })
    .await
}

/// The connection stays, and nobody answers: only heartbeats and time-outs can tell. What was sent before that
/// was noticed may come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn broker_falling_silent_charges_nothing_and_all_is_delivered_after() -> Result<()> {
    scenario(async |s| {
        let proxy = Proxy::before(s.broker().url()).await?;
        let setup = RelaySetup { confirm_timeout: Duration::from_secs(2), ..by_proxy(s, &proxy) };
        let setup = RelaySetup { heartbeat: Duration::from_secs(1), lease: Duration::from_secs(10), ..setup };
        let mut relay = at_work(s, &setup).await?;
        proxy.stall(Direction::ToServer);
        proxy.stall(Direction::ToClient);
        s.commit_orders(PENDING).await?;
        endure(s, &mut relay, Duration::from_secs(10)).await?;
        proxy.cut();
        proxy.resume();
        s.settled().await?;
        s.explain_by_claims().await?;
        recover(s, relay).await
    })
    .await
}

/// Confirms get lost with the connection, under load: what they were for goes again, and nothing is charged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn broker_connection_cut_again_and_again_under_load_loses_and_charges_nothing() -> Result<()> {
    scenario(async |s| {
        let proxy = Proxy::before(s.broker().url()).await?;
        let relay = at_work(s, &by_proxy(s, &proxy)).await?;
        for millis in [5, 10, 20, 40, 80] {
            let all = orders(500)?;
            for some in all.chunks(100) {
                s.commit(some).await?;
            }
            sleep(Duration::from_millis(millis)).await;
            proxy.cut();
            s.delivered(&ids(&all)).await?;
        }
        s.settled().await?;
        s.explain_by_claims().await?;
        recover(s, relay).await
    })
    .await
}
