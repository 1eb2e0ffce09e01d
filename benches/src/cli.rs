use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::{Parser, ValueEnum};
use outbox_core::RelayConfig;

use crate::queue::QueueKind;
use crate::variant;

/// Measures the relay PostgreSQL → RabbitMQ beside a plain loop, its two halves alone and a hand-written
/// pipeline, and the consumers beside a plain one: all in one run, interleaved, because only ratios of one run say anything.
#[derive(Debug, Parser)]
#[command(name = "outbox-bench", version)]
pub(crate) struct Args {
    /// Messages per measurement.
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) messages: u32,
    /// Messages per measurement for the variants that go one message at a time.
    #[arg(long, default_value_t = 3_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) single_messages: u32,
    /// Messages per measurement for the variants with a consumer.
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) consumed_messages: u32,
    /// Messages per second where they are enqueued one by one; ten seconds' worth at most.
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: u32,
    /// Bytes of JSON per message.
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(128..))]
    pub(crate) bytes: u32,
    /// How often everything is measured.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rounds: u32,
    /// Measure only these variants.
    #[arg(long, value_delimiter = ',', value_name = "VARIANT", value_parser = names())]
    pub(crate) only: Vec<String>,
    /// Queue types to publish to.
    #[arg(long, value_enum, default_value_t = Queues::Both)]
    pub(crate) queue: Queues,
    /// Rows that the relay claims together; its default if left out. Several are measured side by side.
    #[arg(long, value_delimiter = ',')]
    pub(crate) batch: Vec<usize>,
    /// Batches that the relay publishes at the same time; its default if left out. Several are measured side
    /// by side.
    #[arg(long, value_delimiter = ',')]
    pub(crate) window: Vec<usize>,
    /// Rows that the hand-written pipeline claims together.
    #[arg(long, default_value_t = 1_000)]
    pub(crate) hand_batch: usize,
    /// Database connections, for every variant.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) connections: u32,
    /// Worker threads of the runtime; 0 is the single-threaded one.
    #[arg(long, default_value_t = 2)]
    pub(crate) threads: usize,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
    /// PostgreSQL; the user must be allowed to create a schema.
    #[arg(long, env = "OUTBOX_PG_URL", hide_env_values = true)]
    pub(crate) pg_url: String,
    /// RabbitMQ.
    #[arg(long, env = "OUTBOX_AMQP_URL", hide_env_values = true)]
    pub(crate) amqp_url: String,
    /// Redis, for the variants that need it.
    #[arg(long, env = "OUTBOX_REDIS_URL", hide_env_values = true)]
    pub(crate) redis_url: Option<String>,
}

fn names() -> PossibleValuesParser {
    variant::all(&[RelayConfig::default()])
        .iter()
        .map(|variant| PossibleValue::new(variant.name()).help(variant.about()))
        .into()
}

impl Args {
    /// The relays to measure: every batch with every window.
    pub(crate) fn relays(&self) -> Vec<RelayConfig> {
        let config = RelayConfig::default();
        let batches = given_or(&self.batch, config.batch());
        let windows = given_or(&self.window, config.window());
        let pairs = batches.iter().flat_map(|batch| windows.iter().map(move |window| (*batch, *window)));
        pairs.map(|(batch, window)| config.clone().with_batch(batch).with_window(window)).collect()
    }

    /// The batch of the parts that the relay is made of.
    pub(crate) fn first_batch(&self) -> usize {
        self.batch.first().copied().unwrap_or(RelayConfig::default().batch())
    }
}

fn given_or(given: &[usize], default: usize) -> Vec<usize> {
    if given.is_empty() { vec![default] } else { given.to_vec() }
}

/// Which queue types to publish to.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Queues {
    Classic,
    Quorum,
    Both,
}

impl Queues {
    pub(crate) fn kinds(self) -> &'static [QueueKind] {
        match self {
            Self::Classic => &[QueueKind::Classic],
            Self::Quorum => &[QueueKind::Quorum],
            Self::Both => &[QueueKind::Classic, QueueKind::Quorum],
        }
    }
}
