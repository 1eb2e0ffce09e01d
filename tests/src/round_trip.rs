use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use outbox_amqp::{AmqpConfig, AmqpPublisher, SubscriberHandle};
use outbox_core::{Message, Policies, Policy, Publisher};
use outbox_sqlx::{PgDedup, PgInbox, PgStore};

use crate::broker::dead_letters;
use crate::effects::{self, Effects};
use crate::orders::orders;
use crate::scenario::{Scenario, scenario};
use crate::subscriber::{ConsumerSetup, ListenerSetup, Memory, Receipts};
use crate::tables::OutboxRow;
use crate::wait::until;

const LIMIT: Duration = Duration::from_secs(60);
const SHUTDOWN: Duration = Duration::from_secs(20);
const SHOWN: usize = 20;

/// The names of the groups by the way they remember.
const INBOX: &str = "inventory";
const TABLE: &str = "mails";
const REDIS: &str = "points";

/// A scenario with consumer groups, all of them required: `inventory` with an inbox, `mails` with a dedup table,
/// `points` with Redis; and, where two of a kind are wanted, `inventory-2` and so on.
#[derive(Debug)]
pub struct RoundTrip<'s> {
    scenario: &'s Scenario,
    store: PgStore,
    groups: BTreeMap<String, Group>,
    receipts: String,
}

#[derive(Debug)]
struct Group {
    memory: Memory,
    queue: String,
}

/// Runs a test with these of the groups.
pub async fn round_trip(groups: &[&str], body: impl AsyncFnOnce(&RoundTrip<'_>) -> Result<()>) -> Result<()> {
    scenario(async |s| body(&RoundTrip::new(s, groups).await?).await).await
}

impl<'s> RoundTrip<'s> {
    async fn new(scenario: &'s Scenario, names: &[&str]) -> Result<Self> {
        let pool = scenario.pool();
        effects::install(pool).await?;
        PgInbox::new(pool.clone()).migrate().await?;
        PgDedup::new(pool.clone()).migrate().await?;
        let mut groups = BTreeMap::new();
        for name in names {
            let queue = scenario.broker().consumer_queue(&["order.#", "point.#"]).await?;
            groups.insert((*name).to_owned(), Group { memory: memory(name, scenario)?, queue });
        }
        let policy = Policy::default().with_required_groups(names.iter().copied());
        let store = scenario.store().clone().with_policies(Policies::new(policy));
        Ok(Self { scenario, store, groups, receipts: scenario.broker().consumer_queue(&[]).await? })
    }

    /// The scenario.
    #[must_use]
    pub fn scenario(&self) -> &'s Scenario {
        self.scenario
    }

    /// The producer's store, which requires the groups.
    #[must_use]
    pub fn store(&self) -> &PgStore {
        &self.store
    }

    /// The queue of the receipts.
    #[must_use]
    pub fn receipts(&self) -> &str {
        &self.receipts
    }

    /// The queue of a group.
    pub fn queue(&self, group: &str) -> Result<&str> {
        Ok(&self.group(group)?.queue)
    }

    fn group(&self, name: &str) -> Result<&Group> {
        self.groups.get(name).with_context(|| format!("this test has no group {name}"))
    }

    /// Settings of a consumer of a group, to be changed with `..`. Its receipts go through the broker.
    pub fn consumer(&self, group: &str, name: &str) -> Result<ConsumerSetup> {
        let Group { memory, queue } = self.group(group)?;
        let amqp_url = self.scenario.broker().url().to_owned();
        Ok(ConsumerSetup {
            name: name.to_owned(),
            group: group.to_owned(),
            memory: memory.clone(),
            database_url: self.scenario.place().url_as(name),
            amqp_url: amqp_url.clone(),
            queue: queue.clone(),
            receipts: Receipts::Queue { amqp_url, queue: self.receipts.clone() },
            prefetch: 32,
            concurrency: 4,
            lease: Duration::from_secs(1),
            patience: Duration::from_secs(2),
            later: Duration::from_millis(200),
            heartbeat: Duration::from_secs(2),
            retry_step: Duration::from_millis(50),
            max_attempts: 5,
            fault: None,
        })
    }

    /// Settings of the producer's listener.
    #[must_use]
    pub fn listener(&self) -> ListenerSetup {
        ListenerSetup {
            database_url: self.scenario.place().url_as("listener"),
            amqp_url: self.scenario.broker().url().to_owned(),
            queue: self.receipts.clone(),
        }
    }

    /// Commits `count` messages of the type `order.created` in one transaction.
    pub async fn commit_orders(&self, count: usize) -> Result<Vec<Message>> {
        let orders = orders(count)?;
        self.commit(&orders).await?;
        Ok(orders)
    }

    /// Commits these in one transaction.
    pub async fn commit(&self, messages: &[Message]) -> Result<()> {
        self.scenario.commit_by(&self.store, messages).await.map(drop)
    }

    /// Publishes these once more, past the table.
    pub async fn publish_again(&self, messages: &[Message]) -> Result<()> {
        let broker = self.scenario.broker();
        let publisher = AmqpPublisher::new(AmqpConfig::new(broker.url())?.with_exchange(broker.exchange()));
        for result in publisher.publish_batch(messages).await {
            result?;
        }
        self.scenario.ledger().may_repeat(messages.iter().map(Message::msg_id));
        Ok(publisher.close().await?)
    }

    /// Waits until the broker has confirmed everything that was committed.
    pub async fn sent(&self) -> Result<()> {
        self.scenario.settled().await
    }

    /// Waits until every row is completed.
    pub async fn completed(&self) -> Result<()> {
        let tables = self.scenario.tables();
        let done = until("every row is completed", LIMIT, async || {
            Ok(tables.rows().await?.iter().all(|row| row.status == 2).then_some(()))
        });
        match done.await {
            Ok(()) => Ok(()),
            Err(error) => Err(error.context(format!("by status: {:?}", by_status(&tables.rows().await?)))),
        }
    }

    /// Lets two consumers with these settings, in this process, answer everything that is in their queue.
    pub async fn consume_all(&self, setup: &ConsumerSetup) -> Result<()> {
        until("the queue is empty", LIMIT, async || {
            let consumers = [setup.start_here()?, setup.start_here()?];
            let empty = self.emptied(&setup.queue).await;
            for consumer in consumers {
                stop(consumer).await?;
            }
            empty?;
            // What was with them, and had not begun, is in the queue again.
            Ok((self.scenario.broker().waiting(&setup.queue).await? == 0).then_some(()))
        })
        .await
    }

    /// Waits until nothing waits in a queue; it may still be with a consumer.
    pub async fn emptied(&self, queue: &str) -> Result<()> {
        let broker = self.scenario.broker();
        until("nothing waits", LIMIT, async || {
            let empty = broker.ready(queue).await? == 0 && broker.waiting(queue).await? == 0;
            Ok(empty.then_some(()))
        })
        .await
    }

    /// What the handlers have done.
    #[must_use]
    pub fn effects(&self) -> Effects {
        Effects::new(self.scenario.pool().clone())
    }

    /// Fails when a group has given something up.
    pub async fn nothing_is_dead(&self) -> Result<()> {
        for (name, Group { queue, .. }) in &self.groups {
            let dead = self.scenario.broker().ready(&dead_letters(queue)).await?;
            ensure!(dead == 0, "{name} has {dead} dead letters");
        }
        Ok(())
    }

    /// Compares the rows with the effects: what is completed has them all, with an inbox exactly once, from the
    /// moment of its completion on; and there is no effect without a row.
    pub async fn verify(&self) -> Result<()> {
        let (rows, effects) = (self.scenario.tables().rows().await?, self.effects());
        let mut broken: Vec<String> = Vec::new();
        for (group, message) in effects.premature().await? {
            broken.push(format!("{message} was completed before its effect in {group}"));
        }
        for (name, Group { memory, .. }) in &self.groups {
            broken.extend(violations(name, memory, &rows, &effects.counts(name).await?));
        }
        if broken.is_empty() {
            return Ok(());
        }
        let shown: Vec<_> = broken.iter().take(SHOWN).cloned().collect();
        bail!("{} promises broken:\n  {}", broken.len(), shown.join("\n  "))
    }
}

