use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use sqlx::postgres::{PgConnectOptions, PgPool};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};
use tokio::time::timeout;

use super::Database;
use crate::shop::SqlShop;

/// A shop in a new schema.
pub async fn open(url: &str, schema: &str) -> Result<Database> {
    let options: PgConnectOptions = url.parse().map_err(|error| anyhow!("--database-url: {error}"))?;
    let (host, port) = (options.get_host(), options.get_port());
    execute(&options, format!("CREATE SCHEMA {schema}")).await.map_err(|error| {
        anyhow!("cannot create a schema in PostgreSQL at {host}:{port}: {error}; check --database-url")
    })?;

    let pool = PgPool::connect_lazy_with(options.clone().options([("search_path", schema)]));
    let location = format!("PostgreSQL schema {schema}");
    let clean_up = {
        let (pool, sql) = (pool.clone(), format!("DROP SCHEMA {schema} CASCADE"));
        async move {
            pool.close().await;
            execute(&options, sql).await
        }
    };
    Database::open(SqlShop::open(pool), location, clean_up).await
}

/// On a connection of its own.
async fn execute(options: &PgConnectOptions, sql: String) -> Result<()> {
    let mut connection = timeout(Duration::from_secs(10), options.connect()).await.context("no answer")??;
    connection.execute(AssertSqlSafe(sql)).await?;
    Ok(connection.close().await?)
}
