//! Everything at once, in an order that nobody thought of.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fastrand::Rng;
use outbox_tests::{
    ConsumerSetup, Direction, ListenerSetup, Memory, Process, Proxy, Receipts, RelaySetup, RoundTrip,
    Subscriber, round_trip,
};
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::{RELAY_PROCESS, SUBSCRIBER_PROCESS};

const FAULTS: usize = 30;
const GROUPS: [&str; 2] = ["inventory", "points"];

/// A process, and the proxies through which it reaches everything.
struct Victim {
    program: &'static str,
    setup: Value,
    proxies: Vec<Proxy>,
    process: Option<Process>,
}

impl Victim {
    async fn start(program: &'static str, setup: impl Serialize, proxies: Vec<Proxy>) -> Result<Self> {
        let mut victim = Self { program, setup: serde_json::to_value(setup)?, proxies, process: None };
        victim.mend().await?;
        Ok(victim)
    }

    async fn relay(t: &RoundTrip<'_>) -> Result<Self> {
        let setup = t.scenario().relay("relay");
        let [database, broker] =
            [Proxy::before(&setup.database_url).await?, Proxy::before(&setup.amqp_url).await?];
        let setup = RelaySetup {
            database_url: database.url(&setup.database_url),
            amqp_url: broker.url(&setup.amqp_url),
            lease: Duration::from_secs(1),
            batch: 40,
            max_attempts: 1_000,
            confirm_timeout: Duration::from_secs(1),
            ..setup
        };
        Self::start(RELAY_PROCESS, setup, vec![database, broker]).await
    }

    async fn consumer(t: &RoundTrip<'_>, group: &str) -> Result<Self> {
        let setup = t.consumer(group, group)?;
        let [database, broker, back] = [
            Proxy::before(&setup.database_url).await?,
            Proxy::before(&setup.amqp_url).await?,
            Proxy::before(&setup.amqp_url).await?,
        ];
        let receipts =
            Receipts::Queue { amqp_url: back.url(&setup.amqp_url), queue: t.receipts().to_owned() };
        let setup = ConsumerSetup {
            database_url: database.url(&setup.database_url),
            amqp_url: broker.url(&setup.amqp_url),
            receipts,
            max_attempts: 10_000,
            ..setup
        };
        let proxies = vec![database, broker, back];
        let (setup, proxies) = match setup.memory.clone() {
            Memory::Redis { url, prefix } => {
                let redis = Proxy::before(&url).await?;
                let memory = Memory::Redis { url: redis.url(&url), prefix };
                (ConsumerSetup { memory, ..setup }, proxies.into_iter().chain([redis]).collect())
            }
            _ => (setup, proxies),
        };
        Self::start(SUBSCRIBER_PROCESS, Subscriber::Consumer(Box::new(setup)), proxies).await
    }

    async fn listener(t: &RoundTrip<'_>) -> Result<Self> {
        let setup = t.listener();
        let [database, broker] =
            [Proxy::before(&setup.database_url).await?, Proxy::before(&setup.amqp_url).await?];
        let setup = ListenerSetup {
            database_url: database.url(&setup.database_url),
            amqp_url: broker.url(&setup.amqp_url),
            ..setup
        };
        Self::start(SUBSCRIBER_PROCESS, Subscriber::Listener(setup), vec![database, broker]).await
    }

    /// Breaks one thing, and mends it after a while.
    async fn suffer(&mut self, random: &mut Rng) -> Result<()> {
        let a_while = Duration::from_millis(random.u64(20..600));
        let proxy = random.usize(..self.proxies.len());
        let proxy = &self.proxies[proxy];
        match random.u8(0..8) {
            0 | 1 => self.process.take().context("a process")?.kill().await?,
            2 => self.process.as_ref().context("a process")?.freeze().await?,
            3 | 4 => proxy.cut(),
            5 => proxy.refuse(),
            6 => proxy.stall(Direction::ToClient),
            _ => proxy.stall(Direction::ToServer),
        }
        sleep(a_while).await;
        self.mend().await
    }

    async fn mend(&mut self) -> Result<()> {
        self.proxies.iter().for_each(Proxy::resume);
        match &self.process {
            Some(process) => process.thaw().await,
            None => {
                self.process = Some(Process::start(self.program, &self.setup).await?);
                Ok(())
            }
        }
    }
}

async fn rain(victims: &mut [Victim], random: &mut Rng) -> Result<()> {
    for _ in 0..FAULTS {
        let victim = random.usize(..victims.len());
        victims[victim].suffer(random).await?;
    }
    Ok(())
}

/// Commits, and every now and then rolls back, for as long as faults may rain.
async fn write(t: &RoundTrip<'_>, end: Instant) -> Result<()> {
    while Instant::now() < end {
        t.commit_orders(10).await?;
        t.scenario().roll_back_orders(2).await?;
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// Whatever breaks, a row is completed when both groups have had their effect and not before, all rows are completed
/// in the end, and the effect of the group with an inbox happens once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
async fn any_mixture_of_faults_completes_every_row_after_its_effects_and_loses_nothing() -> Result<()> {
    let seed =
        std::env::var("OUTBOX_CHAOS_SEED").map_or_else(|_| Ok(fastrand::u64(..)), |seed| seed.parse())?;
    println!("OUTBOX_CHAOS_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    round_trip(&GROUPS, async |t| {
        let mut victims = vec![Victim::relay(t).await?, Victim::listener(t).await?];
        for group in GROUPS {
            victims.push(Victim::consumer(t, group).await?);
        }
        let end = Instant::now() + Duration::from_secs(10);
        tokio::try_join!(write(t, end), rain(&mut victims, &mut random))?;
        t.completed().await?;
        for victim in victims {
            victim.process.context("a process")?.stop().await?;
        }
        t.verify().await?;
        t.nothing_is_dead().await?;
        t.scenario().explain_by_claims().await?;
        t.scenario().verify().await?;
        report(t).await
    })
    .await
}

async fn report(t: &RoundTrip<'_>) -> Result<()> {
    let rows = t.scenario().tables().rows().await?.len();
    let runs = t.effects().runs().await?.len();
    let effects: usize = t.effects().counts("points").await?.values().sum();
    println!("{rows} messages, {runs} runs of {} handlers, {effects} effects in Redis' group", GROUPS.len());
    ensure!(runs > GROUPS.len() * rows, "no run was ever interrupted: there were no faults");
    Ok(())
}
