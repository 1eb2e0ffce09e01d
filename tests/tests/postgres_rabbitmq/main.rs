//! PostgreSQL, the relay and RabbitMQ together: what must be seen to work, one test or more for each.

mod broker_away;
mod chaos;
mod commit;
mod database_away;
mod killed;
mod relays;
mod retries;
mod routing;
mod shutdown;
mod time;
mod users_commit;

use anyhow::Result;
use outbox_tests::{Process, RelaySetup};

const RELAY_PROCESS: &str = env!("CARGO_BIN_EXE_relay-process");

/// Starts a relay in another process.
async fn start(setup: &RelaySetup) -> Result<Process> {
    Process::start(RELAY_PROCESS, setup).await
}
