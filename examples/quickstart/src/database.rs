#[cfg(feature = "services")]
mod postgres;
mod sqlite;

use std::future::Future;
use std::pin::Pin;

use anyhow::{Result, bail};

use crate::shop::Shop;

/// A shop in tables of its own, and how to remove them.
pub struct Database {
    pub shop: Box<dyn Shop>,
    /// Where to look, for people.
    pub location: String,
    pub clean_up: Pin<Box<dyn Future<Output = Result<()>> + Send>>,
}

impl Database {
    /// Cleans up at once if the shop does not open.
    async fn open(
        opening: impl Future<Output = Result<impl Shop + 'static>>,
        location: String,
        clean_up: impl Future<Output = Result<()>> + Send + 'static,
    ) -> Result<Self> {
        match opening.await {
            Ok(shop) => Ok(Self { shop: Box::new(shop), location, clean_up: Box::pin(clean_up) }),
            Err(error) => clean_up.await.and(Err(error)),
        }
    }
}

/// The database at `url`; without one, a SQLite file in the temp folder.
pub async fn open(url: Option<&str>, run: &str) -> Result<Database> {
    let Some(url) = url else {
        return sqlite::open(std::env::temp_dir().join(format!("{run}.db"))).await;
    };
    match url.split_once(':') {
        Some(("sqlite", path)) => sqlite::open(sqlite::path(path)?).await,
        Some(("postgres" | "postgresql", _)) => open_service(url, run).await,
        _ => bail!("--database-url must start with sqlite: or postgres://"),
    }
}

#[cfg(feature = "services")]
async fn open_service(url: &str, run: &str) -> Result<Database> {
    postgres::open(url, run).await
}

#[cfg(not(feature = "services"))]
async fn open_service(_: &str, _: &str) -> Result<Database> {
    bail!(crate::args::without_services("PostgreSQL", "--database-url postgres://…"))
}
