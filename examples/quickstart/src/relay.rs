use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox::relay::BreakerState;
use outbox::{OutboxStore, Publisher, Relay, RelayConfig, RelayHandle};
use tokio::time::{sleep, timeout};

use crate::gate::{Gate, Moment};

/// How long a dead relay's claims last: a minute by default, but nobody wants to watch that.
pub const LEASE: Duration = Duration::from_secs(2);

const PATIENCE: Duration = Duration::from_secs(30);

/// A relay that can be killed at the worst moment.
pub struct MortalRelay {
    relay: RelayHandle,
    gate: Arc<Gate>,
}

impl MortalRelay {
    /// Starts it in this process. A service does the same, without the gate and mostly without the settings.
    pub fn start(outbox: Arc<dyn OutboxStore>, publisher: Arc<dyn Publisher>) -> Self {
        let gate = Arc::new(Gate::new(publisher));
        let config = RelayConfig::default()
            .with_lease(LEASE)
            .with_sweep(Duration::from_millis(50), Duration::from_millis(500))
            .with_backoff(Duration::from_millis(100), Duration::from_millis(500));
        let relay = Relay::new(outbox, gate.clone()).with_config(config).spawn();
        Self { relay, gate }
    }

    /// Waits until it has found out that the broker is away.
    pub async fn until_it_notices(&self) -> Result<()> {
        let noticed = async {
            while self.relay.health().breaker == BreakerState::Closed {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(PATIENCE, noticed).await.context("the relay did not notice that the broker is away")
    }

    /// From now on it gets only as far as this.
    pub fn stop_at(&self, moment: Moment) {
        self.gate.close_at(moment);
    }

    /// Waits until it has got there, and kills it; answers how many messages it had in its hands.
    pub async fn kill(self) -> Result<usize> {
        let held =
            timeout(PATIENCE, self.gate.holding()).await.context("the relay did not claim anything")?;
        self.relay.abort();
        Ok(held)
    }

    /// Lets it finish what it is doing.
    pub async fn shut_down(self) {
        self.relay.shutdown(Duration::from_secs(5)).await;
    }
}
