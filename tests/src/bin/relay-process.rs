//! A relay in a process of its own, for tests to kill. The variable [`SETUP`] holds its settings as JSON.
//!
//! It says on stdout what a test may wait for, a line each: `ready`, what [`Fault`] says, and answers. It
//! takes commands on stdin, a line each: `go` lets a call that stopped at the fault go on, `health` asks how it
//! is, `shutdown MILLISECONDS` ends it in good order. The end of stdin ends it at once.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_core::RelayHandle;
use outbox_tests::{Fault, RelaySetup, SETUP, commands, required};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).init();
    let setup: RelaySetup = serde_json::from_str(&required(SETUP)?)?;
    let fault = Fault::new(setup.fault, |line| println!("{line}"));
    let relay = setup.start(fault.clone()).await?;
    println!("ready");
    obey(relay, &fault).await
}

async fn obey(relay: RelayHandle, fault: &Fault) -> Result<()> {
    let mut commands = commands();
    while let Some(command) = commands.recv().await {
        match command.split_once(' ').unwrap_or((&command, "")) {
            ("go", _) => fault.go_on(),
            ("health", _) => println!("health {:?}", relay.health()),
            ("shutdown", bound) => {
                let bound = Duration::from_millis(bound.parse().context("milliseconds")?);
                let report = relay.shutdown(bound).await;
                println!("shutdown {}", report.left_claimed);
                return Ok(());
            }
            _ => anyhow::bail!("unknown command {command:?}"),
        }
    }
    Ok(())
}
