use std::time::Duration;

use anyhow::{Result, ensure};
use async_trait::async_trait;
use outbox_amqp::{
    AmqpConfig, AmqpPublisher, AmqpReceiptSink, ReceiptListener, ReceiptListenerConfig, SubscriberHandle,
};
use outbox_core::consumer::Consumer;
use outbox_core::{Message, Policies, Policy, Publisher, Relay, RelayHandle};
use outbox_sqlx::{PgInbox, PgStore};
use sqlx::AssertSqlSafe;
use tokio::time::{Instant, interval};

use super::handlers::Once;
use super::{GROUP, SHUTDOWN, spawn};
use crate::case::Case;
use crate::effects::Effects;
use crate::stopwatch::{Figure, Sample, Stopwatch};
use crate::table::Table;
use crate::variant::Variant;
use crate::variants::relay::COMPLETED;
use crate::variants::tally::{Count, Tally};

/// How fast messages are enqueued.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// All before the clock starts.
    Backlog,
    /// One after another, as `--rate` says, each in a transaction of its own.
    Steady,
}

/// The whole way: relay, consumer with an inbox, and receipts over the broker until the rows are completed.
pub(crate) struct RoundTrip {
    pub(crate) pace: Pace,
}

/// Everything that runs.
struct Loop {
    store: PgStore,
    table: Table,
    effects: Effects,
    relay: RelayHandle,
    consumer: SubscriberHandle,
    listener: SubscriberHandle,
    completed: Count,
}

#[async_trait]
impl Variant for RoundTrip {
    fn name(&self) -> &'static str {
        match self.pace {
            Pace::Backlog => "round-trip",
            Pace::Steady => "round-trip-paced",
        }
    }

    fn about(&self) -> &'static str {
        match self.pace {
            Pace::Backlog => {
                "relay, consumer with inbox, receipts over the broker, until all rows are completed"
            }
            Pace::Steady => "the same, with messages enqueued one by one at --rate; how long each step takes",
        }
    }

    fn publishes(&self) -> bool {
        true
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let queue = case.queue().await?;
        let (store, table) = outbox(case).await?;
        let count = self.count(case);
        let messages = case.messages(queue.name(), count)?;
        if matches!(self.pace, Pace::Backlog) {
            case.enqueue(&store, &messages).await?;
        }
        table.analyze().await?;
        let stopwatch = Stopwatch::start();
        let mut all = Loop::start(case, &queue, store, table).await?;
        if matches!(self.pace, Pace::Steady) {
            all.enqueue_steadily(case, &messages).await?;
        }
        let reached = all.completed.reach(count).await;
        let sample = stopwatch.stop(count);
        let figures = match self.pace {
            Pace::Backlog => vec![all.receipts_per_update()],
            Pace::Steady => all.steps().await?,
        };
        let (table, effects) = all.stop().await?;
        reached?;
        table.verify(COMPLETED, count).await?;
        effects.verify(count).await?;
        queue.verify(0).await?;
        Ok(Sample { figures, ..sample })
    }
}

impl RoundTrip {
    fn count(&self, case: &Case<'_>) -> usize {
        match self.pace {
            Pace::Backlog => case.consumed(),
            Pace::Steady => case.consumed().min(10 * case.args.rate as usize),
        }
    }
}

fn policies() -> Policies {
    Policies::new(Policy::default().with_required_groups([GROUP]))
}

async fn outbox(case: &Case<'_>) -> Result<(PgStore, Table)> {
    let (store, table) = case.outbox().await?;
    Ok((store.with_policies(policies()), table))
}

impl Loop {
    async fn start(
        case: &Case<'_>,
        queue: &crate::queue::Queue,
        store: PgStore,
        table: Table,
    ) -> Result<Self> {
        let amqp = AmqpConfig::new(&case.args.amqp_url)?;
        let publisher = AmqpPublisher::new(amqp.clone());
        publisher.ready().await?;
        let relay = Relay::new(store.clone(), publisher).with_policies(policies()).spawn();

        let receipts = case.queue().await?;
        let (tally, completed) = Tally::of(store.clone());
        let listener = ReceiptListener::new(amqp.clone(), receipts.name(), tally)
            .with_config(ReceiptListenerConfig::default().without_declaring());
        case.ground.declare_dead_letters(&receipts, case.queue_kind).await?;
        let listener = listener.spawn();

        let effects = Effects::create(case.ground).await?;
        let inbox = PgInbox::new(case.pool().clone()).with_table(&format!(
            "{}.{}",
            case.ground.schema,
            case.ground.name("inbox")
        ))?;
        inbox.migrate().await?;
        let handler = Once { effects: effects.clone(), inbox };
        let consumer = Consumer::new(GROUP, handler, AmqpReceiptSink::new(amqp, receipts.name()));
        let consumer = spawn(case, queue, consumer)?;
        Ok(Self { store, table, effects, relay, consumer, listener, completed })
    }

    async fn enqueue_steadily(&self, case: &Case<'_>, messages: &[Message]) -> Result<()> {
        self.listener.subscribed().await;
        self.consumer.subscribed().await;
        let mut ticks = interval(Duration::from_secs(1) / case.args.rate);
        let started = Instant::now();
        for message in messages {
            ticks.tick().await;
            case.enqueue(&self.store, std::slice::from_ref(message)).await?;
            self.relay.wake();
        }
        let expected = Duration::from_secs(1) / case.args.rate * u32::try_from(messages.len())?;
        ensure!(started.elapsed() < 2 * expected, "this machine cannot enqueue at this rate: lower --rate");
        Ok(())
    }

    fn receipts_per_update(&self) -> Figure {
        Figure::new("receipts per update", self.completed.per_call())
    }

    /// By the database's clock.
    async fn steps(&self) -> Result<Vec<Figure>> {
        let mut figures = Vec::new();
        for (step, from, to) in [
            ("enqueued → sent", "created_at", "sent_at"),
            ("sent → handled", "sent_at", "at"),
            ("handled → completed", "at", "completed_at"),
            ("enqueued → completed", "created_at", "completed_at"),
        ] {
            let sql = format!(
                "SELECT percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY greatest(0, \
                 1000 * extract(epoch FROM {to} - {from})::float8)) FROM {{table}} JOIN {} USING (msg_id)",
                self.effects.table
            );
            let sql: AssertSqlSafe<String> = self.table.sql(&sql);
            let values: Vec<f64> = sqlx::query_scalar(sql).fetch_one(&self.effects.pool).await?;
            for (name, value) in ["p50", "p99"].into_iter().zip(values) {
                figures.push(Figure::new(format!("{step}, {name}, ms"), value));
            }
        }
        Ok(figures)
    }

    async fn stop(self) -> Result<(Table, Effects)> {
        let consumer = self.consumer.shutdown(SHUTDOWN).await;
        let listener = self.listener.shutdown(SHUTDOWN).await;
        let relay = self.relay.shutdown(SHUTDOWN).await;
        ensure!(consumer.ended && listener.ended && relay.is_clean(), "something did not stop in time");
        Ok((self.table, self.effects))
    }
}
