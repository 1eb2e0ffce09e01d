use std::io::{IsTerminal, stderr};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use tracing_subscriber::EnvFilter;

/// The transactional outbox, told in ten seconds: a shop places orders, everything around it breaks, and at the end
/// the books of shop, database and consumer are compared.
///
/// Needs no service: a SQLite file and a broker in memory. Exits with 0 if every promise was kept, with 1
/// if not, with 2 if it could not run.
#[derive(Debug, Parser)]
#[command(after_help = "On real services:\n  cargo run -p quickstart --features services -- \
    --database-url postgres://user:password@localhost/db --amqp-url amqp://localhost")]
pub struct Args {
    /// How many orders to place; every fifth is rolled back
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    pub orders: u32,

    /// sqlite:PATH of a new file, or postgres://… for a schema of its own [default: a file in the temp folder]
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,

    /// amqp://… for an exchange and a queue of its own [default: a broker in memory]
    #[arg(long, value_name = "URL")]
    pub amqp_url: Option<String>,

    /// Leave the database's file or schema behind, to look at
    #[arg(long)]
    pub keep: bool,

    /// Show the log of relay and store (RUST_LOG narrows it down)
    #[arg(long)]
    pub verbose: bool,
}

/// What to do when this build lacks the adapter.
#[cfg(not(feature = "services"))]
pub fn without_services(what: &str, flag: &str) -> String {
    format!("this build has no {what}; run `cargo run -p quickstart --features services -- {flag}`")
}

/// Shows what relay and store log.
pub fn log() {
    let filter =
        EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info,outbox=debug,lapin=error"));
    let for_people = stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(for_people).with_writer(stderr).init();
}

/// A name that no other run has.
pub fn run_name() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("outbox_quickstart_{}_{:x}", std::process::id(), now.as_millis())
}
