//! Messages that the broker does not take or cannot route.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use outbox_core::{Enqueue, Limits, Message};
use outbox_tests::{
    OutboxRow, RelaySetup, Scenario, ids, messages, orders, random_name, required, scenario, until,
};

const LIMIT: Duration = Duration::from_secs(30);

async fn row(s: &Scenario, id: &str) -> Result<OutboxRow> {
    s.tables().row(id).await?.context("the row is there")
}

/// Waits until the row has been tried so often.
async fn attempts(s: &Scenario, id: &str, count: i32) -> Result<OutboxRow> {
    until("enough attempts", LIMIT, async || {
        let row = row(s, id).await?;
        Ok((row.retry_count >= count).then_some(row))
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn unbound_routing_key_is_never_sent_and_goes_by_a_retry_once_a_queue_is_bound() -> Result<()> {
    scenario(async |s| {
        let setup = RelaySetup { max_attempts: 100, ..s.relay("relay") };
        let relay =
            RelaySetup { retry_steps: vec![Duration::from_millis(200)], ..setup }.start_here().await?;
        let mail = s.commit(&messages("mail.welcome", 1)?).await?;
        let row = attempts(s, &mail[0], 3).await?;
        assert_eq!(row.status, 0);
        let error = row.last_error.context("a reason")?;
        assert!(error.contains("unroutable") && error.contains("mail.welcome"), "{error}");
        assert_eq!(s.deliveries().count(&mail[0]), 0);
        let steps = s.steps().await?;
        assert!(steps.iter().all(|step| step.status == 0), "it was never sent");
        s.listen(&["mail.#"]).await?;
        s.delivered(&mail).await?;
        relay.stop().await?;
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn missing_exchange_fails_its_own_message_and_the_others_go() -> Result<()> {
    scenario(async |s| {
        let missing = random_name();
        let (good, bad) = (orders(40)?, messages("lost.order", 1)?);
        let mut all = good.clone();
        all.insert(20, bad[0].clone());
        s.commit(&all).await?;
        // The broker closes the channel over the bad one: what was on it may be there, and goes again.
        s.ledger().may_repeat(ids(&good));
        s.ledger().failed(ids(&bad));
        let setup = RelaySetup { routes: vec![("lost.#".into(), missing.clone())], ..s.relay("relay") };
        let setup = RelaySetup { retry_steps: vec![Duration::from_millis(100)], max_attempts: 3, ..setup };
        let relay = setup.start_here().await?;
        s.delivered(&ids(&good)).await?;
        s.settled().await?;
        relay.stop().await?;
        s.verify().await?;
        let bad = row(s, bad[0].msg_id()).await?;
        assert_eq!(bad.retry_count, 3);
        assert!(bad.last_error.as_ref().is_some_and(|error| error.contains(&missing)), "{bad:?}");
        no_attempt_charged(s, &ids(&good)).await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn payload_over_the_brokers_limit_fails_at_once_and_its_batch_mates_go() -> Result<()> {
    let limit: usize = required("OUTBOX_AMQP_MAX_MESSAGE_SIZE")?.parse()?;
    scenario(async |s| {
        let store = s.store().clone().with_limits(Limits::default().with_payload(2 * limit));
        let (good, bad) = (orders(40)?, Message::binary("order.scan", "A-1", vec![7; limit + 1])?);
        let mut all = good.clone();
        all.insert(20, bad.clone());
        let mut tx = s.pool().begin().await?;
        store.enqueue(&mut tx, &all).await?;
        tx.commit().await?;
        s.ledger().committed(ids(&all));
        s.ledger().may_repeat(ids(&good));
        s.ledger().failed([bad.msg_id()]);
        let relay = s.relay("relay").start_here().await?;
        s.delivered(&ids(&good)).await?;
        s.settled().await?;
        relay.stop().await?;
        s.verify().await?;
        let bad = row(s, bad.msg_id()).await?;
        assert_eq!(bad.retry_count, 0, "no attempt: it can never work");
        assert!(bad.last_error.as_ref().is_some_and(|error| error.contains("size")), "{bad:?}");
        no_attempt_charged(s, &ids(&good)).await
    })
    .await
}

async fn no_attempt_charged(s: &Scenario, ids: &[String]) -> Result<()> {
    let rows = s.tables().rows().await?;
    let charged = rows.iter().find(|row| ids.contains(&row.msg_id) && row.retry_count > 0);
    ensure!(charged.is_none(), "a batch-mate was charged: {charged:?}");
    Ok(())
}
