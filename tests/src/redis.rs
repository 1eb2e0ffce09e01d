use anyhow::Result;
use outbox_redis_dedup::redis::{AsyncCommands, Client};

use crate::place::random_name;
use crate::services::redis_url;

/// A part of the Redis server that belongs to one test: all keys with its prefix.
#[derive(Debug)]
pub struct Redis {
    url: String,
    prefix: String,
}

impl Redis {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { url: redis_url()?, prefix: format!("{}:", random_name()) })
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// What its keys start with.
    #[must_use]
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Deletes all its keys, as a server that lost its memory; how many there were.
    pub async fn empty(&self) -> Result<usize> {
        let mut connection = Client::open(self.url.as_str())?.get_multiplexed_async_connection().await?;
        let mut names: Vec<String> = Vec::new();
        let mut found = connection.scan_match::<_, String>(format!("{}*", self.prefix)).await?;
        while let Some(name) = found.next_item().await {
            names.push(name?);
        }
        drop(found);
        for some in names.chunks(500) {
            connection.del::<_, ()>(some).await?;
        }
        Ok(names.len())
    }
}
