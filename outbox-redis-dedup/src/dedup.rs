use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use outbox_core::{Begin, DedupError, DedupKey, DedupStore, DedupToken};
use redis::{Client, FromRedisValue};

use crate::config::RedisDedupConfig;
use crate::eviction::{self, Eviction};
use crate::script::{self, Step, Steps};
use crate::session::{Connect, Query, Session};
use crate::{failure, single, tls};

/// A consumer group's memory in Redis. See the [crate](crate) for what it promises.
///
/// Cheap to share behind an [`Arc`](std::sync::Arc): all calls go through one connection, which is made at the
/// first use and made anew whenever it breaks. Dropping a returned future leaves the key as before or as
/// after the call; a lease taken by a dropped [`begin`](DedupStore::begin) runs out.
pub struct RedisDedup {
    server: Box<dyn Query>,
    name: String,
    steps: Steps,
    config: RedisDedupConfig,
}

impl RedisDedup {
    /// A server at `redis://user:password@host:6379/0`, or `rediss://` for TLS with the Mozilla roots.
    /// Connects at the first use, so that a consumer can start while Redis is away.
    ///
    /// The first `rediss://` makes ring the program's default rustls provider, unless there is one.
    ///
    /// # Errors
    /// When the URL is not understood. The error does not show it.
    pub fn new(url: &str, config: RedisDedupConfig) -> Result<Self, DedupError> {
        tls::provide(url);
        Ok(Self::from_client(single::client(url).map_err(failure::of_url)?, config))
    }

    /// A server through a client of your own, for example one with your own certificates.
    #[must_use]
    pub fn from_client(client: Client, config: RedisDedupConfig) -> Self {
        let name = format!("Redis at {}", client.get_connection_info().addr());
        Self::over(single::Single::new(client, &config), name, config)
    }

    pub(crate) fn over(server: impl Connect, name: String, config: RedisDedupConfig) -> Self {
        let server = Box::new(Session::new(server, config.limit()));
        Self { server, name, steps: Steps::default(), config }
    }

    /// Asks whether the server may throw keys away when its memory is full, and logs a warning if so. For
    /// the start of a consumer.
    ///
    /// # Errors
    /// When the server did not answer.
    pub async fn check_eviction(&self) -> Result<Eviction, DedupError> {
        eviction::check(self.server.as_ref(), &self.name).await.map_err(|e| failure::of_step(&self.name, e))
    }

    async fn run<T: FromRedisValue>(
        &self,
        step: &Step,
        key: &DedupKey,
        token: DedupToken,
        time: Option<Duration>,
    ) -> Result<T, DedupError> {
        let key = script::name(self.config.prefix(), key);
        let answer = step.run(self.server.as_ref(), &key, token, time).await;
        answer.map_err(|error| failure::of_step(&self.name, error))
    }
}

#[async_trait]
impl DedupStore for RedisDedup {
    async fn begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError> {
        let token = DedupToken::random();
        match self.run(&self.steps.begin, key, token, Some(lease)).await? {
            0 => Ok(Begin::InProgress),
            1 => Ok(Begin::Acquired(token)),
            2 => Ok(Begin::Done),
            other => Err(failure::of_answer(&self.name, other)),
        }
    }

    async fn renew(&self, key: &DedupKey, token: DedupToken, lease: Duration) -> Result<bool, DedupError> {
        self.run(&self.steps.renew, key, token, Some(lease)).await
    }

    async fn finish(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.run(&self.steps.finish, key, token, Some(self.config.retention())).await
    }

    async fn abandon(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.run(&self.steps.abandon, key, token, None).await
    }

    async fn is_done(&self, key: &DedupKey) -> Result<bool, DedupError> {
        let mut get = redis::cmd("GET");
        get.arg(script::name(self.config.prefix(), key));
        let value = self.server.query(&get).await.and_then(|v| Ok(Option::<String>::from_redis_value(v)?));
        Ok(value.map_err(|error| failure::of_step(&self.name, error))?.as_deref() == Some(script::DONE))
    }

    fn retention(&self) -> Duration {
        self.config.retention()
    }
}

/// Never shows the URL, which may have a password.
impl fmt::Debug for RedisDedup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisDedup").field("server", &self.name).field("config", &self.config).finish()
    }
}
