//! A prefix of its own on the shared server, emptied at the end.
use std::env;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outbox_core::{Begin, DedupKey, DedupStore, DedupToken};
use outbox_redis_dedup::{RedisDedup, RedisDedupConfig, redis};
use redis::{Client, Commands, Connection};
use uuid::Uuid;

pub(crate) const LONG: Duration = Duration::from_secs(60);
pub(crate) const SHORT: Duration = Duration::from_millis(150);

pub(crate) fn shared_url() -> String {
    env::var("OUTBOX_REDIS_URL").expect("OUTBOX_REDIS_URL is not set: run scripts/test.sh")
}

pub(crate) struct Fixture {
    pub(crate) dedup: Arc<RedisDedup>,
    pub(crate) url: String,
    pub(crate) prefix: String,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with_retention(LONG)
    }

    pub(crate) fn with_retention(retention: Duration) -> Self {
        Self::at(&shared_url(), RedisDedupConfig::default().with_retention(retention))
    }

    pub(crate) fn at(url: &str, config: RedisDedupConfig) -> Self {
        let prefix = format!("outbox:test:{}:", Uuid::new_v4().simple());
        let dedup = Arc::new(RedisDedup::new(url, config.with_prefix(&prefix)).unwrap());
        Self { dedup, url: url.to_owned(), prefix }
    }

    /// Looks at the server without the store under test.
    pub(crate) fn raw(&self) -> Connection {
        Client::open(self.url.as_str()).unwrap().get_connection().unwrap()
    }

    pub(crate) fn raw_name(&self, key: &DedupKey) -> String {
        format!("{}{}:{}:{}", self.prefix, key.group.len(), key.group, key.msg_id)
    }

    fn empty(&self) -> redis::RedisResult<()> {
        let mut raw = Client::open(self.url.as_str())?.get_connection()?;
        let names: Vec<String> = raw.scan_match(format!("{}*", self.prefix))?.collect::<Result<_, _>>()?;
        names.iter().try_for_each(|name| raw.del(name))
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        let emptied = self.empty();
        if !std::thread::panicking() {
            emptied.unwrap();
        }
    }
}

pub(crate) fn key(group: &str) -> DedupKey {
    DedupKey::new(group, Uuid::new_v4().to_string())
}

pub(crate) fn token(begin: Begin) -> DedupToken {
    match begin {
        Begin::Acquired(token) => token,
        other => panic!("{other:?} instead of Acquired"),
    }
}

pub(crate) async fn acquire(dedup: &impl DedupStore, key: &DedupKey, lease: Duration) -> DedupToken {
    token(dedup.begin(key, lease).await.unwrap())
}

/// Asks until it is free; says when that was.
pub(crate) async fn acquire_when_free(dedup: &impl DedupStore, key: &DedupKey) -> (DedupToken, Instant) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match dedup.begin(key, LONG).await.unwrap() {
            Begin::Acquired(token) => return (token, Instant::now()),
            other => assert!(Instant::now() < deadline, "still {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
