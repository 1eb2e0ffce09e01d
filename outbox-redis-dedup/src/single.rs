use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, RedisResult};

use crate::config::RedisDedupConfig;
use crate::session::Connect;

/// One server, or the address behind which a fail-over moves.
pub(crate) struct Single {
    client: Client,
    config: AsyncConnectionConfig,
}

impl Single {
    pub(crate) fn new(client: Client, config: &RedisDedupConfig) -> Self {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_timeout()))
            .set_response_timeout(Some(config.response_timeout()));
        Self { client, config }
    }
}

#[async_trait]
impl Connect for Single {
    type Connection = MultiplexedConnection;

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        self.client.get_multiplexed_async_connection_with_config(&self.config).await
    }
}

pub(crate) fn client(url: &str) -> RedisResult<Client> {
    let info = url.into_connection_info()?;
    Client::open(info.set_tcp_settings(TcpSettings::default().set_nodelay(true)))
}
