//! The retry policy, for any input.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use outbox_core::RetryPolicy;
use proptest::collection::vec;
use proptest::prelude::*;

fn any_duration() -> impl Strategy<Value = Duration> {
    let odd = prop_oneof![Just(Duration::ZERO), Just(Duration::from_nanos(1)), Just(Duration::MAX)];
    prop_oneof![
        (any::<u64>(), 0..1_000_000_000_u32).prop_map(|(secs, nanos)| Duration::new(secs, nanos)),
        plausible_duration(),
        odd,
    ]
}

fn plausible_duration() -> impl Strategy<Value = Duration> {
    (0..86_400_000_u64).prop_map(Duration::from_millis)
}

fn any_float() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::INFINITY), Just(-0.0), 0.0..=1.0]
}

fn plausible() -> impl Strategy<Value = RetryPolicy> {
    (vec(plausible_duration(), 0..6), 0..20_u32, 0.0..=1.0).prop_map(|(steps, attempts, jitter)| {
        RetryPolicy::default().with_steps(steps).with_max_attempts(attempts).with_jitter(jitter)
    })
}

proptest! {
    #[test]
    fn nothing_panics_or_takes_long(
        steps in vec(any_duration(), 0..6),
        attempts in any::<u32>(),
        jitter in any_float(),
        attempt in any::<u32>(),
        random in any_float(),
    ) {
        let policy = RetryPolicy::default().with_steps(steps).with_max_attempts(attempts).with_jitter(jitter);
        prop_assert!(policy.max_attempts() >= 1);
        prop_assert!(policy.delay(attempt, random) >= policy.delay(attempt, 0.0));
        prop_assert!(policy.delay(attempt, random) <= policy.delay(attempt, 1.0));
        prop_assert!(policy.max_attempts() == 1 || policy.horizon() >= policy.delay(1, 1.0));
    }

    #[test]
    fn each_attempt_waits_its_step_and_the_last_step_repeats(
        steps in vec(any_duration(), 1..6),
        attempt in 1..20_u32,
    ) {
        let policy = RetryPolicy::default().with_steps(steps.clone());
        let step = steps[steps.len().min(attempt as usize) - 1];
        prop_assert_eq!(policy.delay(attempt, 0.0), step);
    }

    #[test]
    fn jitter_adds_its_share_of_the_step_at_most(
        policy in plausible(),
        jitter in 0.0..=1.0,
        attempt in 1..20_u32,
        random in 0.0..=1.0,
    ) {
        let policy = policy.with_jitter(jitter);
        let step = policy.delay(attempt, 0.0);
        let added = policy.delay(attempt, random) - step;
        let share = step.mul_f64(jitter * random);
        prop_assert!(added.abs_diff(share) <= Duration::from_nanos(1_000), "{added:?} is not {share:?}");
    }

    #[test]
    fn delays_grow_with_growing_steps(mut steps in vec(any_duration(), 0..6), attempt in 0..20_u32) {
        steps.sort_unstable();
        let policy = RetryPolicy::default().with_steps(steps);
        prop_assert!(policy.delay(attempt, 0.0) <= policy.delay(attempt + 1, 0.0));
        prop_assert!(policy.delay(attempt, 1.0) <= policy.delay(attempt + 1, 1.0));
    }

    #[test]
    fn the_horizon_is_the_sum_of_the_longest_waits(policy in plausible()) {
        let waits = (1..policy.max_attempts()).map(|attempt| policy.delay(attempt, 1.0));
        prop_assert_eq!(policy.horizon(), waits.sum::<Duration>());
    }

    #[test]
    fn one_attempt_more_never_shortens_the_horizon(policy in plausible(), attempts in 1..u32::MAX) {
        let shorter = policy.clone().with_max_attempts(attempts);
        prop_assert!(shorter.horizon() <= policy.with_max_attempts(attempts + 1).horizon());
    }
}

#[test]
fn the_default_is_the_articles() {
    let policy = RetryPolicy::default();
    let minutes = [1, 5, 30, 120, 120].map(|minutes| Duration::from_secs(60 * minutes));
    for (attempt, wait) in (1..).zip(minutes) {
        assert_eq!(policy.delay(attempt, 0.0), wait);
    }
    assert_eq!(policy.max_attempts(), 5);
    assert_eq!(policy.horizon(), Duration::from_secs(60 * 156).mul_f64(1.1));
}

#[test]
fn no_steps_are_no_waiting() {
    let policy = RetryPolicy::default().with_steps([]);
    assert_eq!((policy.delay(1, 1.0), policy.horizon()), (Duration::ZERO, Duration::ZERO));
}
