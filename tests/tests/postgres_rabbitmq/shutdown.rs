//! A relay that is told to stop in the middle of its work.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use outbox_tests::{Direction, Proxy, RelaySetup, scenario};
use tokio::time::sleep;

use crate::start;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn shutdown_under_load_keeps_its_bound_leaves_nothing_claimed_and_repeats_nothing() -> Result<()> {
    scenario(async |s| {
        let setup = RelaySetup { lease: Duration::from_secs(60), ..s.relay("relay") };
        // A backlog that no relay of this world gets through before it is told to stop.
        for _ in 0..60 {
            s.commit_orders(100).await?;
        }
        for millis in [50, 150, 400] {
            let relay = start(&setup).await?;
            sleep(Duration::from_millis(millis)).await;
            let bound = Duration::from_secs(5);
            let begun = Instant::now();
            let left = relay.stop_within(bound).await?;
            ensure!(begun.elapsed() < bound + Duration::from_secs(1), "it took {:?}", begun.elapsed());
            ensure!(left == 0, "{left} claims were left behind");
            let claimed = s.tables().claimed().await?;
            ensure!(claimed.is_empty(), "{} rows are still claimed", claimed.len());
        }
        ensure!(s.tables().count(0).await? > 0, "there was no load");
        let last = start(&setup).await?;
        s.settled().await?;
        last.stop().await?;
        s.verify().await
    })
    .await
}

/// The broker has gone silent: what it did not confirm is given back within the bound, and may come again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn shutdown_with_a_silent_broker_keeps_its_bound_and_leaves_nothing_claimed() -> Result<()> {
    scenario(async |s| {
        let proxy = Proxy::before(s.broker().url()).await?;
        let setup = RelaySetup { lease: Duration::from_secs(60), ..s.relay("relay") };
        let relay = start(&RelaySetup { amqp_url: proxy.url(s.broker().url()), ..setup.clone() }).await?;
        let first = s.commit_orders(1).await?;
        s.delivered(&first).await?;
        s.settled().await?;
        proxy.stall(Direction::ToClient);
        let ids = s.commit_orders(50).await?;
        s.delivered(&ids).await?;
        let bound = Duration::from_secs(2);
        let begun = Instant::now();
        let left = relay.stop_within(bound).await?;
        ensure!(begun.elapsed() < bound + Duration::from_secs(1), "it took {:?}", begun.elapsed());
        ensure!(left == 0, "{left} claims were left behind");
        ensure!(s.tables().claimed().await?.is_empty(), "rows are still claimed");
        ensure!(s.tables().count(0).await? == ids.len(), "given back, not settled");
        s.ledger().may_repeat(&ids);
        let last = start(&setup).await?;
        s.settled().await?;
        last.stop().await?;
        s.verify().await
    })
    .await
}
