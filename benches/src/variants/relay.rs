use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::{Publisher, Relay, RelayConfig};

use super::tally::Tally;
use crate::case::Case;
use crate::stopwatch::{Sample, Stopwatch};
use crate::variant::Variant;

/// The framework's relay.
pub(crate) struct FrameworkRelay {
    pub(crate) config: RelayConfig,
}

/// What rows are when no consumer group has to acknowledge them.
pub(crate) const COMPLETED: i16 = 2;
const SHUTDOWN: Duration = Duration::from_secs(10);

#[async_trait]
impl Variant for FrameworkRelay {
    fn name(&self) -> &'static str {
        "relay"
    }

    fn settings(&self) -> String {
        format!("{}×{}", self.config.batch(), self.config.window())
    }

    fn about(&self) -> &'static str {
        "the framework's relay: PgStore, AmqpPublisher, Relay"
    }

    fn publishes(&self) -> bool {
        true
    }

    fn compared_with(&self) -> &'static [&'static str] {
        &["article", "hand-written", "publish", "claim-settle"]
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let (queue, count) = (case.queue().await?, case.many());
        let (store, table) = case.outbox().await?;
        case.enqueue(&store, &case.messages(queue.name(), count)?).await?;
        table.analyze().await?;
        let publisher = AmqpPublisher::new(AmqpConfig::new(&case.args.amqp_url)?);
        publisher.ready().await?;
        let (store, mut settled) = Tally::of(store);
        let relay = Relay::new(store, publisher).with_config(self.config.clone());
        let stopwatch = Stopwatch::start();
        let relay = relay.spawn();
        let reached = settled.reach(count).await;
        let sample = stopwatch.stop(count);
        relay.shutdown(SHUTDOWN).await;
        reached?;
        table.verify(COMPLETED, count).await?;
        queue.verify(count).await?;
        Ok(sample)
    }
}
