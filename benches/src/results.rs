use serde::Serialize;

use crate::queue::QueueKind;
use crate::rounds::Measurement;
use crate::stats::Spread;
use crate::stopwatch::Sample;

/// What one variant came to.
#[derive(Debug, Serialize)]
pub(crate) struct Line {
    pub(crate) variant: String,
    pub(crate) queue: Option<QueueKind>,
    pub(crate) messages: usize,
    /// Messages per second.
    pub(crate) rate: Spread,
    /// Microseconds of this process's processor time per message.
    pub(crate) cpu_micros: Option<Spread>,
    pub(crate) ratios: Vec<Ratio>,
    pub(crate) figures: Vec<Named>,
}

/// What else was measured.
#[derive(Debug, Serialize)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) value: Spread,
}

/// How many times as fast as another variant, each round by itself.
#[derive(Debug, Serialize)]
pub(crate) struct Ratio {
    pub(crate) to: &'static str,
    pub(crate) times: Spread,
}

pub(crate) fn lines(measurements: &[Measurement]) -> Vec<Line> {
    measurements.iter().filter_map(|measurement| line(measurement, measurements)).collect()
}

fn line(measurement: &Measurement, all: &[Measurement]) -> Option<Line> {
    Some(Line {
        variant: measurement.label(),
        queue: measurement.queue,
        messages: measurement.samples.first()?.messages,
        rate: Spread::of(measurement.samples.iter().map(Sample::rate))?,
        cpu_micros: Spread::of(measurement.samples.iter().filter_map(Sample::cpu_micros)),
        ratios: ratios(measurement, all),
        figures: figures(measurement),
    })
}

fn ratios(measurement: &Measurement, all: &[Measurement]) -> Vec<Ratio> {
    let others = measurement.variant.compared_with().iter();
    others
        .filter_map(|to| {
            let comparable = |m: &&Measurement| m.queue.is_none() || m.queue == measurement.queue;
            let other = all.iter().filter(comparable).find(|m| m.variant.name() == *to)?;
            let rounds = measurement.samples.iter().zip(&other.samples);
            Some(Ratio { to, times: Spread::of(rounds.map(|(one, two)| one.rate() / two.rate()))? })
        })
        .collect()
}

/// By their place: every sample of a variant has the same ones.
fn figures(measurement: &Measurement) -> Vec<Named> {
    let names = measurement.samples.first().map(|sample| sample.figures.as_slice()).unwrap_or_default();
    let spread = |place: usize| {
        Spread::of(measurement.samples.iter().filter_map(|sample| Some(sample.figures.get(place)?.value)))
    };
    let named = names.iter().enumerate();
    named
        .filter_map(|(place, figure)| Some(Named { name: figure.name.clone(), value: spread(place)? }))
        .collect()
}
