//! The in-memory backends under the conformance suites.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod backends;

use backends::{BrokerFixture, MemoryDedupFixture, MemoryFixture};

outbox_core::store_suite!(store, MemoryFixture::new);
outbox_core::publisher_suite!(broker, BrokerFixture::new);
outbox_core::dedup_suite!(dedup, MemoryDedupFixture::new);
