//! Measures the relay beside what it could be compared with, on real services, in one run.

mod case;
mod cli;
mod effects;
mod ground;
mod orders;
mod queue;
mod report;
mod results;
mod rounds;
mod stats;
mod stopwatch;
mod table;
mod variant;
mod variants;

use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use clap::Parser;
use tokio::runtime::{Builder, Runtime};

use crate::cli::Args;
use crate::ground::Ground;

fn main() -> ExitCode {
    match start(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outbox-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start(args: &Args) -> Result<()> {
    runtime(args.threads)?.block_on(run(args))
}

fn runtime(threads: usize) -> Result<Runtime> {
    let mut builder = if threads == 0 { Builder::new_current_thread() } else { Builder::new_multi_thread() };
    builder.worker_threads(threads.max(1)).enable_all().build().context("cannot start the runtime")
}

/// Whatever happens, what it made in the database and the broker is gone afterwards.
async fn run(args: &Args) -> Result<()> {
    let ground = Ground::open(args).await?;
    let measured = tokio::select! {
        measured = rounds::measure(args, &ground) => measured,
        _ = tokio::signal::ctrl_c() => Err(anyhow!("interrupted")),
    };
    let cleared = ground.clear().await;
    report::print(args, &measured?)?;
    cleared
}
