//! Suites that an adapter must pass: [stores](StoreFixture), [publishers](PublisherFixture) and
//! [dedup stores](DedupFixture). A fixture and one line give one named test per case:
//!
//! ```
//! use std::sync::Arc;
//!
//! use outbox_core::conformance::DedupFixture;
//! use outbox_core::memory::MemoryDedup;
//! use outbox_core::{ManualClock, Timestamp};
//! use std::time::Duration;
//!
//! struct Fixture(Arc<MemoryDedup>, ManualClock);
//!
//! impl Fixture {
//!     async fn new() -> Self {
//!         let clock = ManualClock::new(Timestamp::UNIX_EPOCH);
//!         let store = MemoryDedup::new().with_clock(clock.clone());
//!         Self(Arc::new(store), clock)
//!     }
//! }
//!
//! impl DedupFixture for Fixture {
//!     type Store = MemoryDedup;
//!     fn store(&self) -> Arc<MemoryDedup> {
//!         Arc::clone(&self.0)
//!     }
//!     fn other(&self) -> Arc<MemoryDedup> {
//!         Arc::clone(&self.0)
//!     }
//!     fn short_lease(&self) -> Duration {
//!         Duration::from_secs(1)
//!     }
//!     async fn pass(&self, time: Duration) {
//!         self.1.advance(time);
//!     }
//! }
//!
//! outbox_core::dedup_suite!(memory, Fixture::new);
//! # fn main() {}
//! ```
//!
//! Attributes before the name go to every test of the suite, for services that are not always there:
//!
//! ```text
//! outbox_core::store_suite!(#[ignore = "needs PostgreSQL"] postgres, PostgresFixture::new);
//! ```
//!
//! Each test makes a fixture of its own, runs its case on it with a bound of two minutes, and cleans the
//! fixture up, also when the case fails. The tests bring their own Tokio runtime.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a case fails by panicking")]

mod dedup;
mod publisher;
mod run;
mod store;

pub use dedup::DedupFixture;
pub use publisher::{PublisherFixture, Received};
pub use store::{Setup, StoreFixture};

/// What the macros expand to; no part of the API.
#[doc(hidden)]
pub mod internal {
    pub use super::dedup::{cases as dedup, run_case as run_dedup_case};
    pub use super::publisher::{cases as publisher, run_case as run_publisher_case};
    pub use super::store::cases::{claiming, enqueueing, operating, racing, receiving, settling, storing};
    pub use super::store::{Scene, random, run_case as run_store_case};
}

/// One test for each case, each with the attributes.
#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_cases {
    ($attributes:tt, $runner:ident, $make:expr, $($module:ident: [$($case:ident),* $(,)?])*) => {
        $($($crate::__conformance_case!($attributes, $runner, $make, $module, $case);)*)*
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! __conformance_case {
    ([$($attribute:tt)*], $runner:ident, $make:expr, $module:ident, $case:ident) => {
        #[test]
        $($attribute)*
        fn $case() {
            $crate::conformance::internal::$runner($make, $crate::conformance::internal::$module::$case);
        }
    };
}
