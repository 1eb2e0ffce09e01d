//! An order service and its two consumer groups, on PostgreSQL, RabbitMQ and Redis: `cargo run -p order-service`.
//!
//! What to copy is in [`orders`], which writes orders and messages together, and in [`inventory`] and [`points`],
//! which handle them: the one with an inbox in its own transaction, the other with a dedup store. [`story`] runs
//! them as two processes and kills each, and [`books`] compares the effects with the orders.

#![allow(unreachable_pub, reason = "a program has no public interface")]

mod books;
mod child;
mod clean_up;
mod consumers;
mod events;
mod inventory;
mod orders;
mod place;
mod points;
mod story;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use place::Place;

/// The consumer group that deducts stock.
const INVENTORY: &str = "inventory";
/// The consumer group that books turnover and points.
const POINTS: &str = "points";

/// From the order to its effects, and back to the receipt: an order service and two consumer groups.
///
/// Without a command both services run as processes of their own, each is killed at its work and started again,
/// and at the end the effects are compared with the orders. Exits with 0 if every promise was kept, with 1 if
/// not, with 2 if it could not run.
#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    place: Place,

    /// How many orders to place; every fifth is rolled back
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(..=100_000), global = true)]
    orders: u32,

    /// Leave the schemas, queues and keys behind, to look at
    #[arg(long)]
    keep: bool,

    /// Show the log of the framework (RUST_LOG narrows it down)
    #[arg(long, global = true)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The order service: takes orders, relays their messages, applies receipts
    Orders,
    /// The consumer groups inventory and points
    Consumers,
    /// The effects against the orders, of services that run or have run
    Books,
}

async fn run(args: &Args) -> Result<ExitCode> {
    let place = &args.place;
    match args.command {
        Some(Command::Orders) => orders::run(place, args.orders, child::told_to_stop()).await?,
        Some(Command::Consumers) => consumers::run(place, child::told_to_stop()).await?,
        Some(Command::Books) => println!("{}", books::Auditor::new(place).await?.books().await?),
        None => return story::run(place, args.orders, args.keep).await,
    }
    Ok(ExitCode::SUCCESS)
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if args.verbose {
        let filter = EnvFilter::try_from_default_env();
        let filter = filter.unwrap_or_else(|_| EnvFilter::new("info,outbox=debug,lapin=error"));
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    run(&args).await.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}
