use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::lock;
use crate::clock::{Clock, SystemClock, Timestamp, later};
use crate::dedup::{Begin, DedupError, DedupKey, DedupStore, DedupToken};

/// A [`DedupStore`] in memory. Clones share the keys.
#[derive(Debug, Clone)]
pub struct MemoryDedup {
    keys: Arc<Mutex<HashMap<DedupKey, Entry>>>,
    clock: Arc<dyn Clock>,
    retention: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// `None`: done.
    token: Option<DedupToken>,
    until: Timestamp,
}

impl Default for MemoryDedup {
    fn default() -> Self {
        Self { keys: Arc::default(), clock: Arc::new(SystemClock), retention: Duration::from_secs(24 * 3600) }
    }
}

impl MemoryDedup {
    /// An empty store that follows the clock of this host and keeps done markers for a day.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Follows another clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// For how long a done marker stays.
    #[must_use]
    pub fn with_retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Answers from what lives under `key`, and stores what is to live there then.
    async fn exchange<T>(
        &self,
        key: &DedupKey,
        answer: impl FnOnce(Option<Entry>, Timestamp) -> (T, Option<Entry>),
    ) -> T {
        tokio::task::yield_now().await;
        let now = self.clock.now();
        let mut keys = lock(&self.keys);
        keys.retain(|_, entry| entry.until > now);
        let (answer, next) = answer(keys.get(key).copied(), now);
        match next {
            Some(entry) => _ = keys.insert(key.clone(), entry),
            None => _ = keys.remove(key),
        }
        answer
    }

    async fn replace(
        &self,
        key: &DedupKey,
        token: DedupToken,
        by: impl FnOnce(Timestamp) -> Option<Entry>,
    ) -> bool {
        self.exchange(key, |entry, now| match entry {
            Some(entry) if entry.token == Some(token) => (true, by(now)),
            other => (false, other),
        })
        .await
    }
}

#[async_trait]
impl DedupStore for MemoryDedup {
    async fn begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError> {
        let token = DedupToken::random();
        let begin = |entry: Option<Entry>, now| match entry {
            Some(Entry { token: Some(_), .. }) => (Begin::InProgress, entry),
            Some(_) => (Begin::Done, entry),
            None => (Begin::Acquired(token), Some(Entry { token: Some(token), until: later(now, lease) })),
        };
        Ok(self.exchange(key, begin).await)
    }

    async fn renew(&self, key: &DedupKey, token: DedupToken, lease: Duration) -> Result<bool, DedupError> {
        let longer = |now| Some(Entry { token: Some(token), until: later(now, lease) });
        Ok(self.replace(key, token, longer).await)
    }

    async fn finish(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        let done = |now| Some(Entry { token: None, until: later(now, self.retention) });
        Ok(self.replace(key, token, done).await)
    }

    async fn abandon(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        Ok(self.replace(key, token, |_| None).await)
    }

    async fn is_done(&self, key: &DedupKey) -> Result<bool, DedupError> {
        Ok(self.exchange(key, |entry, _| (entry.is_some_and(|e| e.token.is_none()), entry)).await)
    }

    fn retention(&self) -> Duration {
        self.retention
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::clock::ManualClock;

    #[tokio::test]
    async fn a_lease_then_a_marker_then_nothing() {
        let clock = ManualClock::new(DateTime::UNIX_EPOCH);
        let minute = Duration::from_secs(60);
        let store = MemoryDedup::new().with_clock(clock.clone()).with_retention(10 * minute);
        let key = DedupKey::new("points", "a");
        let Begin::Acquired(stale) = store.begin(&key, minute).await.unwrap() else { panic!("not free") };
        assert_eq!(store.clone().begin(&key, minute).await.unwrap(), Begin::InProgress);
        clock.advance(minute);
        let Begin::Acquired(token) = store.begin(&key, minute).await.unwrap() else { panic!("not free") };
        assert!(!store.finish(&key, stale).await.unwrap());
        assert!(store.finish(&key, token).await.unwrap());
        assert!(store.is_done(&key).await.unwrap());
        clock.advance(10 * minute);
        assert!(!store.is_done(&key).await.unwrap());
    }
}
