//! The relay: claims due messages, publishes them, and writes what the broker said.
//!
//! Three tasks, joined by bounded channels, so that claiming, publishing and settling overlap and none runs
//! ahead of the others. Each await in them is a place where the process may die; what happens then is always
//! the same: the claim's lease runs out, and another sweep takes the row.

mod backoff;
mod batch;
mod breaker;
mod config;
mod context;
mod handle;
mod health;
mod phase;
mod publishing;
mod ration;
mod settling;
mod sweep;
mod verdict;

use std::fmt;
use std::sync::Arc;

use tokio::sync::{Notify, mpsc, watch};

pub use backoff::Backoff;
pub use breaker::BreakerState;
pub use config::RelayConfig;
pub use handle::{RelayHandle, ShutdownReport, Waker};
pub use health::RelayHealth;

use breaker::Breaker;
use context::Context;
use handle::{ContextHandle, Tasks};
use health::Pulse;
use phase::{Phase, PhaseWatch};
use publishing::Publishing;
use settling::Settling;
use sweep::Sweep;

use crate::policy::Policies;
use crate::publisher::Publisher;
use crate::store::OutboxStore;

/// Delivers what a store holds to a broker. Any number of relays, in any number of processes, may share a
/// table.
///
/// ```no_run
/// # async fn example(store: impl outbox_core::OutboxStore, publisher: impl outbox_core::Publisher) {
/// use std::time::Duration;
/// use outbox_core::Relay;
///
/// let relay = Relay::new(store, publisher).spawn();
/// // … the service runs …
/// relay.shutdown(Duration::from_secs(10)).await;
/// # }
/// ```
pub struct Relay {
    store: Arc<dyn OutboxStore>,
    publisher: Arc<dyn Publisher>,
    policies: Policies,
    config: RelayConfig,
}

impl Relay {
    /// A relay between `store` and `publisher`, with default settings.
    #[must_use]
    pub fn new(store: impl OutboxStore, publisher: impl Publisher) -> Self {
        Self {
            store: Arc::new(store),
            publisher: Arc::new(publisher),
            policies: Policies::default(),
            config: RelayConfig::default(),
        }
    }

    /// How messages are retried, and who must acknowledge them.
    #[must_use]
    pub fn with_policies(mut self, policies: Policies) -> Self {
        self.policies = policies;
        self
    }

    /// Other settings.
    #[must_use]
    pub fn with_config(mut self, config: RelayConfig) -> Self {
        self.config = config;
        self
    }

    /// Starts it on the current tokio runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn spawn(self) -> RelayHandle {
        let context = Arc::new(Context {
            store: self.store,
            publisher: self.publisher,
            policies: self.policies,
            config: self.config,
            breaker: Breaker::new(),
            pulse: Pulse::new(),
        });
        let wake = Arc::new(Notify::new());
        let (phase, watch) = watch::channel(Phase::Running);
        let watch = PhaseWatch::new(watch);
        let (batch_sender, batches) = mpsc::channel(1);
        let (published_sender, published) = mpsc::channel(context.config.window);
        let sweep = Sweep::new(context.clone(), watch.clone(), wake.clone(), batch_sender);
        let publishing = Publishing { context: context.clone(), phase: watch, published: published_sender };
        let settling = Settling { context: context.clone() };
        let tasks = Tasks {
            sweeping: tokio::spawn(sweep.run()),
            publishing: tokio::spawn(publishing.run(batches)),
            settling: tokio::spawn(settling.run(published)),
        };
        RelayHandle { context: ContextHandle(context), phase, waker: Waker(wake), tasks }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("config", &self.config).finish_non_exhaustive()
    }
}
