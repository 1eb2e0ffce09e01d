//! Receipts that cannot go, that get lost, and that come when nobody expects them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::try_join_all;
use outbox_amqp::{AmqpConfig, AmqpReceiptSink};
use outbox_core::{OutboxStore, Receipt, ReceiptSink, Requeued, RowId};
use outbox_tests::{
    ConsumerSetup, FaultPoint, ListenerSetup, OutboxRow, Process, Proxy, Receipts, RelaySetup, RoundTrip,
    dead_letters, ids, round_trip, stop, until,
};

use crate::{GROUPS, RELAY_PROCESS};

const LIMIT: Duration = Duration::from_secs(30);
const ORDERS: usize = 50;

/// All of them are sent, and none is completed.
async fn none_is_completed(t: &RoundTrip<'_>) -> Result<()> {
    let sent = t.scenario().tables().count(1).await?;
    ensure!(sent == ORDERS, "{sent} of {ORDERS} are sent and not completed");
    Ok(())
}

/// What the prefetch does not allow stays in the queue: nothing is acknowledged before its receipt is stored.
async fn nothing_is_acknowledged(t: &RoundTrip<'_>, setup: &ConsumerSetup) -> Result<()> {
    let waiting = t.scenario().broker().waiting(&setup.queue).await?;
    ensure!(waiting == u32::try_from(ORDERS)? - u32::from(setup.prefetch), "{waiting} are in the queue");
    Ok(())
}

async fn handled(t: &RoundTrip<'_>, count: usize) -> Result<()> {
    until("the effects", LIMIT, async || Ok((t.effects().all().await?.len() >= count).then_some(()))).await
}

fn hasty(setup: ConsumerSetup) -> ConsumerSetup {
    ConsumerSetup { patience: Duration::from_millis(300), concurrency: 16, ..setup }
}

/// The effects go on, every delivery is kept, and when the queue is there again all rows are completed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn receipt_queue_deleted_for_a_while_loses_nothing() -> Result<()> {
    round_trip(&["inventory"], async |t| {
        let relay = t.scenario().relay("relay").start_here().await?;
        t.scenario().broker().delete(t.receipts()).await?;
        t.commit_orders(ORDERS).await?;
        t.sent().await?;
        let setup = hasty(t.consumer("inventory", "consumer")?);
        let consumer = setup.start_here()?;
        handled(t, usize::from(setup.prefetch)).await?;
        nothing_is_acknowledged(t, &setup).await?;
        none_is_completed(t).await?;
        let listener = t.listener().start()?;
        t.completed().await?;
        stop(consumer).await?;
        stop(listener).await?;
        relay.stop().await?;
        t.verify().await?;
        t.nothing_is_dead().await
    })
    .await
}

/// First nobody can send receipts, then nobody can fetch them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn broker_unreachable_for_receipts_loses_nothing() -> Result<()> {
    round_trip(&["inventory"], async |t| {
        let url = t.scenario().broker().url();
        let (sink, source) = (Proxy::before(url).await?, Proxy::before(url).await?);
        let listener = ListenerSetup { amqp_url: source.url(url), ..t.listener() }.start()?;
        listener.subscribed().await;
        sink.refuse();
        source.refuse();
        let relay = t.scenario().relay("relay").start_here().await?;
        t.commit_orders(ORDERS).await?;
        t.sent().await?;
        let receipts = Receipts::Queue { amqp_url: sink.url(url), queue: t.receipts().to_owned() };
        let setup = ConsumerSetup { receipts, ..hasty(t.consumer("inventory", "consumer")?) };
        let consumer = setup.start_here()?;
        handled(t, usize::from(setup.prefetch)).await?;
        nothing_is_acknowledged(t, &setup).await?;
        sink.resume();
        t.emptied(&setup.queue).await?;
        handled(t, ORDERS).await?;
        stop(consumer).await?;
        none_is_completed(t).await?;
        source.resume();
        // What was with the consumer, and had not begun, when it stopped.
        t.consume_all(&setup).await?;
        t.completed().await?;
        stop(listener).await?;
        relay.stop().await?;
        t.verify().await?;
        t.nothing_is_dead().await
    })
    .await
}

/// Receipts that were stored and lost with their queue: every duplicate delivery sends its own again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn receipt_that_is_lost_is_sent_again_by_a_duplicate_delivery() -> Result<()> {
    round_trip(&GROUPS, async |t| {
        let relay = t.scenario().relay("relay").start_here().await?;
        let orders = t.commit_orders(ORDERS).await?;
        t.sent().await?;
        relay.stop().await?;
        let consume = async || {
            try_join_all(GROUPS.map(async |group| {
                let setup = t.consumer(group, "consumer")?;
                t.consume_all(&ConsumerSetup { lease: Duration::from_secs(15), ..setup }).await
            }))
            .await
        };
        consume().await?;
        handled(t, GROUPS.len() * ORDERS).await?;
        t.scenario().broker().delete(t.receipts()).await?;
        let listener = t.listener().start()?;
        listener.subscribed().await;
        none_is_completed(t).await?;
        t.publish_again(&orders).await?;
        consume().await?;
        t.completed().await?;
        stop(listener).await?;
        ensure!(t.effects().all().await?.len() == GROUPS.len() * ORDERS, "an effect was repeated");
        t.verify().await?;
        t.scenario().verify().await
    })
    .await
}

/// A hand that sends receipts as no consumer would.
struct Hand {
    sink: AmqpReceiptSink,
}

