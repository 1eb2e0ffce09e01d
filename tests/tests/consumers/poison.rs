//! A message that no handler can handle.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_core::wire;
use outbox_tests::{
    Conduct, ConsumerSetup, Deliveries, Drain, RoundTrip, dead_letters, orders, round_trip, stop, until,
};

const LIMIT: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_secs(3);
const ATTEMPTS: usize = 3;
const GROUPS: [&str; 2] = ["inventory", "points"];

/// How often the handler of a group has begun with each message.
async fn runs(t: &RoundTrip<'_>, group: &str) -> Result<BTreeMap<String, usize>> {
    let mut runs = BTreeMap::new();
    for run in t.effects().runs().await?.into_iter().filter(|run| run.consumer_group == group) {
        *runs.entry(run.msg_id).or_default() += 1;
    }
    Ok(runs)
}

/// The headers of a dead letter of a group.
fn epitaph(dead: &Deliveries, msg_id: &str) -> Result<BTreeMap<String, String>> {
    let delivered = dead.first(msg_id).context("no dead letter")?;
    let headers = delivered.properties.headers().clone().unwrap_or_default();
    let text = |value: &lapin::types::AMQPValue| Some(value.as_long_string()?.to_string());
    let headers = headers.into_iter().filter_map(|(name, value)| Some((name.to_string(), text(value)?)));
    Ok(headers.collect())
}

async fn dead_letters_say_why(
    t: &RoundTrip<'_>,
    group: &str,
    reasons: [(&str, &str, usize); 2],
) -> Result<()> {
    let dead = Deliveries::default();
    let drain =
        Drain::start(t.scenario().broker().url(), &dead_letters(t.queue(group)?), dead.clone()).await?;
    drain.finish().await?;
    ensure!(dead.messages() == reasons.len(), "{group} has {} dead letters", dead.messages());
    for (msg_id, reason, attempts) in reasons {
        let said = epitaph(&dead, msg_id)?;
        ensure!(dead.count(msg_id) == 1 && said[wire::DEAD_REASON].contains(reason), "{said:?}");
        ensure!(said[wire::DEAD_GROUP] == group, "{said:?}");
        ensure!(said[wire::DEAD_ATTEMPTS] == attempts.to_string(), "{said:?}");
        ensure!(said[wire::MSG_ID] == msg_id && said[wire::CLAIM_NO] == "1", "{said:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn poison_is_given_up_after_its_attempts_fails_its_row_and_delays_nobody() -> Result<()> {
    round_trip(&GROUPS, async |t| {
        let mut orders = orders(40)?;
        orders[4] = Conduct::Fails.of(orders[4].clone())?;
        orders[8] = Conduct::Rejected.of(orders[8].clone())?;
        let (poison, rejected) = (orders[4].msg_id(), orders[8].msg_id());
        let relay = t.scenario().relay("relay").start_here().await?;
        let listener = t.listener().start()?;
        let consumers = GROUPS.map(|group| {
            let max_attempts = u32::try_from(ATTEMPTS)?;
            ConsumerSetup { retry_step: STEP, max_attempts, ..t.consumer(group, "consumer")? }.start_here()
        });
        t.commit(&orders).await?;
        let tables = t.scenario().tables();
        until("all others are completed", LIMIT, async || Ok((tables.count(2).await? == 38).then_some(())))
            .await?;
        for group in GROUPS {
            let begun = runs(t, group).await?.get(poison).copied();
            ensure!(begun == Some(1), "{group}: the others waited for {begun:?} runs of the poison");
        }
        until("both have failed", LIMIT, async || Ok((tables.count(9).await? == 2).then_some(()))).await?;
        for group in GROUPS {
            let dead = dead_letters(t.queue(group)?);
            let broker = t.scenario().broker();
            until("the dead letters", LIMIT, async || Ok((broker.ready(&dead).await? == 2).then_some(())))
                .await?;
        }
        for consumer in consumers {
            stop(consumer?).await?;
        }
        stop(listener).await?;
        relay.stop().await?;
        let reasons = [(poison, "no such product", ATTEMPTS), (rejected, "not for sale", 1)];
        for (msg_id, reason, attempts) in reasons {
            let row = tables.row(msg_id).await?.context("a row")?;
            ensure!(row.status == 9 && row.last_error.iter().any(|e| e.contains(reason)), "{row:?}");
            for group in GROUPS {
                let begun = runs(t, group).await?.get(msg_id).copied();
                ensure!(begun == Some(attempts), "{group}: {begun:?} runs, {attempts} expected");
            }
        }
        for group in GROUPS {
            dead_letters_say_why(t, group, reasons).await?;
            ensure!(t.effects().counts(group).await?.len() == 38, "{group} has other effects than it should");
        }
        t.verify().await
    })
    .await
}
