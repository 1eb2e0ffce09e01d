use anyhow::Result;
use async_trait::async_trait;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::leases::{Claimed, Leases};
use crate::case::Case;
use crate::stopwatch::{Sample, Stopwatch};
use crate::table::Shape;
use crate::variant::Variant;

/// The database's half: claiming and settling overlap as in the relay, and nothing is published between.
pub(crate) struct ClaimSettle;

#[async_trait]
impl Variant for ClaimSettle {
    fn name(&self) -> &'static str {
        "claim-settle"
    }

    fn about(&self) -> &'static str {
        "claim and settle alone in hand-written SQL, overlapping, the relay's batch"
    }

    fn publishes(&self) -> bool {
        false
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let count = case.many();
        let table = case.filled_table(Shape::Leased, "order.created", count).await?;
        let batch = case.args.first_batch();
        let leases = Leases { pool: case.pool().clone(), table: table.clone(), batch };
        let stopwatch = Stopwatch::start();
        pass(leases).await?;
        let sample = stopwatch.stop(count);
        table.verify(1, count).await?;
        Ok(sample)
    }
}

async fn pass(leases: Leases) -> Result<()> {
    let (sender, claimed) = mpsc::channel(1);
    let mut stages = JoinSet::new();
    stages.spawn(claim(leases.clone(), sender));
    stages.spawn(settle(leases, claimed));
    while let Some(stage) = stages.join_next().await {
        stage??;
    }
    Ok(())
}

async fn claim(leases: Leases, out: mpsc::Sender<Claimed>) -> Result<()> {
    loop {
        let claimed = leases.claim().await?;
        if claimed.rows.is_empty() {
            return Ok(());
        }
        out.send(claimed).await?;
    }
}

async fn settle(leases: Leases, mut claimed: mpsc::Receiver<Claimed>) -> Result<()> {
    while let Some(batch) = claimed.recv().await {
        leases.settle(&batch).await?;
    }
    Ok(())
}
