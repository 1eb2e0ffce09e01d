//! The consumer on fakes, in paused time.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

mod crashes;
mod failures;
mod fakes;
mod leases;
mod random;
mod receipts;
mod steps;
