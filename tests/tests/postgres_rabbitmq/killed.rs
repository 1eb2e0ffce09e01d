//! kill -9 of a relay process at every point where it matters.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_tests::{Direction, FaultPoint, Proxy, RelaySetup, scenario, until};

use crate::start;

const ORDERS: usize = 50;

/// Kills the relay at `point` with all orders in its hands, starts another, and expects every order to come
/// so many times.
async fn killed_at(point: FaultPoint, copies: usize) -> Result<()> {
    scenario(async |s| {
        let victim = start(&RelaySetup { fault: Some(point), ..s.relay("victim") }).await?;
        let ids = s.commit_orders(ORDERS).await?;
        victim.says("fault").await?;
        victim.kill().await?;
        let in_flight = s.tables().claimed().await?;
        assert_eq!(in_flight.len(), if point == FaultPoint::AfterSettle { 0 } else { ORDERS });
        if copies > 1 {
            s.ledger().may_repeat(in_flight);
        }
        let heir = start(&s.relay("heir")).await?;
        s.delivered(&ids).await?;
        s.settled().await?;
        heir.stop().await?;
        s.verify().await?;
        assert!(s.deliveries().counts().values().all(|count| *count == copies), "each comes {copies} times");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn relay_killed_after_claim_loses_and_repeats_nothing() -> Result<()> {
    killed_at(FaultPoint::AfterClaim, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn relay_killed_before_publish_loses_and_repeats_nothing() -> Result<()> {
    killed_at(FaultPoint::BeforePublish, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn relay_killed_after_publish_repeats_its_in_flight_once() -> Result<()> {
    killed_at(FaultPoint::AfterPublish, 2).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn relay_killed_after_confirm_repeats_its_in_flight_once() -> Result<()> {
    killed_at(FaultPoint::BeforeSettle, 2).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn relay_killed_after_settle_loses_and_repeats_nothing() -> Result<()> {
    killed_at(FaultPoint::AfterSettle, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn relay_killed_while_confirms_are_on_their_way_repeats_its_in_flight_once() -> Result<()> {
    scenario(async |s| {
        let proxy = Proxy::before(s.broker().url()).await?;
        let victim =
            start(&RelaySetup { amqp_url: proxy.url(s.broker().url()), ..s.relay("victim") }).await?;
        let before = s.commit_orders(1).await?;
        s.delivered(&before).await?;
        s.settled().await?;
        proxy.stall(Direction::ToClient);
        let ids = s.commit_orders(ORDERS).await?;
        s.delivered(&ids).await.context("the broker has them, and the relay is not told")?;
        victim.kill().await?;
        let in_flight = s.tables().claimed().await?;
        s.ledger().may_repeat(in_flight);
        let heir = start(&s.relay("heir")).await?;
        s.settled().await?;
        heir.stop().await?;
        s.verify().await?;
        assert!(ids.iter().all(|id| s.deliveries().count(id) == 2));
        Ok(())
    })
    .await
}

/// Whatever the moment, only what the dead relay held may come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn relay_killed_at_any_moment_under_load_repeats_its_in_flight_at_most() -> Result<()> {
    scenario(async |s| {
        let setup = RelaySetup { batch: 40, lease: Duration::from_secs(1), ..s.relay("relay") };
        let mut relay = start(&setup).await?;
        for millis in [3, 11, 23, 37, 53, 71, 97] {
            for _ in 0..5 {
                s.commit_orders(ORDERS).await?;
            }
            tokio::time::sleep(Duration::from_millis(millis)).await;
            relay.kill().await?;
            let in_flight = s.tables().claimed().await?;
            s.ledger().may_repeat(in_flight);
            relay = start(&setup).await?;
        }
        until("all are settled", Duration::from_secs(60), async || {
            Ok((s.tables().count(0).await? == 0).then_some(()))
        })
        .await?;
        relay.stop().await?;
        s.verify().await
    })
    .await
}
