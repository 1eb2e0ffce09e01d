//! The consumer: what a consumer group does with a delivery, whatever the broker.
//!
//! # The steps
//!
//! 1. **Lease.** [`DedupStore::begin`] asks for the right to handle the message. If
//!    it was handled before, only steps 4 and 5 follow. If another run has it, it is delivered again later and
//!    not acknowledged.
//! 2. **Handler.** The lease is renewed while it runs. A failure gives the lease back.
//! 3. **Done marker.** From here on the message counts as handled.
//! 4. **Receipt.** The producer learns that the group's effect has happened. Sent again for every duplicate.
//! 5. **Acknowledgement** to the broker: [`Disposition::Ack`].
//!
//! A crash between any two of them leaves a message that was not acknowledged, so the broker delivers it
//! again, and it goes on where nothing is lost: before 3 the handler runs again, after 3 only the receipt goes
//! out again. So the effect happens **at least once and never zero times**, a receipt tells of an effect that
//! has happened, and nothing is acknowledged that was not handled.
//!
//! # Twice
//!
//! The handler runs twice where the first run's effect is not known to the dedup store: a crash between 2 and
//! 3, a lease that was lost while the handler ran (a process that stood still, a store that was away), a done
//! marker that is gone (retention, eviction, fail-over). Where that must not show, the handler puts a marker
//! into its own transaction, with an inbox, and the consumer needs no dedup store.
//!
//! # Failures
//!
//! An error or panic of the handler charges an attempt, and the retry policy says when the message comes
//! again. At the last attempt, or when the handler rejects it, the producer is told by a rejection, fenced by
//! the claim it came with, and the message goes to the dead letters. A dedup store or receipt sink that is
//! away charges nothing, nor does what the handler says is [away](HandlerError::unavailable).
//!
//! # For adapters
//!
//! A broker's consumer turns what it received into a message ([`wire::message`](crate::wire::message)), calls
//! [`Consumer::process`] for as many at a time as it wants, and does what the [`Disposition`] says. On
//! shutdown it lets those that run end within a bound, drops the others, and acknowledges neither of the
//! dropped.

mod attempt;
mod batcher;
mod config;
mod decode;
mod delivery;
mod disposition;
mod end;
mod handler;
mod hold;
mod patience;
mod process;
mod receipts;
mod retention;

use std::fmt;
use std::sync::Arc;

use tracing::warn;

pub use config::ConsumerConfig;
pub use decode::Decode;
pub use delivery::Delivery;
pub use disposition::Disposition;
pub use handler::{Handler, HandlerError, HandlerFn, handler_fn};
pub use receipts::{NoReceipts, ReceiptError, ReceiptSink};
pub use retention::ShortRetention;

use attempt::AnyHandler;
use batcher::Batcher;

use crate::dedup::DedupStore;

/// A consumer group's handler with its dedup store and its way of receipts. Adapters drive it.
///
/// ```
/// # use outbox_core::{DedupStore, OutboxStore};
/// use outbox_core::consumer::{Consumer, Delivery, handler_fn};
///
/// # fn example(store: impl OutboxStore, dedup: impl DedupStore) -> Consumer {
/// let handler = handler_fn(async |order: Delivery<serde_json::Value>| {
///     println!("points for {}", order.biz_id());
///     Ok(())
/// });
/// Consumer::new("points", handler, store).with_dedup(dedup)
/// # }
/// ```
pub struct Consumer {
    group: String,
    handler: Arc<dyn AnyHandler>,
    dedup: Option<Arc<dyn DedupStore>>,
    receipts: Batcher,
    config: ConsumerConfig,
}

impl Consumer {
    /// A consumer of `group`, which sends its receipts to `receipts`: the producer's store, the broker, or
    /// [`NoReceipts`].
    ///
    /// Without a [dedup store](Self::with_dedup) every delivery runs the handler, as is right for one that
    /// uses an inbox or does not mind.
    #[must_use]
    pub fn new(group: impl Into<String>, handler: impl Handler, receipts: impl ReceiptSink) -> Self {
        Self {
            group: group.into(),
            handler: Arc::new(handler),
            dedup: None,
            receipts: Batcher::new(receipts),
            config: ConsumerConfig::default(),
        }
    }

    /// Remembers what was handled.
    #[must_use]
    pub fn with_dedup(mut self, dedup: impl DedupStore) -> Self {
        self.dedup = Some(Arc::new(dedup));
        self
    }

    /// Other settings.
    #[must_use]
    pub fn with_config(mut self, config: ConsumerConfig) -> Self {
        self.config = config;
        self
    }

    /// The consumer group.
    #[must_use]
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Its settings.
    #[must_use]
    pub fn config(&self) -> &ConsumerConfig {
        &self.config
    }

    /// Whether done markers are kept for longer than a message may keep coming: what this consumer's own retries
    /// take, and the producer's [horizon](ConsumerConfig::with_producer_horizon). Logs a warning if not. The
    /// adapters ask when they start.
    pub fn check_retention(&self) -> Option<ShortRetention> {
        let retention = self.dedup.as_ref()?.retention();
        let horizon = self.config.producer_horizon.saturating_add(self.config.retry.horizon());
        let short = ShortRetention::check(retention, horizon)?;
        warn!(group = self.group, "{short}");
        Some(short)
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer")
            .field("group", &self.group)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}
