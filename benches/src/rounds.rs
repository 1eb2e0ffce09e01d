use anyhow::{Context, Result, ensure};

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

/// Measures everything once a round, so that a machine that gets slower meanwhile slows all down alike.
pub(crate) async fn measure(args: &Args, ground: &Ground) -> Result<Vec<Measurement>> {
    let mut plan = plan(args)?;
    for round in 1..=args.rounds {
        for measurement in &mut plan {
            let sample = sample(args, ground, measurement)
                .await
                .with_context(|| format!("{} ({})", measurement.variant.name(), measurement.place()))?;
            eprintln!(
                "round {round}/{}  {:<12}  {:<8}  {:>8.0} msgs/s",
                args.rounds,
                measurement.variant.name(),
                measurement.place(),
                sample.rate()
            );
            measurement.samples.push(sample);
        }
        plan.rotate_left(1);
    }
    Ok(sorted(plan))
}

async fn sample(args: &Args, ground: &Ground, measurement: &Measurement) -> Result<Sample> {
    let queue_kind = measurement.queue.unwrap_or(QueueKind::Quorum);
    let sample = measurement.variant.measure(&Case { args, ground, queue_kind }).await?;
    ground.reset().await?;
    Ok(sample)
}

fn plan(args: &Args) -> Result<Vec<Measurement>> {
    let known: Vec<_> = variant::all().iter().map(|variant| variant.name()).collect();
    for name in &args.only {
        ensure!(known.contains(&name.as_str()), "no variant {name}; there are {}", known.join(", "));
    }
    let wanted = |name: &str| args.only.is_empty() || args.only.iter().any(|only| only == name);
    let broker = args.queue.kinds().iter().flat_map(|kind| variants(true, Some(*kind)));
    Ok(broker.chain(variants(false, None)).filter(|m| wanted(m.variant.name())).collect())
}

fn variants(publishes: bool, queue: Option<QueueKind>) -> impl Iterator<Item = Measurement> {
    let variants = variant::all().into_iter().filter(move |variant| variant.publishes() == publishes);
    variants.map(move |variant| Measurement { variant, queue, samples: Vec::new() })
}

impl Measurement {
    pub(crate) fn place(&self) -> &'static str {
        self.queue.map_or("database", QueueKind::name)
    }
}
