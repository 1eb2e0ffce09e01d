use std::time::Duration;

use anyhow::Result;
use outbox_amqp::{AmqpConfig, AmqpPublisher, Route};
use outbox_core::relay::ShutdownReport;
use outbox_core::{Policies, Policy, Relay, RelayConfig, RelayHandle, RetryPolicy};
use outbox_sqlx::PgStore;
use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPoolOptions;
use sqlx::{AssertSqlSafe, Executor, PgPool};

use crate::fault::{Fault, FaultPoint, FaultyPublisher, FaultyStore};

/// Everything that makes a relay of a test, the same in this process and in another. The defaults of
/// [`Scenario::relay`](crate::Scenario::relay) are impatient, so that tests are short.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields are those of RelayConfig, RetryPolicy and AmqpConfig")]
pub struct RelaySetup {
    pub database_url: String,
    /// Of the relay's sessions; UTC by default.
    pub time_zone: Option<String>,
    pub amqp_url: String,
    pub exchange: String,
    /// Pattern and exchange.
    pub routes: Vec<(String, String)>,
    pub batch: usize,
    pub lease: Duration,
    pub sweep_max: Duration,
    pub backoff_max: Duration,
    pub confirm_timeout: Duration,
    pub heartbeat: Duration,
    pub retry_steps: Vec<Duration>,
    pub max_attempts: u32,
    pub jitter: f64,
    pub fault: Option<FaultPoint>,
}

/// A relay in the test's own process.
#[derive(Debug)]
pub struct LocalRelay(RelayHandle);

impl RelaySetup {
    /// Starts it in this process.
    pub async fn start_here(&self) -> Result<LocalRelay> {
        Ok(LocalRelay(self.start(Fault::new(None, |_| ())).await?))
    }

    /// Starts it on the current runtime, with this fault.
    pub async fn start(&self, fault: Fault) -> Result<RelayHandle> {
        let store = FaultyStore::new(PgStore::new(self.pool()?), fault.clone());
        let publisher = FaultyPublisher::new(AmqpPublisher::new(self.amqp()?), fault);
        let relay = Relay::new(store, publisher).with_policies(self.policies()).with_config(self.config());
        Ok(relay.spawn())
    }

    fn pool(&self) -> Result<PgPool> {
        let zone = self.time_zone.clone().unwrap_or_else(|| "UTC".into());
        let options = PgPoolOptions::new().max_connections(6).acquire_timeout(Duration::from_secs(2));
        let options = options.after_connect(move |connection, _| {
            let set = AssertSqlSafe(format!("SET TimeZone TO '{zone}'"));
            Box::pin(async move { connection.execute(set).await.map(drop) })
        });
        Ok(options.connect_lazy(&self.database_url)?)
    }

    fn amqp(&self) -> Result<AmqpConfig> {
        let config = AmqpConfig::new(&self.amqp_url)?
            .with_exchange(&self.exchange)
            .with_confirm_timeout(self.confirm_timeout)
            .with_heartbeat(self.heartbeat);
        Ok(self.routes.iter().fold(config, |config, (pattern, exchange)| {
            config.with_route(pattern.as_str(), Route::to(exchange))
        }))
    }

    fn policies(&self) -> Policies {
        let retry = RetryPolicy::default()
            .with_steps(self.retry_steps.clone())
            .with_max_attempts(self.max_attempts)
            .with_jitter(self.jitter);
        Policies::new(Policy::default().with_retry(retry))
    }

    fn config(&self) -> RelayConfig {
        RelayConfig::default()
            .with_batch(self.batch)
            // From the first batch on, so that tests know which rows go together.
            .with_batch_bytes(usize::MAX)
            .with_lease(self.lease)
            .with_sweep(Duration::from_millis(20), self.sweep_max)
            .with_backoff(Duration::from_millis(50), self.backoff_max)
    }
}

impl LocalRelay {
    /// The relay's handle.
    pub fn handle(&self) -> &RelayHandle {
        &self.0
    }

    /// Shuts it down; fails when it leaves something behind.
    pub async fn stop(self) -> Result<()> {
        let report = self.stop_within(Duration::from_secs(20)).await;
        anyhow::ensure!(report.is_clean(), "the relay left claims behind: {report:?}");
        Ok(())
    }

    /// Shuts it down within a bound.
    pub async fn stop_within(self, bound: Duration) -> ShutdownReport {
        self.0.shutdown(bound).await
    }
}
