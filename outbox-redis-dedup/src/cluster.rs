use async_trait::async_trait;
use outbox_core::DedupError;
use redis::RedisResult;
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::io::tcp::TcpSettings;

use crate::config::RedisDedupConfig;
use crate::dedup::RedisDedup;
use crate::session::Connect;
use crate::{failure, tls};

/// A cluster; the client finds the node of each key and follows moves.
struct Cluster {
    client: ClusterClient,
    config: RedisDedupConfig,
}

#[async_trait]
impl Connect for Cluster {
    type Connection = ClusterConnection;

    async fn connect(&self) -> RedisResult<ClusterConnection> {
        let config = ClusterConfig::new()
            .set_connection_timeout(self.config.connect_timeout())
            .set_response_timeout(self.config.response_timeout());
        self.client.get_async_connection_with_config(config).await
    }
}

impl RedisDedup {
    /// A Redis Cluster, found through any of its nodes. Connects at the first use.
    ///
    /// # Errors
    /// When a URL is not understood, or when the URLs differ in user, password or TLS.
    pub fn cluster<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        config: RedisDedupConfig,
    ) -> Result<Self, DedupError> {
        let urls: Vec<&str> = urls.into_iter().collect();
        urls.iter().for_each(|url| tls::provide(url));
        let client = ClusterClient::builder(urls)
            .tcp_settings(TcpSettings::default().set_nodelay(true))
            .build()
            .map_err(failure::of_url)?;
        Ok(Self::from_cluster_client(client, config))
    }

    /// A Redis Cluster through a client of your own, for example one with your own certificates.
    #[must_use]
    pub fn from_cluster_client(client: ClusterClient, config: RedisDedupConfig) -> Self {
        let server = Cluster { client, config: config.clone() };
        Self::over(server, "Redis Cluster".to_owned(), config)
    }
}
