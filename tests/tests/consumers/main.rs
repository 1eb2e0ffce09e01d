//! PostgreSQL, RabbitMQ, Redis, the relay and consumers together: what must be seen to work of the way back, one test
//! or more for each.

mod chaos;
mod copies;
mod groups;
mod leases;
mod poison;
mod receipts;
mod redis_away;
mod whole_loop;

use anyhow::Result;
use outbox_tests::{ConsumerSetup, Process, Subscriber};

const RELAY_PROCESS: &str = env!("CARGO_BIN_EXE_relay-process");
const SUBSCRIBER_PROCESS: &str = env!("CARGO_BIN_EXE_subscriber-process");

/// Inbox, table and Redis.
const GROUPS: [&str; 3] = ["inventory", "mails", "points"];

/// Starts a consumer in another process.
async fn start(setup: &ConsumerSetup) -> Result<Process> {
    Process::start(SUBSCRIBER_PROCESS, &Subscriber::Consumer(Box::new(setup.clone()))).await
}
