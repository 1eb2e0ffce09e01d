//! The whole way, with nothing broken.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result, ensure};
use outbox_amqp::{AmqpConfig, AmqpConsumer, AmqpReceiptSink};
use outbox_core::consumer::{Delivery, handler_fn};
use outbox_core::{Consumer, Message, Payload};
use outbox_tests::{RoundTrip, round_trip, stop, until};
use serde_json::json;
use sqlx::Row;

const LIMIT: std::time::Duration = std::time::Duration::from_secs(30);

type Seen = Arc<Mutex<Vec<(Message, u32)>>>;

/// A consumer that only looks.
fn looking(t: &RoundTrip<'_>, group: &str, seen: &Seen) -> Result<AmqpConsumer> {
    let amqp = AmqpConfig::new(t.scenario().broker().url())?;
    let seen = seen.clone();
    let handler = handler_fn(move |order: Delivery<Payload>| {
        let seen = seen.clone();
        async move {
            if let Ok(mut seen) = seen.lock() {
                seen.push((order.message().clone(), order.attempt()));
            }
            Ok(())
        }
    });
    let receipts = AmqpReceiptSink::new(amqp.clone(), t.receipts());
    Ok(AmqpConsumer::new(amqp, t.queue(group)?, Consumer::new(group, handler, receipts)))
}

fn unusual() -> Result<[Message; 2]> {
    let json = Message::json("order.created", "A-1", &json!({"amount": 9.90, "to": "Grüße, 世界"}))?;
    let json = json.with_header("tenant", "acme")?.with_header("traceparent", "00-1-2-01")?;
    let binary = Message::binary("order.scanned", "A-2", vec![0, 159, 146, 150])?;
    let binary = binary.with_content_type("image/x-scan")?.with_ordering_key("A-2")?;
    Ok([json.with_msg_id("order-1")?, binary])
}

fn compare(sent: &Message, got: &Message, attempt: u32) -> Result<()> {
    ensure!(got.msg_id() == sent.msg_id() && got.biz_id() == sent.biz_id(), "{got:?}");
    ensure!(got.biz_type() == sent.biz_type() && got.headers() == sent.headers(), "{got:?}");
    ensure!(
        got.content_type() == sent.content_type() && got.ordering_key() == sent.ordering_key(),
        "{got:?}"
    );
    match (sent.payload(), got.payload()) {
        (Payload::Binary(sent), Payload::Binary(got)) => ensure!(sent == got, "another body"),
        _ => {
            let value: serde_json::Value = got.decode()?;
            ensure!(value == sent.decode::<serde_json::Value>()?, "another body: {value}");
        }
    }
    ensure!(got.created_at().is_some() && got.claim_no() == 1 && attempt == 1, "{got:?}, attempt {attempt}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn message_is_enqueued_sent_handled_and_completed_and_handled_as_it_was_enqueued() -> Result<()> {
    round_trip(&["inventory", "points"], async |t| {
        let sent = unusual()?;
        t.commit(&sent).await?;
        let relay = t.scenario().relay("relay").start_here().await?;
        t.sent().await?;
        ensure!(t.scenario().tables().count(1).await? == sent.len(), "sent, and no group has answered");
        let listener = t.listener().start()?;
        let seen = Seen::default();
        let points = looking(t, "points", &Seen::default())?.spawn();
        // One of two groups is not enough.
        until("a receipt is there", LIMIT, async || Ok((received(t).await? == [1, 1]).then_some(()))).await?;
        ensure!(t.scenario().tables().count(1).await? == sent.len(), "completed by one of two groups");
        let inventory = looking(t, "inventory", &seen)?.spawn();
        t.completed().await?;
        for subscriber in [points, inventory, listener] {
            stop(subscriber).await?;
        }
        relay.stop().await?;
        let seen = seen.lock().map_err(|_| anyhow::anyhow!("a handler panicked"))?.clone();
        ensure!(seen.len() == sent.len(), "{} were handled", seen.len());
        for sent in &sent {
            let (got, attempt) =
                seen.iter().find(|(got, _)| got.msg_id() == sent.msg_id()).context("not handled")?;
            compare(sent, got, *attempt)?;
        }
        in_order(t, sent.len()).await
    })
    .await
}

async fn received(t: &RoundTrip<'_>) -> Result<Vec<i32>> {
    let sql = "SELECT received_count FROM biz_outbox ORDER BY id";
    Ok(sqlx::query_scalar(sql).fetch_all(t.scenario().pool()).await?)
}

/// Every row went from 0 by 1 to 2 in that order of time, with one claim and one receipt of each group.
async fn in_order(t: &RoundTrip<'_>, count: usize) -> Result<()> {
    let rows = sqlx::query(
        "SELECT created_at <= sent_at AND sent_at <= completed_at AND claim_no = 1 AND retry_count = 0
                AND required_count = 2 AND received_count = 2 AND ack_due IS NULL AND claim_token IS NULL
                AND (SELECT count(*) FROM biz_outbox_receipts r
                     WHERE r.msg_id = o.msg_id AND verdict = 'handled' AND r.claim_no = 1) = 2 AS fine,
                to_jsonb(o)::text AS columns
         FROM biz_outbox o",
    )
    .fetch_all(t.scenario().pool())
    .await?;
    ensure!(rows.len() == count, "{} rows", rows.len());
    for row in rows {
        ensure!(row.try_get::<bool, _>("fine")?, "{}", row.try_get::<String, _>("columns")?);
    }
    for message in t.scenario().tables().rows().await? {
        let steps = t.scenario().steps().await?;
        let mut path: Vec<i16> =
            steps.iter().filter(|step| step.msg_id == message.msg_id).map(|step| step.status).collect();
        path.dedup();
        ensure!(path == [0, 1, 2], "{path:?}");
    }
    Ok(())
}
