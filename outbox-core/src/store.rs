use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::claim::{Claim, ClaimRequest, Claimed, RowId, Settled, Settlement};
use crate::clock::{Clock, Timestamp};
use crate::message::{InvalidMessage, Message};
use crate::receipt::{Receipt, ReceiptReport};
use crate::state::Status;

/// The application's side of a store: writes messages inside the application's own transaction.
///
/// # Contract for implementors
/// - The rows exist if and only if `tx` commits. A connection that is not in a transaction is refused with
///   [`StoreErrorKind::NotInTransaction`].
/// - Every message is [validated](Message::validate) before anything is written.
/// - A `msg_id` that is there already is [`StoreErrorKind::Duplicate`], and nothing of the batch is written.
///
/// After dropping a returned future, roll the transaction back: it is not known what has been written.
#[async_trait]
pub trait Enqueue: Send + Sync + 'static {
    /// The application's transaction.
    type Tx: Send + ?Sized;

    /// Writes `messages`; `tx` decides whether they will exist.
    async fn enqueue(&self, tx: &mut Self::Tx, messages: &[Message]) -> Result<(), StoreError>;

    /// As [`enqueue`](Self::enqueue), but leaves out messages whose `msg_id` is there already; says how many
    /// were new.
    async fn enqueue_idempotent(&self, tx: &mut Self::Tx, messages: &[Message]) -> Result<usize, StoreError>;
}

/// The relay's and the operator's side of a store. Object-safe.
///
/// # Contract for implementors
/// - The store obeys [`state::apply`](crate::state::apply), with its own [`clock`](Self::clock).
/// - `claim` never gives a row to two callers while the first one's lease lives, however many call at once,
///   and takes the longest due first.
/// - Every write that ends a claim is guarded by id, token and status 0. A stale one changes nothing.
/// - Conflicts between its own statements (deadlock, serialization) are retried inside.
/// - Dropping a returned future leaves each row as before or as after the call.
#[async_trait]
pub trait OutboxStore: Send + Sync + 'static {
    /// The authority on time.
    fn clock(&self) -> &dyn Clock;

    /// Takes due rows that nobody holds.
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError>;

    /// Makes leases longer: they end `lease` from now. Answers which claims are still held; the others must
    /// not be published any more.
    async fn renew(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError>;

    /// Ends claims.
    async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError>;

    /// Takes in what consumer groups say, in any order and any number of times.
    async fn record_receipts(&self, receipts: &[Receipt]) -> Result<ReceiptReport, StoreError>;

    /// Sends a failed row again from the start, if its claim number is still the one that was seen.
    async fn requeue(&self, id: RowId, claim_no: u64) -> Result<Requeued, StoreError>;

    /// Rows for people to look at, oldest first.
    async fn find(&self, filter: &Filter) -> Result<Vec<Row>, StoreError>;

    /// Counts for monitoring.
    async fn stats(&self) -> Result<Stats, StoreError>;
}

macro_rules! forward_store {
    ($pointer:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<S: OutboxStore + ?Sized> OutboxStore for $pointer<S> {
            fn clock(&self) -> &dyn Clock {
                (**self).clock()
            }
            async fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
                (**self).claim(request).await
            }
            async fn renew(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError> {
                (**self).renew(claims, lease).await
            }
            async fn settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
                (**self).settle(settlements).await
            }
            async fn record_receipts(&self, receipts: &[Receipt]) -> Result<ReceiptReport, StoreError> {
                (**self).record_receipts(receipts).await
            }
            async fn requeue(&self, id: RowId, claim_no: u64) -> Result<Requeued, StoreError> {
                (**self).requeue(id, claim_no).await
            }
            async fn find(&self, filter: &Filter) -> Result<Vec<Row>, StoreError> {
                (**self).find(filter).await
            }
            async fn stats(&self) -> Result<Stats, StoreError> {
                (**self).stats().await
            }
        }

        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<S: Enqueue + ?Sized> Enqueue for $pointer<S> {
            type Tx = S::Tx;
            async fn enqueue(&self, tx: &mut Self::Tx, messages: &[Message]) -> Result<(), StoreError> {
                (**self).enqueue(tx, messages).await
            }
            async fn enqueue_idempotent(
                &self,
                tx: &mut Self::Tx,
                messages: &[Message],
            ) -> Result<usize, StoreError> {
                (**self).enqueue_idempotent(tx, messages).await
            }
        }
    };
}
forward_store!(Arc);
forward_store!(Box);