/// Ends a consumer or a listener; fails when it leaves something behind.
pub async fn stop(subscriber: SubscriberHandle) -> Result<()> {
    let report = subscriber.shutdown(SHUTDOWN).await;
    ensure!(report.is_clean(), "it left deliveries behind: {report:?}");
    Ok(())
}

fn memory(group: &str, scenario: &Scenario) -> Result<Memory> {
    Ok(match group.trim_end_matches("-2") {
        INBOX => Memory::Inbox,
        TABLE => Memory::Table,
        REDIS => {
            let redis = scenario.redis()?;
            Memory::Redis { url: redis.url().to_owned(), prefix: redis.prefix().to_owned() }
        }
        _ => bail!("there is no group {group}"),
    })
}

fn by_status(rows: &[OutboxRow]) -> BTreeMap<i16, usize> {
    let mut counts = BTreeMap::new();
    for row in rows {
        *counts.entry(row.status).or_default() += 1;
    }
    counts
}

fn violations(
    group: &str,
    memory: &Memory,
    rows: &[OutboxRow],
    counts: &BTreeMap<String, usize>,
) -> Vec<String> {
    let mut broken = Vec::new();
    for OutboxRow { msg_id, status, .. } in rows {
        let count = counts.get(msg_id).copied().unwrap_or(0);
        if *status == 2 && count == 0 {
            broken.push(format!("{msg_id} is completed without its effect in {group}"));
        }
        if *memory == Memory::Inbox && count > 1 {
            broken.push(format!("{msg_id} had its effect in {group} {count} times, in spite of the inbox"));
        }
    }
    let unknown = counts.keys().filter(|id| rows.iter().all(|row| row.msg_id != **id));
    broken.extend(unknown.map(|id| format!("{id} has an effect in {group} and no row")));
    broken
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    fn row(status: i16) -> OutboxRow {
        OutboxRow {
            id: 1,
            msg_id: "m".into(),
            status,
            retry_count: 0,
            next_retry_time: DateTime::UNIX_EPOCH,
            claim_token: None,
            claim_no: 1,
            lease_until: None,
            last_error: None,
        }
    }

    fn found(memory: &Memory, rows: &[OutboxRow], effects: usize) -> Vec<String> {
        let counts = (0..effects.min(1)).map(|_| ("m".to_owned(), effects)).collect();
        violations("g", memory, rows, &counts)
    }

    #[test]
    fn effects_that_are_missing_doubled_or_made_up_are_found() {
        let redis = Memory::Redis { url: String::new(), prefix: String::new() };
        for memory in [Memory::Inbox, Memory::Table, redis] {
            assert_eq!(found(&memory, &[row(2)], 1), Vec::<String>::new());
            assert_eq!(found(&memory, &[row(1)], 0), Vec::<String>::new());
            assert!(found(&memory, &[row(2)], 0)[0].contains("completed without"));
            assert_eq!(found(&memory, &[row(2)], 2).len(), usize::from(memory == Memory::Inbox));
            assert!(found(&memory, &[], 1)[0].contains("no row"));
        }
    }
}
