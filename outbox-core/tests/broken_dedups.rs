//! Dedup stores with one flaw each, and the cases of the dedup suite that catch it.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod backends;
mod broken;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use backends::MemoryDedupFixture;
use broken::caught;
use outbox_core::conformance::DedupFixture;
use outbox_core::memory::MemoryDedup;
use outbox_core::{Begin, DedupError, DedupKey, DedupStore, DedupToken};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flaw {
    MarksDoneBeforeTheHandler,
    AsksThenTakes,
    TakesAnyToken,
    NeverLetsGo,
    ForgetsTheGroup,
    NeverForgets,
    IgnoresRenewal,
}

caught! {
    run_dedup_case, broken,
    marks_done_before_the_handler_is_caught: MarksDoneBeforeTheHandler => [
        dedup::free_key_is_acquired_once,
        dedup::abandoned_key_is_free_at_once,
    ]
    asks_then_takes_is_caught: AsksThenTakes => [dedup::racing_handles_acquire_a_key_once]
    takes_any_token_is_caught: TakesAnyToken => [dedup::stale_token_changes_nothing]
    never_lets_go_is_caught: NeverLetsGo => [
        dedup::expired_lease_frees_its_key,
        dedup::expired_lease_cannot_finish,
    ]
    forgets_the_group_is_caught: ForgetsTheGroup => [dedup::keys_are_independent]
    never_forgets_is_caught: NeverForgets => [dedup::done_marker_ends_with_its_retention]
    ignores_renewal_is_caught: IgnoresRenewal => [dedup::renewed_lease_lives_longer]
}

fn broken(flaw: Flaw) -> impl AsyncFn() -> Fixture {
    async move || {
        let inner = MemoryDedupFixture::new().await;
        let retention = if flaw == Flaw::NeverForgets { Duration::MAX } else { inner.store().retention() };
        let store = inner.store().as_ref().clone().with_retention(retention);
        let broken = Broken { inner: store, flaw, tokens: Mutex::default() };
        Fixture { inner, broken: Arc::new(broken) }
    }
}

struct Broken {
    inner: MemoryDedup,
    flaw: Flaw,
    tokens: Mutex<HashMap<DedupKey, DedupToken>>,
}

impl Broken {
    fn key(&self, key: &DedupKey) -> DedupKey {
        match self.flaw {
            Flaw::ForgetsTheGroup => DedupKey::new("", &key.msg_id),
            _ => key.clone(),
        }
    }

    fn token(&self, key: &DedupKey, token: DedupToken) -> DedupToken {
        match self.flaw {
            Flaw::TakesAnyToken => self.tokens.lock().unwrap().get(key).copied().unwrap_or(token),
            _ => token,
        }
    }

    async fn begin_without_lock(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError> {
        let free = !self.tokens.lock().unwrap().contains_key(key);
        tokio::task::yield_now().await;
        if free {
            let token = DedupToken::random();
            self.tokens.lock().unwrap().insert(key.clone(), token);
            return Ok(Begin::Acquired(token));
        }
        self.inner.begin(key, lease).await
    }
}

#[async_trait]
impl DedupStore for Broken {
    async fn begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError> {
        let key = self.key(key);
        if self.flaw == Flaw::AsksThenTakes {
            return self.begin_without_lock(&key, lease).await;
        }
        let lease = if self.flaw == Flaw::NeverLetsGo { Duration::MAX } else { lease };
        let begin = self.inner.begin(&key, lease).await?;
        if let Begin::Acquired(token) = begin {
            self.tokens.lock().unwrap().insert(key.clone(), token);
            if self.flaw == Flaw::MarksDoneBeforeTheHandler {
                self.inner.finish(&key, token).await?;
            }
        }
        Ok(begin)
    }

    async fn renew(&self, key: &DedupKey, token: DedupToken, lease: Duration) -> Result<bool, DedupError> {
        let lease = if self.flaw == Flaw::IgnoresRenewal { Duration::from_millis(1) } else { lease };
        self.inner.renew(&self.key(key), self.token(key, token), lease).await
    }

    async fn finish(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.inner.finish(&self.key(key), self.token(key, token)).await
    }

    async fn abandon(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.inner.abandon(&self.key(key), self.token(key, token)).await
    }

    async fn is_done(&self, key: &DedupKey) -> Result<bool, DedupError> {
        self.inner.is_done(&self.key(key)).await
    }

    /// What it promises, whatever it does.
    fn retention(&self) -> Duration {
        MemoryDedup::new().retention()
    }
}

struct Fixture {
    inner: MemoryDedupFixture,
    broken: Arc<Broken>,
}

impl DedupFixture for Fixture {
    type Store = Broken;

    fn store(&self) -> Arc<Broken> {
        Arc::clone(&self.broken)
    }

    fn other(&self) -> Arc<Broken> {
        Arc::clone(&self.broken)
    }

    fn short_lease(&self) -> Duration {
        self.inner.short_lease()
    }

    async fn pass(&self, time: Duration) {
        self.inner.pass(time).await;
    }
}
