use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::timeout;
use tracing::{info, warn};

use super::RelayConfig;
use super::breaker::Breaker;
use super::health::Pulse;
use crate::policy::Policies;
use crate::publisher::Publisher;
use crate::store::{OutboxStore, StoreError, StoreErrorKind};

/// What all tasks of one relay share.
pub(crate) struct Context {
    pub(crate) store: Arc<dyn OutboxStore>,
    pub(crate) publisher: Arc<dyn Publisher>,
    pub(crate) policies: Policies,
    pub(crate) config: RelayConfig,
    pub(crate) breaker: Breaker,
    pub(crate) pulse: Pulse,
}

impl Context {
    /// Runs a call to the store within the time limit and keeps the health up to date.
    pub(crate) async fn ask<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let result = match timeout(self.config.store_timeout, AssertUnwindSafe(call).catch_unwind()).await {
            Ok(Ok(result)) => result,
            Ok(Err(_)) => Err(StoreError::new(StoreErrorKind::Other, "the store panicked")),
            Err(_) => Err(no_answer(self.config.store_timeout)),
        };
        let changed = self.pulse.store_available(result.is_ok());
        match &result {
            Ok(_) if changed => info!(what, "store available again"),
            Err(error) if changed => {
                warn!(
                    what,
                    error = error as &dyn std::error::Error,
                    "store failed: trying again until it works"
                );
            }
            _ => {}
        }
        result
    }
}

fn no_answer(limit: Duration) -> StoreError {
    StoreError::new(StoreErrorKind::Unavailable, format!("the store did not answer within {limit:?}"))
}