impl Hand {
    fn new(t: &RoundTrip<'_>) -> Result<Self> {
        let amqp = AmqpConfig::new(t.scenario().broker().url())?;
        Ok(Self { sink: AmqpReceiptSink::new(amqp, t.receipts()) })
    }

    /// `handled` of these, in this order.
    async fn handled(&self, receipts: &[(&str, &str)]) -> Result<()> {
        for (group, msg_id) in receipts {
            self.sink.record(&[Receipt::handled(*msg_id, *group, 1)]).await?;
        }
        Ok(())
    }

    async fn rejected(&self, msg_id: &str, claim_no: u64) -> Result<()> {
        Ok(self.sink.record(&[Receipt::rejected(msg_id, "points", claim_no, "not for sale")]).await?)
    }
}

async fn row(t: &RoundTrip<'_>, msg_id: &str) -> Result<OutboxRow> {
    t.scenario().tables().row(msg_id).await?.with_context(|| format!("{msg_id} has no row"))
}

async fn becomes(t: &RoundTrip<'_>, msg_id: &str, status: i16) -> Result<()> {
    until(&format!("status {status}"), LIMIT, async || {
        Ok((row(t, msg_id).await?.status == status).then_some(()))
    })
    .await
}

/// Whether these are all the receipts that the table has.
async fn recorded(t: &RoundTrip<'_>, count: i64) -> Result<()> {
    let sql = "SELECT count(*) FROM biz_outbox_receipts";
    let found: i64 = sqlx::query_scalar(sql).fetch_one(t.scenario().pool()).await?;
    ensure!(found == count, "{found} receipts, {count} expected");
    Ok(())
}

/// The listener has nothing to do, and nothing that it did not understand.
async fn nothing_is_left(t: &RoundTrip<'_>) -> Result<()> {
    t.emptied(t.receipts()).await?;
    let dead = t.scenario().broker().ready(&dead_letters(t.receipts())).await?;
    ensure!(dead == 0, "{dead} receipts were given up");
    Ok(())
}

/// The relay has published and does not know it yet when the receipts come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn receipts_early_twice_out_of_order_and_unknown_count_once_each() -> Result<()> {
    round_trip(&["inventory", "points"], async |t| {
        let setup = RelaySetup { fault: Some(FaultPoint::BeforeSettle), ..t.scenario().relay("relay") };
        let ids = ids(&t.commit_orders(3).await?);
        let [a, b, c] = [0, 1, 2].map(|n| ids[n].as_str());
        let mut relay = Process::start(RELAY_PROCESS, &setup).await?;
        relay.says("fault").await?;
        let hand = Hand::new(t)?;
        hand.handled(&[("points", b), ("inventory", a), ("points", a), ("points", a), ("points", c)]).await?;
        hand.handled(&[("points", "unknown"), ("inventory", b), ("inventory", b), ("mails", c)]).await?;
        let listener = t.listener().start()?;
        becomes(t, a, 2).await?;
        becomes(t, b, 2).await?;
        ensure!(row(t, c).await?.status == 0, "one of two groups is not enough");
        relay.tell("go").await?;
        relay.says("settled 1 lost 2").await?;
        ensure!(row(t, c).await?.status == 1, "sent, and one group is missing");
        hand.handled(&[("points", c), ("points", c), ("inventory", c)]).await?;
        t.completed().await?;
        nothing_is_left(t).await?;
        stop(listener).await?;
        relay.stop().await?;
        // Two of each message, that of the group nobody asked for, and that of the unknown message.
        recorded(t, 3 * 2 + 1 + 1).await
    })
    .await
}

/// A rejection counts for the claim that it belongs to; a receipt for the message, even when its row has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn receipts_late_complete_a_failed_row_and_stale_rejections_change_nothing() -> Result<()> {
    round_trip(&["inventory", "points"], async |t| {
        let relay = t.scenario().relay("relay").start_here().await?;
        let ids = ids(&t.commit_orders(3).await?);
        let [late, requeued, witness] = [0, 1, 2].map(|n| ids[n].as_str());
        t.sent().await?;
        let (hand, listener) = (Hand::new(t)?, t.listener().start()?);
        hand.rejected(late, 0).await?;
        hand.rejected(late, 2).await?;
        // The queue keeps its order, so when this is completed the listener has seen what went before.
        hand.handled(&[("inventory", witness), ("points", witness)]).await?;
        becomes(t, witness, 2).await?;
        ensure!(row(t, late).await?.status == 1, "failed by a rejection of another claim");
        hand.rejected(late, 1).await?;
        hand.rejected(requeued, 1).await?;
        becomes(t, late, 9).await?;
        becomes(t, requeued, 9).await?;
        let failed = row(t, requeued).await?;
        ensure!(failed.last_error.as_deref() == Some("not for sale"), "{failed:?}");
        let asked = t.store().requeue(RowId(failed.id), u64::try_from(failed.claim_no)?).await?;
        ensure!(asked == Requeued::Done, "{asked:?}");
        becomes(t, requeued, 1).await?;
        hand.rejected(requeued, 1).await?;
        hand.handled(&[("points", late), ("inventory", late)]).await?;
        becomes(t, late, 2).await?;
        ensure!(row(t, requeued).await?.status == 1, "failed by a rejection from before it was requeued");
        hand.handled(&[("inventory", requeued), ("points", requeued)]).await?;
        t.completed().await?;
        nothing_is_left(t).await?;
        stop(listener).await?;
        relay.stop().await?;
        recorded(t, 3 * 2).await
    })
    .await
}
