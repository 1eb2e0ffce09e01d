use anyhow::{Context, Result};

use crate::case::Case;
use crate::cli::Args;
use crate::ground::Ground;
use crate::queue::QueueKind;
use crate::stopwatch::Sample;
use crate::variant::{self, Variant};

/// All samples of one variant on one kind of queue, one a round.
pub(crate) struct Measurement {
    pub(crate) variant: Box<dyn Variant>,
    /// `None` where no broker takes part.
    pub(crate) queue: Option<QueueKind>,
    pub(crate) samples: Vec<Sample>,
}

/// Measures everything once a round, each round starting at another place, so that a machine that gets
/// slower meanwhile slows all down alike.
pub(crate) async fn measure(args: &Args, ground: &Ground) -> Result<Vec<Measurement>> {
    let mut plan = plan(args);
    let count = plan.len();
    for round in 1..=args.rounds {
        for turn in 0..count {
            let measurement = &mut plan[(turn + round as usize) % count];
            let sample = sample(args, ground, measurement)
                .await
                .with_context(|| format!("{} ({})", measurement.variant.name(), measurement.place()))?;
            eprintln!(
                "round {round}/{}  {:<14}  {:<8}  {:>8.0} msgs/s",
                args.rounds,
                measurement.label(),
                measurement.place(),
                sample.rate()
            );
            measurement.samples.push(sample);
        }
    }
    Ok(plan)
}

async fn sample(args: &Args, ground: &Ground, measurement: &Measurement) -> Result<Sample> {
    let queue_kind = measurement.queue.unwrap_or(QueueKind::Quorum);
    let sample = measurement.variant.measure(&Case { args, ground, queue_kind }).await?;
    ground.reset().await?;
    Ok(sample)
}

fn plan(args: &Args) -> Vec<Measurement> {
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let broker = args.queue.kinds().iter().flat_map(|kind| variants(args, true, Some(*kind)));
    broker.chain(variants(args, false, None)).filter(|m| wanted(m.variant.name())).collect()
}

fn variants(args: &Args, publishes: bool, queue: Option<QueueKind>) -> impl Iterator<Item = Measurement> {
    let variants =
        variant::all(&args.relays()).into_iter().filter(move |variant| variant.publishes() == publishes);
    variants.map(move |variant| Measurement { variant, queue, samples: Vec::new() })
}

impl Measurement {
    pub(crate) fn label(&self) -> String {
        format!("{} {}", self.variant.name(), self.variant.settings()).trim_end().to_owned()
    }

    pub(crate) fn place(&self) -> &'static str {
        self.queue.map_or("database", QueueKind::name)
    }
}
