use std::time::Duration;

use async_trait::async_trait;
use redis::aio::ConnectionLike;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::Mutex;
use tokio::time::timeout;

/// How to reach a server, or a cluster of them.
#[async_trait]
pub(crate) trait Connect: Send + Sync + 'static {
    type Connection: ConnectionLike + Clone + Send + Sync;
    async fn connect(&self) -> RedisResult<Self::Connection>;
}

/// Sends one command.
#[async_trait]
pub(crate) trait Query: Send + Sync {
    async fn query(&self, cmd: &Cmd) -> RedisResult<Value>;
}

/// One shared connection, made at the first use and made anew after it broke.
///
/// The client's own connection manager keeps a connection whose answers stop coming, one to a master that
/// was demoted, and an error at reconnecting that was not an I/O error; each of them would need a restart.
pub(crate) struct Session<C: Connect> {
    server: C,
    limit: Duration,
    slot: Mutex<Slot<C::Connection>>,
}

struct Slot<T> {
    generation: u64,
    connection: Option<T>,
}

impl<C: Connect> Session<C> {
    /// No call takes longer than `limit`.
    pub(crate) fn new(server: C, limit: Duration) -> Self {
        Self { server, limit, slot: Mutex::new(Slot { generation: 0, connection: None }) }
    }

    /// Sends a second time if the peer had closed the connection: an idle one, or one before a restart. All
    /// steps may be sent twice.
    async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        match self.send_once(cmd).await {
            Err(error) if error.is_connection_dropped() => self.send_once(cmd).await,
            answer => answer,
        }
    }

    async fn send_once(&self, cmd: &Cmd) -> RedisResult<Value> {
        let (generation, mut connection) = self.connection().await?;
        let answer = cmd.query_async(&mut connection).await;
        if answer.as_ref().is_err_and(is_broken) {
            self.forget(generation).await;
        }
        answer
    }

    async fn connection(&self) -> RedisResult<(u64, C::Connection)> {
        let mut slot = self.slot.lock().await;
        if let Some(connection) = &slot.connection {
            return Ok((slot.generation, connection.clone()));
        }
        let connection = self.server.connect().await?;
        slot.generation += 1;
        slot.connection = Some(connection.clone());
        Ok((slot.generation, connection))
    }

    async fn forget(&self, generation: u64) {
        let mut slot = self.slot.lock().await;
        if slot.generation == generation {
            slot.connection = None;
        }
    }
}

#[async_trait]
impl<C: Connect> Query for Session<C> {
    async fn query(&self, cmd: &Cmd) -> RedisResult<Value> {
        let late = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        timeout(self.limit, self.send(cmd)).await.map_err(late).flatten()
    }
}

/// Whether a new connection may do better than this one.
fn is_broken(error: &RedisError) -> bool {
    let demoted = matches!(
        error.kind(),
        ErrorKind::Server(
            ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown | ServerErrorKind::ClusterDown
        )
    );
    demoted || error.is_io_error() || error.is_unrecoverable_error()
}
