use std::time::Duration;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use outbox_core::{ClaimMode, ClaimRequest, Claimed, OutboxStore, Outcome, Settlement};
use outbox_sqlx::PgStore;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::relay::COMPLETED;
use crate::case::Case;
use crate::stopwatch::{Sample, Stopwatch};
use crate::variant::Variant;

/// The database's half by the framework's own store.
pub(crate) struct Store;

#[async_trait]
impl Variant for Store {
    fn name(&self) -> &'static str {
        "store"
    }

    fn about(&self) -> &'static str {
        "claim and settle alone by PgStore, overlapping, the relay's batch"
    }

    fn publishes(&self) -> bool {
        false
    }

    fn compared_with(&self) -> &'static [&'static str] {
        &["claim-settle"]
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let count = case.many();
        let (store, table) = case.outbox().await?;
        case.enqueue(&store, &case.messages("order.created", count)?).await?;
        table.analyze().await?;
        let stopwatch = Stopwatch::start();
        pass(store, case.args.first_batch()).await?;
        let sample = stopwatch.stop(count);
        table.verify(COMPLETED, count).await?;
        Ok(sample)
    }
}

async fn pass(store: PgStore, batch: usize) -> Result<()> {
    let (sender, claimed) = mpsc::channel(1);
    let mut stages = JoinSet::new();
    stages.spawn(claim(store.clone(), batch, sender));
    stages.spawn(settle(store, claimed));
    while let Some(stage) = stages.join_next().await {
        stage??;
    }
    Ok(())
}

async fn claim(store: PgStore, limit: usize, out: mpsc::Sender<Vec<Claimed>>) -> Result<()> {
    let mode = ClaimMode::Ordinary { suspect_after: 3 };
    let request = ClaimRequest { limit, lease: Duration::from_secs(60), mode };
    loop {
        let claimed = store.claim(&request).await?;
        if claimed.is_empty() {
            return Ok(());
        }
        out.send(claimed).await?;
    }
}

async fn settle(store: PgStore, mut claimed: mpsc::Receiver<Vec<Claimed>>) -> Result<()> {
    while let Some(batch) = claimed.recv().await {
        let settlements: Vec<Settlement> = batch.iter().map(confirmed).collect();
        ensure!(store.settle(&settlements).await?.lost == 0, "a claim was lost");
    }
    Ok(())
}

fn confirmed(row: &Claimed) -> Settlement {
    let outcome = Outcome::Confirmed { required_groups: Vec::new(), ack_timeout: Duration::from_secs(60) };
    Settlement { claim: row.claim, outcome }
}
