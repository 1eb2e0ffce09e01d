//! A consumer or a listener in a process of its own, for tests to kill. The variable [`SETUP`] holds its settings as
//! JSON.
//!
//! It says on stdout what a test may wait for, a line each: `ready`, and what [`Fault`] says. It takes commands on
//! stdin, a line each: `go` lets a call that stopped at the fault go on, `shutdown MILLISECONDS` ends it in good
//! order. The end of stdin ends it at once.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_amqp::SubscriberHandle;
use outbox_tests::{Fault, SETUP, Subscriber, commands, required};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::INFO).init();
    let subscriber: Subscriber = serde_json::from_str(&required(SETUP)?)?;
    let fault = Fault::new(subscriber.fault(), |line| println!("{line}"));
    let handle = subscriber.start(fault.clone())?;
    println!("ready");
    obey(handle, &fault).await
}

async fn obey(handle: SubscriberHandle, fault: &Fault) -> Result<()> {
    let mut commands = commands();
    while let Some(command) = commands.recv().await {
        match command.split_once(' ').unwrap_or((&command, "")) {
            ("go", _) => fault.go_on(),
            ("shutdown", bound) => {
                let bound = Duration::from_millis(bound.parse().context("milliseconds")?);
                println!("shutdown {}", handle.shutdown(bound).await.dropped);
                return Ok(());
            }
            _ => anyhow::bail!("unknown command {command:?}"),
        }
    }
    Ok(())
}
