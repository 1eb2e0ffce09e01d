//! Everything at once, in an order that nobody thought of.

use std::time::Duration;

use anyhow::{Context, Result};
use fastrand::Rng;
use outbox_tests::{Direction, Process, Proxy, RelaySetup, Scenario, scenario};
use tokio::time::{Instant, sleep};

use crate::start;

const FAULTS: usize = 25;
const RELAYS: usize = 2;

/// A relay process behind a proxy to the database and one to the broker.
struct Victim {
    setup: RelaySetup,
    database: Proxy,
    broker: Proxy,
    process: Option<Process>,
}

impl Victim {
    async fn start(s: &Scenario, name: &str) -> Result<Self> {
        let setup =
            RelaySetup { lease: Duration::from_secs(1), batch: 40, max_attempts: 100, ..s.relay(name) };
        let setup = RelaySetup { confirm_timeout: Duration::from_secs(1), ..setup };
        let database = Proxy::before(&setup.database_url).await?;
        let broker = Proxy::before(&setup.amqp_url).await?;
        let database_url = database.url(&setup.database_url);
        let setup = RelaySetup { database_url, amqp_url: broker.url(&setup.amqp_url), ..setup };
        let process = Some(start(&setup).await?);
        Ok(Self { setup, database, broker, process })
    }

    /// Breaks one thing, and mends it after a while.
    async fn suffer(&mut self, random: &mut Rng) -> Result<()> {
        let a_while = Duration::from_millis(random.u64(20..600));
        match random.u8(0..8) {
            0 => self.process.take().context("a process")?.kill().await?,
            1 => self.process.as_ref().context("a process")?.freeze().await?,
            2 => self.database.cut(),
            3 => self.broker.cut(),
            4 => self.database.refuse(),
            5 => self.broker.refuse(),
            6 => self.database.stall(Direction::ToClient),
            _ => self.broker.stall(Direction::ToClient),
        }
        sleep(a_while).await;
        self.mend().await
    }

    async fn mend(&mut self) -> Result<()> {
        self.database.resume();
        self.broker.resume();
        match &self.process {
            Some(process) => process.thaw().await,
            None => {
                self.process = Some(start(&self.setup).await?);
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
async fn write(s: &Scenario, end: Instant) -> Result<()> {
    while Instant::now() < end {
        s.commit_orders(20).await?;
        s.roll_back_orders(3).await?;
        sleep(Duration::from_millis(40)).await;
    }
    Ok(())
}

/// Two relays under random faults: whatever comes twice was claimed twice, and everything else is promised as ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn any_mixture_of_faults_loses_nothing_and_repeats_only_what_was_claimed_again() -> Result<()> {
    let seed =
        std::env::var("OUTBOX_CHAOS_SEED").map_or_else(|_| Ok(fastrand::u64(..)), |seed| seed.parse())?;
    println!("OUTBOX_CHAOS_SEED={seed}");
    let mut random = Rng::with_seed(seed);
    scenario(async |s| {
        let mut victims = Vec::new();
        for n in 0..RELAYS {
            victims.push(Victim::start(s, &format!("relay{n}")).await?);
        }
        let end = Instant::now() + Duration::from_secs(8);
        tokio::try_join!(write(s, end), rain(&mut victims, &mut random))?;
        s.settled().await?;
        for victim in victims {
            victim.process.context("a process")?.stop().await?;
        }
        s.explain_by_claims().await?;
        s.verify().await?;
        let again = s.tables().rows().await?.iter().filter(|row| row.claim_no > 1).count();
        let twice = s.deliveries().counts().values().filter(|count| **count > 1).count();
        println!("{} messages, {again} claimed again, {twice} delivered again", s.deliveries().messages());
        Ok(())
    })
    .await
}
