//! The suite that every dedup store must pass. Redis keeps its own time, so
//! time passes by waiting.
use std::sync::Arc;
use std::time::Duration;

use outbox_core::conformance::DedupFixture;
use outbox_core::dedup_suite;
use outbox_redis_dedup::{RedisDedup, RedisDedupConfig};

use crate::fixture::Fixture;

const SHORT_LEASE: Duration = Duration::from_millis(300);
const RETENTION: Duration = Duration::from_secs(2);

struct Server {
    /// Keeps the prefix, and empties it at the end.
    fixture: Fixture,
    store: Arc<RedisDedup>,
    other: Arc<RedisDedup>,
}

impl Server {
    async fn new() -> Self {
        let fixture = Fixture::new();
        let config =
            || RedisDedupConfig::default().with_prefix(fixture.prefix.clone()).with_retention(RETENTION);
        let store = || Arc::new(RedisDedup::new(&fixture.url, config()).unwrap());
        let (store, other) = (store(), store());
        Self { fixture, store, other }
    }
}

impl DedupFixture for Server {
    type Store = RedisDedup;

    fn store(&self) -> Arc<RedisDedup> {
        self.store.clone()
    }

    fn other(&self) -> Arc<RedisDedup> {
        self.other.clone()
    }

    fn short_lease(&self) -> Duration {
        SHORT_LEASE
    }

    async fn pass(&self, time: Duration) {
        tokio::time::sleep(time + Duration::from_millis(20)).await;
    }

    async fn cleanup(self) {
        drop(self.fixture);
    }
}

dedup_suite!(
    #[ignore = "needs Redis: run scripts/test.sh"]
    redis_server,
    Server::new
);
