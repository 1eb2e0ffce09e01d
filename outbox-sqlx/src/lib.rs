//! The outbox in a SQL database: [`PgStore`] and [`SqliteStore`].
//!
//! One body of code over [`sqlx::Database`] builds the SQL; what truly differs between databases is behind
//! [`SqlDatabase`]. See [`SqlStore`] for how to use it.

mod claim;
mod dialect;
mod driver;
mod enqueue;
mod error;
mod inspect;
mod names;
#[cfg(test)]
mod plans;
#[cfg(feature = "postgres")]
mod postgres;
mod receipts;
mod row;
mod settle;
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
mod time;

pub use store::{SqlDatabase, SqlStore};

/// The outbox in PostgreSQL 12 or later.
#[cfg(feature = "postgres")]
pub type PgStore = SqlStore<sqlx::Postgres>;

/// The outbox in SQLite.
#[cfg(feature = "sqlite")]
pub type SqliteStore = SqlStore<sqlx::Sqlite>;
