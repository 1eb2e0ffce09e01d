use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use uuid::Uuid;

/// What is handled once: a message, by a consumer group. Never the business key: one order has many messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DedupKey {
    /// The consumer group.
    pub group: String,
    /// The message.
    pub msg_id: String,
}

impl DedupKey {
    /// The key of a message in a group.
    #[must_use]
    pub fn new(group: impl Into<String>, msg_id: impl Into<String>) -> Self {
        Self { group: group.into(), msg_id: msg_id.into() }
    }
}

/// The fence of one run of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DedupToken(pub Uuid);

impl DedupToken {
    /// A new random token.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

/// What a consumer may do with a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begin {
    /// Run the handler, then [`finish`](DedupStore::finish) or [`abandon`](DedupStore::abandon).
    Acquired(DedupToken),
    /// Somebody else runs it: try again later, acknowledge nothing.
    InProgress,
    /// It was handled: acknowledge, and send the receipt again.
    Done,
}

/// The memory of a consumer group: first an in-progress lease, after the handler a done marker.
///
/// # Contract for implementors
/// - Of any number of concurrent `begin`s of a key, at most one is `Acquired` while its lease lives.
/// - `finish`, `renew` and `abandon` with a token that no longer holds the key change nothing and say `false`.
/// - A lease that runs out makes the key free again; a done marker stays for the retention.
#[async_trait]
pub trait DedupStore: Send + Sync + 'static {
    /// Asks for the right to handle `key`, for as long as `lease`.
    async fn begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError>;
    /// Makes a live lease longer: it ends `lease` from now.
    async fn renew(&self, key: &DedupKey, token: DedupToken, lease: Duration) -> Result<bool, DedupError>;
    /// Marks `key` as done.
    async fn finish(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError>;
    /// Gives the lease back after a failure, so that the next delivery can run at once.
    async fn abandon(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError>;
    /// Whether `key` is marked done.
    async fn is_done(&self, key: &DedupKey) -> Result<bool, DedupError>;
    /// For how long a done marker stays.
    fn retention(&self) -> Duration;
}

macro_rules! forward_dedup {
    ($pointer:ident) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<D: DedupStore + ?Sized> DedupStore for $pointer<D> {
            async fn begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError> {
                (**self).begin(key, lease).await
            }
            async fn renew(
                &self,
                key: &DedupKey,
                token: DedupToken,
                lease: Duration,
            ) -> Result<bool, DedupError> {
                (**self).renew(key, token, lease).await
            }
            async fn finish(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
                (**self).finish(key, token).await
            }
            async fn abandon(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
                (**self).abandon(key, token).await
            }
            async fn is_done(&self, key: &DedupKey) -> Result<bool, DedupError> {
                (**self).is_done(key).await
            }
            fn retention(&self) -> Duration {
                (**self).retention()
            }
        }
    };
}
forward_dedup!(Arc);
forward_dedup!(Box);

/// A dedup store that did not answer. Nothing is known: try again, and acknowledge nothing meanwhile. Unless it
/// is the [key](Self::is_unfit) that it cannot hold.
#[derive(Debug, thiserror::Error)]
#[error("dedup store: {message}")]
pub struct DedupError {
    message: String,
    unfit: bool,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl DedupError {
    /// Says what happened.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), unfit: false, source: None }
    }

    /// A key that the store can never hold, for example one that is too long.
    #[must_use]
    pub fn unfit(message: impl Into<String>) -> Self {
        Self { unfit: true, ..Self::new(message) }
    }

    /// Whether the key is the cause, so that trying again is of no use. Consumers reject such a message.
    #[must_use]
    pub fn is_unfit(&self) -> bool {
        self.unfit
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }
}