/// What became of a requeue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Requeued {
    /// Pending again.
    Done,
    /// Not failed any more, or somebody else was faster: look again.
    Stale,
}

/// Which rows [`OutboxStore::find`] shows. All conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    /// With this status.
    pub status: Option<Status>,
    /// With exactly this `msg_id`.
    pub msg_id: Option<String>,
    /// With exactly this `biz_type`.
    pub biz_type: Option<String>,
    /// With exactly this `biz_id`.
    pub biz_id: Option<String>,
    /// After this row, for paging.
    pub after: Option<RowId>,
    /// How many at most; 100 by default.
    pub limit: usize,
}

impl Default for Filter {
    fn default() -> Self {
        Self { status: None, msg_id: None, biz_type: None, biz_id: None, after: None, limit: 100 }
    }
}

impl Filter {
    /// Only rows with this status.
    #[must_use]
    pub fn with_status(mut self, status: Status) -> Self {
        self.status = Some(status);
        self
    }

    /// Only this message.
    #[must_use]
    pub fn with_msg_id(mut self, msg_id: impl Into<String>) -> Self {
        self.msg_id = Some(msg_id.into());
        self
    }

    /// Only this event type.
    #[must_use]
    pub fn with_biz_type(mut self, biz_type: impl Into<String>) -> Self {
        self.biz_type = Some(biz_type.into());
        self
    }

    /// Only this business key.
    #[must_use]
    pub fn with_biz_id(mut self, biz_id: impl Into<String>) -> Self {
        self.biz_id = Some(biz_id.into());
        self
    }

    /// Only rows after this one.
    #[must_use]
    pub fn with_after(mut self, id: RowId) -> Self {
        self.after = Some(id);
        self
    }

    /// How many at most.
    #[must_use]
    pub fn with_limit(mut self, limit: usize) -> Self {
        self.limit = limit;
        self
    }
}

/// A row as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The row's key.
    pub id: RowId,
    /// The message.
    pub message: Message,
    /// Where it stands.
    pub status: Status,
    /// Attempts charged.
    pub retry_count: u32,
    /// Not to be claimed before.
    pub next_retry_time: Timestamp,
    /// Until when a relay holds it.
    pub lease_until: Option<Timestamp>,
    /// Claims since the last outcome.
    pub unsettled_claims: u32,
    /// The groups that must acknowledge it; `None` while nobody has decided.
    pub required_groups: Option<Vec<String>>,
    /// How many of them did.
    pub received: usize,
    /// When the broker last confirmed it.
    pub sent_at: Option<Timestamp>,
    /// When the last required receipt came.
    pub completed_at: Option<Timestamp>,
    /// When missing receipts become overdue.
    pub ack_due: Option<Timestamp>,
    /// How often the reconciler sent it again.
    pub redeliveries: u32,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
}

/// Counts for monitoring.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats {
    /// Rows by status; a status without rows may be missing.
    pub rows: BTreeMap<Status, u64>,
    /// How long the longest due pending row has been due.
    pub oldest_due: Option<Duration>,
}

impl Stats {
    /// Rows with this status.
    #[must_use]
    pub fn count(&self, status: Status) -> u64 {
        self.rows.get(&status).copied().unwrap_or(0)
    }
}

/// What a store's error means for the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// A message no store accepts; see the source.
    InvalidMessage,
    /// A `msg_id` that is there already. If this was a retry after an unknown commit, the first one did commit.
    Duplicate,
    /// `enqueue`, or an inbox, was called outside a transaction.
    NotInTransaction,
    /// The database chose this transaction as a victim: run the whole transaction again.
    Conflict,
    /// The database cannot be reached or is out of connections: try again later.
    Unavailable,
    /// The tables are missing or too old: run `migrate()`.
    Schema,
    /// Anything else; trying again is not known to help.
    Other,
}

/// Why a store could not do it.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl StoreError {
    /// Says what happened and what to do.
    #[must_use]
    pub fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), source: None }
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What it means for the caller.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the same call, or for [`Conflict`](StoreErrorKind::Conflict) the whole transaction, may
    /// succeed later without anybody changing anything.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.kind, StoreErrorKind::Conflict | StoreErrorKind::Unavailable)
    }
}

impl From<InvalidMessage> for StoreError {
    fn from(error: InvalidMessage) -> Self {
        Self::new(StoreErrorKind::InvalidMessage, error.to_string()).with_source(error)
    }
}
