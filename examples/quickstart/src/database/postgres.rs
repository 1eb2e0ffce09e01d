use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use outbox::sqlx::PgStore;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, Executor};

use super::Database;
use crate::shop::SqlShop;

/// A shop in a new schema.
pub async fn open(url: &str, schema: &str) -> Result<Database> {
    let options: PgConnectOptions = url.parse().context("--database-url")?;
    execute(&options, format!("CREATE SCHEMA {schema}")).await.with_context(|| {
        let (host, port) = (options.get_host(), options.get_port());
        format!(
            "cannot create a schema in PostgreSQL at {host}:{port}; check --database-url, and that it runs"
        )
    })?;
    let drop_schema = {
        let (options, sql) = (options.clone(), format!("DROP SCHEMA {schema} CASCADE"));
        async move { execute(&options, sql).await }
    };
    match set_up(options.options([("search_path", schema)])).await {
        Ok(shop) => {
            let pool = shop.pool.clone();
            Ok(Database {
                shop: Box::new(shop),
                place: format!("PostgreSQL schema {schema}"),
                clean_up: Box::pin(async move {
                    pool.close().await;
                    drop_schema.await
                }),
            })
        }
        Err(error) => {
            drop_schema.await?;
            Err(error)
        }
    }
}

async fn set_up(options: PgConnectOptions) -> Result<SqlShop<sqlx::Postgres, PgStore>> {
    let pool: PgPool = PgPoolOptions::new().connect_with(options).await?;
    let outbox = PgStore::new(pool.clone());
    outbox.migrate().await?;
    sqlx::query("CREATE TABLE orders (id TEXT PRIMARY KEY, cents BIGINT NOT NULL)").execute(&pool).await?;
    Ok(SqlShop { pool, outbox: Arc::new(outbox) })
}

/// On a connection of its own.
async fn execute(options: &PgConnectOptions, sql: String) -> Result<()> {
    let mut connection = tokio::time::timeout(Duration::from_secs(10), options.connect()).await??;
    connection.execute(AssertSqlSafe(sql)).await?;
    Ok(connection.close().await?)
}
