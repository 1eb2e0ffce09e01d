use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, Semaphore, SemaphorePermit};

use crate::config::AmqpConfig;
use crate::dial::dial;
use crate::link::Link;
use crate::trouble::Trouble;

/// The one connection, opened when it is needed and opened anew after any error.
pub(crate) struct Session {
    pub(crate) config: AmqpConfig,
    link: Mutex<Option<Arc<Link>>>,
    /// Which address to try first.
    first: AtomicUsize,
    turns: Semaphore,
}

impl Session {
    pub(crate) fn new(config: AmqpConfig) -> Self {
        let turns = Semaphore::new(config.channels);
        Self { config, link: Mutex::default(), first: AtomicUsize::new(0), turns }
    }

    /// The right to use a channel; waits when all are in use.
    pub(crate) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// Whether nobody but the caller has a turn.
    pub(crate) fn is_only_call(&self) -> bool {
        self.turns.available_permits() + 1 >= self.config.channels
    }

    /// The connection that is open, or a new one. Callers wait for one another, so that only one is opened.
    pub(crate) async fn link(&self) -> Result<Arc<Link>, Trouble> {
        let mut current = self.link.lock().await;
        if let Some(link) = current.as_ref().filter(|link| link.is_alive()) {
            return Ok(link.clone());
        }
        if let Some(dead) = current.take() {
            tracing::warn!("the connection to RabbitMQ is lost; opening a new one");
            dead.cut();
        }
        let link = Arc::new(self.dial_in_turn().await?);
        *current = Some(link.clone());
        Ok(link)
    }

    async fn dial_in_turn(&self) -> Result<Link, Trouble> {
        let addresses = &self.config.addresses;
        let first = self.first.load(Ordering::Relaxed);
        let mut troubles = Vec::new();
        for at in (first..first + addresses.len()).map(|at| at % addresses.len()) {
            // Stored before the attempt: a caller that gives up meanwhile must not meet the same host again.
            self.first.store((at + 1) % addresses.len(), Ordering::Relaxed);
            match dial(&addresses[at], &self.config).await {
                Ok(link) => {
                    self.first.store(at, Ordering::Relaxed);
                    return Ok(link);
                }
                Err(trouble) => troubles.push(trouble),
            }
        }
        Err(Trouble::all(troubles))
    }

    pub(crate) async fn close(&self) -> Result<(), Trouble> {
        match self.link.lock().await.take() {
            Some(link) if link.is_connected() && !link.is_blocked() => link.close().await,
            Some(link) => {
                link.cut();
                Ok(())
            }
            None => Ok(()),
        }
    }
}
