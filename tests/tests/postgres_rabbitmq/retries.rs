//! Steps, jitter, and the end of them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chrono::TimeDelta;
use outbox_core::{Filter, OutboxStore, Status};
use outbox_tests::{RelaySetup, Step, ids, messages, scenario};
use tokio::time::sleep;

const STEPS: [u64; 4] = [300, 600, 900, 1200];
/// Between the statement's time and the trigger's, and back.
const TOLERANCE: TimeDelta = TimeDelta::milliseconds(150);

fn steps() -> Vec<Duration> {
    STEPS.map(Duration::from_millis).to_vec()
}

/// The waits that were given after each failure, longest attempt number last.
fn waits(steps: &[Step], id: &str) -> Vec<TimeDelta> {
    let of_row: Vec<_> = steps.iter().filter(|step| step.msg_id == id).collect();
    let charged = of_row.windows(2).filter(|pair| pair[1].retry_count > pair[0].retry_count);
    charged.filter(|pair| pair[1].status == 0).map(|pair| pair[1].next_retry_time - pair[1].at).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn five_failures_end_in_status_9_visible_and_never_retried() -> Result<()> {
    scenario(async |s| {
        let relay = RelaySetup { retry_steps: steps(), ..s.relay("relay") }.start_here().await?;
        let lost = messages("nobody.listens", 1)?;
        s.commit(&lost).await?;
        s.ledger().failed(ids(&lost));
        s.settled().await?;
        let ended = s.steps().await?.len();
        let row = s.tables().rows().await?.pop().context("a row")?;
        assert_eq!((row.status, row.retry_count), (9, 5));
        let failed = s.store().find(&Filter::default().with_status(Status::Failed)).await?;
        assert_eq!(failed.len(), 1, "people can find it");
        assert_eq!(failed[0].message.msg_id(), lost[0].msg_id());
        assert!(
            failed[0].last_error.as_ref().is_some_and(|error| error.contains("unroutable")),
            "{failed:?}"
        );
        assert_eq!(s.store().stats().await?.count(Status::Failed), 1);
        sleep(Duration::from_millis(2 * STEPS[3])).await;
        assert_eq!(s.steps().await?.len(), ended, "it was touched again");
        relay.stop().await?;
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn retries_wait_for_the_configured_steps() -> Result<()> {
    scenario(async |s| {
        let relay = RelaySetup { retry_steps: steps(), ..s.relay("relay") }.start_here().await?;
        let lost = messages("nobody.listens", 20)?;
        s.commit(&lost).await?;
        s.ledger().failed(ids(&lost));
        s.settled().await?;
        relay.stop().await?;
        let history = s.steps().await?;
        for id in ids(&lost) {
            let waits = waits(&history, &id);
            ensure!(waits.len() == STEPS.len(), "{waits:?}");
            for (wait, step) in waits.iter().zip(steps()) {
                let step = TimeDelta::from_std(step)?;
                ensure!((*wait - step).abs() < TOLERANCE, "{step} was configured, {wait} was given");
            }
        }
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn jitter_spreads_retries_over_its_share_of_the_step_and_no_further() -> Result<()> {
    scenario(async |s| {
        let step = Duration::from_secs(2);
        let setup = RelaySetup { retry_steps: vec![step], max_attempts: 2, ..s.relay("relay") };
        let relay = RelaySetup { jitter: 0.5, ..setup }.start_here().await?;
        let lost = messages("nobody.listens", 100)?;
        s.commit(&lost).await?;
        s.ledger().failed(ids(&lost));
        s.settled().await?;
        relay.stop().await?;
        let history = s.steps().await?;
        let waits: Vec<_> = ids(&lost).iter().flat_map(|id| waits(&history, id)).collect();
        assert_eq!(waits.len(), lost.len());
        let (least, most) = (TimeDelta::from_std(step)?, TimeDelta::from_std(step * 3 / 2)?);
        let outside = waits.iter().find(|wait| **wait < least - TOLERANCE || **wait > most + TOLERANCE);
        ensure!(outside.is_none(), "{outside:?} is outside of {least} to {most}");
        // A hundred random waits all within a fifth of the range: one chance in 10^67.
        let spread = *waits.iter().max().context("waits")? - *waits.iter().min().context("waits")?;
        ensure!(spread > (most - least) / 5, "they all come back together, within {spread}");
        s.verify().await
    })
    .await
}
