//! Backends in memory: a [store](MemoryStore) with transactions, a [broker](MemoryBroker) with consumers, a
//! [dedup store](MemoryDedup) and a [clock](TokioClock) that follows Tokio's time.
//!
//! They keep every contract of their traits and pass the conformance suites, so a test on them says
//! something about the real thing. All of them can be told to fail, and all give other tasks a turn before
//! and after each effect, so that a cancelled call may have had its effect or not, as on a network.
//!
//! ```
//! use outbox_core::memory::{MemoryBroker, MemoryStore};
//! use outbox_core::{Enqueue, Message, Publisher};
//!
//! # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
//! let (store, broker) = (MemoryStore::new(), MemoryBroker::new());
//! let mut tx = store.begin();
//! store.enqueue(&mut tx, &[Message::json("order.created", "A-1", &1)?]).await?;
//! tx.commit().await?;
//! assert_eq!(store.snapshot().len(), 1);
//!
//! broker.publish(&Message::json("order.created", "A-1", &1)?).await?;
//! assert_eq!(broker.delivered().len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod broker;
mod clock;
mod dedup;
mod exchange;
mod fault;
mod store;
mod subscription;
mod table;
mod tx;
mod watched;

pub use broker::{BrokerFault, MemoryBroker};
pub use clock::TokioClock;
pub use dedup::MemoryDedup;
pub use fault::{Operation, StoreFault};
pub use store::MemoryStore;
pub use subscription::{Delivery, Subscription};
pub use tx::MemoryTx;

use std::sync::{Mutex, MutexGuard, PoisonError};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
