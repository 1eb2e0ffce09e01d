use anyhow::{Context, Result};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use crate::services::pg_url;

/// A part of the database server that belongs to one test.
#[derive(Debug)]
pub struct Place {
    url: String,
    drop: String,
}

impl Place {
    /// A schema of its own, which every connection by [`url`](Self::url) looks in first.
    pub async fn schema() -> Result<Self> {
        let name = random_name();
        administer(&format!("CREATE SCHEMA {name}")).await?;
        let url = with_parameter(&pg_url()?, &format!("options=-csearch_path%3D{name}"));
        Ok(Self { url, drop: format!("DROP SCHEMA {name} CASCADE") })
    }

    /// A database of its own, whose sessions start in this time zone.
    pub async fn database(time_zone: &str) -> Result<Self> {
        let name = random_name();
        administer(&format!("CREATE DATABASE {name}")).await?;
        let place = Self {
            url: with_database(&pg_url()?, &name)?,
            drop: format!("DROP DATABASE {name} WITH (FORCE)"),
        };
        administer(&format!("ALTER DATABASE {name} SET timezone TO '{time_zone}'")).await?;
        Ok(place)
    }

    /// How to connect to it.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How to connect to it as the application of this name, which the audit and `pg_stat_activity` show.
    #[must_use]
    pub fn url_as(&self, application: &str) -> String {
        with_parameter(&self.url, &format!("application_name={application}"))
    }

    /// Drops it with all that is in it.
    pub async fn remove(&self) -> Result<()> {
        administer(&self.drop).await
    }
}

/// A name that no other test has.
#[must_use]
pub fn random_name() -> String {
    format!("e2e_{}", Uuid::new_v4().simple())
}

async fn administer(sql: &str) -> Result<()> {
    let mut connection = PgConnection::connect(&pg_url()?).await.context("PostgreSQL does not answer")?;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.with_context(|| sql.to_owned())?;
    Ok(connection.close().await?)
}

fn with_parameter(url: &str, parameter: &str) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}{parameter}")
}

fn with_database(url: &str, name: &str) -> Result<String> {
    let (path, query) = url.split_once('?').map_or((url, String::new()), |(p, q)| (p, format!("?{q}")));
    let (server, _) = path.rsplit_once('/').context("OUTBOX_PG_URL names a database")?;
    Ok(format!("{server}/{name}{query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_keep_what_they_have() -> Result<()> {
        assert_eq!(with_parameter("postgres://h/d", "a=1"), "postgres://h/d?a=1");
        assert_eq!(with_parameter("postgres://h/d?x=0", "a=1"), "postgres://h/d?x=0&a=1");
        assert_eq!(with_database("postgres://u@h:1/d?x=0", "e")?, "postgres://u@h:1/e?x=0");
        Ok(())
    }
}
