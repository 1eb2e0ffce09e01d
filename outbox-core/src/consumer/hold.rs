use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, yield_now};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::debug;

use crate::dedup::{DedupError, DedupKey, DedupStore, DedupToken};

/// The right to run a handler, renewed by a task of its own for as long as this lives, so that a handler that
/// blocks its thread keeps it too. Without a dedup store everybody has it.
pub(super) struct Hold(Option<Held>);

struct Held {
    lease: Lease,
    keeper: JoinHandle<()>,
}

#[derive(Clone)]
struct Lease {
    dedup: Arc<dyn DedupStore>,
    key: DedupKey,
    token: DedupToken,
    length: Duration,
}

impl Hold {
    pub(super) fn free() -> Self {
        Self(None)
    }

    /// A lease that was asked for at `asked`, by which it is at least `length` from its end.
    pub(super) async fn new(
        dedup: Arc<dyn DedupStore>,
        key: DedupKey,
        token: DedupToken,
        length: Duration,
        asked: Instant,
    ) -> Self {
        let lease = Lease { dedup, key, token, length };
        let keeper = tokio::spawn(lease.clone().keep(asked + length));
        let hold = Self(Some(Held { lease, keeper }));
        // A new task waits where no other worker finds it, until this one lets go of its thread.
        yield_now().await;
        hold
    }

    /// Does `work`, unless the lease is lost before it is done: then somebody else may be at it, and `work` is
    /// dropped.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let lost = async {
            match &mut self.0 {
                // However the keeper ended, nobody renews the lease any more.
                Some(held) => drop((&mut held.keeper).await),
                None => pending().await,
            }
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = lost => None,
        }
    }

    /// Marks the message as done. `false`: another run has the lease now, and will.
    pub(super) async fn finish(&self) -> Result<bool, DedupError> {
        let Some(Held { lease, .. }) = &self.0 else { return Ok(true) };
        lease.finish().await
    }

    /// Lets the next delivery run at once. Where that fails, the lease runs out.
    pub(super) async fn abandon(self) {
        let Some(held) = &self.0 else { return };
        held.keeper.abort();
        let Lease { dedup, key, token, length } = &held.lease;
        match timeout(*length, dedup.abandon(key, *token)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => debug!(error = %error, "lease not given back: it runs out"),
            Err(_) => debug!("lease not given back in time: it has run out"),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

impl Lease {
    /// Ends when the lease is lost, or may be.
    async fn keep(self, mut end: Instant) {
        loop {
            sleep(self.length / 3).await;
            match self.renew(end).await {
                Some(later) => end = later,
                None => return,
            }
        }
    }

    /// Tries until `end`. The new end; none when the lease is lost.
    async fn renew(&self, end: Instant) -> Option<Instant> {
        loop {
            let asked = Instant::now();
            match timeout_at(end, self.dedup.renew(&self.key, self.token, self.length)).await.ok()? {
                Ok(held) => return held.then_some(asked + self.length),
                Err(error) => debug!(error = %error, "lease not renewed"),
            }
            timeout_at(end, sleep(self.length / 10)).await.ok()?;
        }
    }

    /// A lease that is gone, or whose first answer was lost, tells nothing: so it asks for the key again.
    async fn finish(&self) -> Result<bool, DedupError> {
        use crate::dedup::Begin::{Acquired, Done, InProgress};
        if self.dedup.finish(&self.key, self.token).await? {
            return Ok(true);
        }
        match self.dedup.begin(&self.key, self.length).await? {
            Acquired(token) => self.dedup.finish(&self.key, token).await,
            Done => Ok(true),
            InProgress => Ok(false),
        }
    }
}
