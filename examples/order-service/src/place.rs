use std::str::FromStr;

use anyhow::{Context, Result};
use clap::Args;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, PgPool};

/// Where the services are, and the name that sets this run apart from others.
#[derive(Debug, Clone, Args)]
pub struct Place {
    /// PostgreSQL; each service gets a schema of its own, which stands for a database of its own
    #[arg(
        long,
        value_name = "URL",
        env = "OUTBOX_PG_URL",
        hide_env_values = true,
        global = true,
        default_value = "postgres://postgres@localhost/postgres"
    )]
    pub pg_url: String,

    /// RabbitMQ
    #[arg(
        long,
        value_name = "URL",
        env = "OUTBOX_AMQP_URL",
        hide_env_values = true,
        global = true,
        default_value = "amqp://guest:guest@localhost/%2f"
    )]
    pub amqp_url: String,

    /// Redis
    #[arg(
        long,
        value_name = "URL",
        env = "OUTBOX_REDIS_URL",
        hide_env_values = true,
        global = true,
        default_value = "redis://localhost/0"
    )]
    pub redis_url: String,

    /// The start of the names of all schemas, exchanges, queues and keys
    #[arg(
        long,
        value_name = "NAME",
        env = "ORDER_SERVICE_RUN",
        global = true,
        default_value = "order_service"
    )]
    pub run: String,
}

/// A service with tables of its own.
#[derive(Debug, Clone, Copy)]
pub enum Service {
    Orders,
    Inventory,
    Points,
}

impl Service {
    pub const ALL: [Self; 3] = [Self::Orders, Self::Inventory, Self::Points];

    fn name(self) -> &'static str {
        match self {
            Self::Orders => "orders",
            Self::Inventory => "inventory",
            Self::Points => "points",
        }
    }
}

impl Place {
    /// Connections of a service, all in its own schema, which is created if need be.
    pub async fn database(&self, service: Service) -> Result<PgPool> {
        let schema = self.schema(service);
        let options = PgConnectOptions::from_str(&self.pg_url).context("the URL of PostgreSQL")?;
        let options = options.options([("search_path", schema.as_str())]);
        let pool = PgPoolOptions::new().max_connections(8).connect_with(options).await;
        let pool = pool.context("cannot connect to PostgreSQL: is it running, is the URL right?")?;
        execute(&pool, format!("CREATE SCHEMA IF NOT EXISTS {schema}")).await?;
        Ok(pool)
    }

    /// Drops a service's tables.
    pub async fn drop_database(&self, service: Service) -> Result<()> {
        let pool = self.database(service).await?;
        execute(&pool, format!("DROP SCHEMA {} CASCADE", self.schema(service))).await
    }

    fn schema(&self, service: Service) -> String {
        format!("{}_{}", self.run, service.name())
    }

    /// The exchange that orders publish to.
    pub fn exchange(&self) -> String {
        format!("{}.exchange", self.run)
    }

    /// The queue of a consumer group.
    pub fn queue(&self, group: &str) -> String {
        format!("{}.{group}", self.run)
    }

    /// The queue on which receipts come back.
    pub fn receipts(&self) -> String {
        format!("{}.receipts", self.run)
    }
}

/// Runs statements that this program wrote itself.
pub async fn execute(pool: &PgPool, sql: impl Into<String>) -> Result<()> {
    sqlx::raw_sql(AssertSqlSafe(sql.into())).execute(pool).await?;
    Ok(())
}
