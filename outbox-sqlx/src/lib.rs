//! The outbox in a SQL database: `PgStore`, `MySqlStore` and `SqliteStore`, names for [`SqlStore`]. For consumers there is
//! an inbox, [`SqlInbox`], and a dedup store, [`SqlDedup`].
//!
//! ```
//! use outbox_core::{Enqueue, Message, OutboxStore};
//! use outbox_sqlx::SqliteStore;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let one = sqlx::sqlite::SqlitePoolOptions::new().max_connections(1);
//! # let pool = one.connect("sqlite::memory:").await?;
//! # sqlx::raw_sql("CREATE TABLE orders (no TEXT)").execute(&pool).await?;
//! let outbox = SqliteStore::new(pool.clone());
//! outbox.migrate().await?;
//!
//! let mut tx = pool.begin().await?;
//! sqlx::query("INSERT INTO orders VALUES (?)").bind("A-1001").execute(&mut *tx).await?;
//! outbox.enqueue(&mut tx, &[Message::json("order.created", "A-1001", &990)?]).await?;
//! tx.commit().await?;
//! # assert_eq!(outbox.stats().await?.oldest_due.is_some(), true);
//! # Ok(())
//! # }
//! ```
#![doc = include_str!("../TABLE.md")]

mod access;
mod claim;
mod dedup;
mod dialect;
mod driver;
mod enqueue;
mod error;
mod hearing;
mod inbox;
mod inspect;
mod keys;
#[cfg(feature = "mysql")]
mod mysql;
mod names;
#[cfg(test)]
mod plans;
#[cfg(feature = "postgres")]
mod postgres;
mod receipts;
mod refusal;
mod row;
mod settle;
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod time;

pub use dedup::SqlDedup;
pub use inbox::SqlInbox;
pub use refusal::Refusal;
pub use store::{SqlDatabase, SqlStore};

/// The outbox in MySQL 8.0.17 or later, or MariaDB 10.6 or later.
#[cfg(feature = "mysql")]
pub type MySqlStore = SqlStore<sqlx::MySql>;

/// The inbox in MySQL 8.0.17 or later, or MariaDB 10.6 or later.
#[cfg(feature = "mysql")]
pub type MySqlInbox = SqlInbox<sqlx::MySql>;

/// The memory of a consumer group in MySQL 8.0.17 or later, or MariaDB 10.6 or later.
#[cfg(feature = "mysql")]
pub type MySqlDedup = SqlDedup<sqlx::MySql>;

/// The outbox in PostgreSQL 12 or later.
#[cfg(feature = "postgres")]
pub type PgStore = SqlStore<sqlx::Postgres>;

/// The inbox in PostgreSQL 12 or later.
#[cfg(feature = "postgres")]
pub type PgInbox = SqlInbox<sqlx::Postgres>;

/// The inbox in SQLite.
#[cfg(feature = "sqlite")]
pub type SqliteInbox = SqlInbox<sqlx::Sqlite>;

/// The memory of a consumer group in PostgreSQL 12 or later.
#[cfg(feature = "postgres")]
pub type PgDedup = SqlDedup<sqlx::Postgres>;

/// The memory of a consumer group in SQLite.
#[cfg(feature = "sqlite")]
pub type SqliteDedup = SqlDedup<sqlx::Sqlite>;

/// The outbox in SQLite.
#[cfg(feature = "sqlite")]
pub type SqliteStore = SqlStore<sqlx::Sqlite>;
