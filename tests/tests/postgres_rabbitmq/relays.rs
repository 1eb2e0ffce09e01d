//! Several relays on one table.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Result;
use outbox_tests::{FaultPoint, RelaySetup, scenario};

use crate::start;

const ORDERS: usize = 30;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn two_relays_without_faults_deliver_each_message_exactly_once() -> Result<()> {
    scenario(async |s| {
        // Long leases, as in production: on a busy machine a short one may run out, which would be a fault.
        let setup = |name| RelaySetup { lease: Duration::from_secs(60), ..s.relay(name) };
        let (one, two) = (start(&setup("one")).await?, start(&setup("two")).await?);
        for _ in 0..50 {
            s.commit_orders(100).await?;
        }
        s.settled().await?;
        one.stop().await?;
        two.stop().await?;
        s.verify().await?;
        let steps = s.steps().await?;
        let by: BTreeSet<&str> = steps.iter().map(|step| step.by.as_str()).collect();
        assert_eq!(by, BTreeSet::from(["one", "test", "two"]), "both took part");
        assert_eq!(steps.len(), 3 * 5_000, "written, claimed and settled once each");
        Ok(())
    })
    .await
}

/// Freezes a relay at `point` until its lease has run out and another one has done its work; then nothing it
/// does changes a row. Each order comes so many times.
async fn frozen_at(point: FaultPoint, copies: usize) -> Result<()> {
    scenario(async |s| {
        let setup = RelaySetup { lease: Duration::from_secs(1), ..s.relay("frozen") };
        let mut frozen = start(&RelaySetup { fault: Some(point), ..setup }).await?;
        let ids = s.commit_orders(ORDERS).await?;
        frozen.says("fault").await?;
        frozen.freeze().await?;
        if copies > 1 {
            s.ledger().may_repeat(&ids);
        }
        let other = start(&s.relay("other")).await?;
        s.settled().await?;
        other.stop().await?;
        let before = s.tables().everything().await?;
        frozen.thaw().await?;
        frozen.tell("go").await?;
        let more = s.commit_orders(1).await?;
        s.delivered(&more).await?;
        frozen.stop().await?;
        let after = s.tables().everything().await?;
        assert_eq!(before[..], after[..ORDERS], "the late relay changed a row");
        s.verify().await?;
        assert!(ids.iter().all(|id| s.deliveries().count(id) == copies), "each comes {copies} times");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn relay_stopped_past_its_lease_after_claim_publishes_and_changes_nothing() -> Result<()> {
    frozen_at(FaultPoint::AfterClaim, 1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn relay_stopped_past_its_lease_before_publish_changes_nothing() -> Result<()> {
    frozen_at(FaultPoint::BeforePublish, 2).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn relay_stopped_past_its_lease_before_settle_changes_nothing() -> Result<()> {
    frozen_at(FaultPoint::BeforeSettle, 2).await
}
