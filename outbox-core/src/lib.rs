//! The part of the outbox framework that knows no database and no broker: the [`Message`], the pure
//! [state machine](state), the [retry policy](RetryPolicy), the traits that adapters implement, and the
//! [`Relay`] and the [`Consumer`] that drive them.
//!
//! Applications depend on the facade crate `outbox`; adapter authors depend on this one.

mod claim;
mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod consumer;
mod dedup;
mod epitaph;
mod explain;
#[cfg(feature = "memory")]
pub mod memory;
mod message;
mod pattern;
mod payload;
mod policy;
mod publisher;
mod receipt;
pub mod relay;
mod retry;
mod routing;
pub mod slip;
pub mod state;
mod store;
pub mod subscriber;
pub mod wire;

pub use claim::{Claim, ClaimMode, ClaimRequest, ClaimToken, Claimed, Outcome, RowId, Settled, Settlement};
pub use clock::{Clock, ManualClock, SystemClock, Timestamp};
pub use consumer::{Consumer, ConsumerConfig, Disposition, Handler, HandlerError, ReceiptSink};
pub use dedup::{Begin, DedupError, DedupKey, DedupStore, DedupToken};
pub use message::{InvalidMessage, Limits, Message, StoredMessage};
pub use pattern::Pattern;
pub use payload::{JsonText, Payload};
pub use policy::{Policies, Policy};
pub use publisher::{PublishError, PublishErrorKind, Publisher};
pub use receipt::{Receipt, ReceiptReport, Verdict};
pub use relay::{Relay, RelayConfig, RelayHandle};
pub use retry::RetryPolicy;
pub use routing::Router;
pub use state::Status;
pub use store::{Enqueue, Filter, OutboxStore, Requeued, Row, Stats, StoreError, StoreErrorKind};
