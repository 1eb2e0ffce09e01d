use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

/// One operation. Picks name a message or claim by its place, modulo how many there are, so that every
/// sequence makes sense, also while it is being shortened.
#[derive(Debug, Clone)]
pub(super) enum Step {
    Enqueue { orders: Vec<bool>, delay: Duration, end: End },
    EnqueueAgain { pick: usize },
    EnqueueUndecided,
    Claim { limit: usize, lease: Duration, suspects: bool },
    Renew { picks: Vec<usize>, lease: Duration },
    Settle { picks: Vec<(usize, u8)> },
    Receive { picks: Vec<(usize, usize)> },
    Reject { pick: usize, off: u64 },
    Requeue { pick: usize, off: u64 },
    Advance { time: Duration },
}

#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    Commit,
    RollBack,
    Duplicate,
}

pub(super) fn sequences(steps: usize) -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..=steps)
}

fn step() -> impl Strategy<Value = Step> {
    let end = prop_oneof![6 => Just(End::Commit), 1 => Just(End::RollBack), 1 => Just(End::Duplicate)];
    let off = || prop_oneof![4 => Just(0_u64), 1 => Just(1)];
    prop_oneof![
        4 => (vec(any::<bool>(), 1..4), seconds(0..20), end)
            .prop_map(|(orders, delay, end)| Step::Enqueue { orders, delay, end }),
        1 => pick().prop_map(|pick| Step::EnqueueAgain { pick }),
        1 => Just(Step::EnqueueUndecided),
        6 => (0..5_usize, seconds(1..40), prop::bool::weighted(0.2))
            .prop_map(|(limit, lease, suspects)| Step::Claim { limit, lease, suspects }),
        2 => (vec(0..6_usize, 1..4), seconds(1..40))
            .prop_map(|(picks, lease)| Step::Renew { picks, lease }),
        5 => vec((0..6_usize, 0..6_u8), 1..5).prop_map(|picks| Step::Settle { picks }),
        4 => vec((pick(), 0..3_usize), 1..5).prop_map(|picks| Step::Receive { picks }),
        2 => (pick(), off()).prop_map(|(pick, off)| Step::Reject { pick, off }),
        2 => (pick(), off()).prop_map(|(pick, off)| Step::Requeue { pick, off }),
        4 => seconds(1..60).prop_map(|time| Step::Advance { time }),
    ]
}

fn pick() -> impl Strategy<Value = usize> {
    0..12_usize
}

fn seconds(range: std::ops::Range<u64>) -> impl Strategy<Value = Duration> {
    range.prop_map(Duration::from_secs)
}
