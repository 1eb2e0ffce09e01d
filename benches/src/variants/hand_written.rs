use anyhow::Result;
use async_trait::async_trait;
use lapin::{Channel, PublisherConfirm};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::leases::{Claimed, Leases};
use super::wire;
use crate::case::Case;
use crate::stopwatch::{Sample, Stopwatch};
use crate::table::Shape;
use crate::variant::Variant;

/// A pipeline as one would write it for one table and one queue: the next batch is claimed while one is
/// being published and one awaits its confirms, and a batch is marked by one statement.
pub(crate) struct HandWritten;

#[async_trait]
impl Variant for HandWritten {
    fn name(&self) -> &'static str {
        "hand-written"
    }

    fn about(&self) -> &'static str {
        "claim, publish and settle as overlapping stages, in plain sqlx and lapin"
    }

    fn publishes(&self) -> bool {
        true
    }

    fn compared_with(&self) -> &'static [&'static str] {
        &["article"]
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let (queue, count) = (case.queue().await?, case.many());
        let table = case.filled_table(Shape::Leased, queue.name(), count).await?;
        let channel = case.ground.confirming_channel().await?;
        let leases = Leases { pool: case.pool().clone(), table: table.clone(), batch: case.args.hand_batch };
        let stopwatch = Stopwatch::start();
        // lapin closes a channel with its last clone, whatever confirms are still to come.
        pass(leases, channel.clone()).await?;
        let sample = stopwatch.stop(count);
        table.verify(1, count).await?;
        queue.verify(count).await?;
        Ok(sample)
    }
}

type Published = (Claimed, Vec<PublisherConfirm>);

async fn pass(leases: Leases, channel: Channel) -> Result<()> {
    let (to_publish, claimed) = mpsc::channel(1);
    let (to_settle, published) = mpsc::channel(1);
    let mut stages = JoinSet::new();
    stages.spawn(claim(leases.clone(), to_publish));
    stages.spawn(publish(channel, claimed, to_settle));
    stages.spawn(settle(leases, published));
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

async fn publish(
    channel: Channel,
    mut claimed: mpsc::Receiver<Claimed>,
    out: mpsc::Sender<Published>,
) -> Result<()> {
    while let Some(batch) = claimed.recv().await {
        let mut confirms = Vec::with_capacity(batch.rows.len());
        for message in &batch.rows {
            confirms.push(wire::send(&channel, message).await?);
        }
        out.send((batch, confirms)).await?;
    }
    Ok(())
}

async fn settle(leases: Leases, mut published: mpsc::Receiver<Published>) -> Result<()> {
    while let Some((batch, confirms)) = published.recv().await {
        for confirm in confirms {
            wire::confirmed(confirm).await?;
        }
        leases.settle(&batch).await?;
    }
    Ok(())
}
