use anyhow::Result;
use async_trait::async_trait;
use outbox_core::RelayConfig;

use crate::case::Case;
use crate::stopwatch::Sample;
use crate::variants::{
    article::Article,
    claim_settle::ClaimSettle,
    consume::{ArticleConsumer, Consume, Memory, Pace, RoundTrip},
    enqueue::Enqueue,
    hand_written::HandWritten,
    insert::Insert,
    publish::Publish,
    relay::FrameworkRelay,
    store::Store,
};

/// Something that is measured.
#[async_trait]
pub(crate) trait Variant: Send + Sync {
    /// What it is called, in the table and in `--only`.
    fn name(&self) -> &'static str;

    /// What sets it apart where a variant is measured with several settings.
    fn settings(&self) -> String {
        String::new()
    }

    /// One line for people.
    fn about(&self) -> &'static str;

    /// Whether it is measured on each kind of queue.
    fn publishes(&self) -> bool;

    /// Prepares what it needs, measures one pass, and checks that the pass did what it should.
    async fn measure(&self, case: &Case<'_>) -> Result<Sample>;

    /// The variants that it is compared with.
    fn compared_with(&self) -> &'static [&'static str] {
        &[]
    }
}

/// All variants, in the order of the report, with a relay for each of these settings.
pub(crate) fn all(relays: &[RelayConfig]) -> Vec<Box<dyn Variant>> {
    let mut variants: Vec<Box<dyn Variant>> = Vec::new();
    for config in relays {
        variants.push(Box::new(FrameworkRelay { config: config.clone() }));
    }
    variants.extend(others());
    variants
}

fn others() -> [Box<dyn Variant>; 16] {
    [
        Box::new(HandWritten),
        Box::new(Publish),
        Box::new(Article),
        Box::new(ClaimSettle),
        Box::new(Store),
        Box::new(Enqueue { rows: 1 }),
        Box::new(Insert { rows: 1 }),
        Box::new(Enqueue { rows: 100 }),
        Box::new(Insert { rows: 100 }),
        Box::new(Consume { memory: Memory::Nowhere }),
        Box::new(Consume { memory: Memory::Inbox }),
        Box::new(Consume { memory: Memory::Table }),
        Box::new(Consume { memory: Memory::Redis }),
        Box::new(ArticleConsumer),
        Box::new(RoundTrip { pace: Pace::Backlog }),
        Box::new(RoundTrip { pace: Pace::Steady }),
    ]
}
