//! What every sqlx driver can do, as traits on the database itself: bounds on other types (`String: Encode<DB>`,
//! `&mut DB::Connection: Executor`) would have to be repeated at every function, supertraits are implied.

use std::pin::Pin;

use sqlx::query_builder::QueryBuilder;
use sqlx::{ColumnIndex, Database, Decode, Encode, Executor, IntoArguments, Row, Type};

type Answer<'c, T> = Pin<Box<dyn Future<Output = Result<T, sqlx::Error>> + Send + 'c>>;

/// Runs statements.
pub trait Run: Database {
    fn execute<'c>(conn: &'c mut Self::Connection, sql: QueryBuilder<Self>) -> Answer<'c, Self::QueryResult>;
    fn fetch<'c>(conn: &'c mut Self::Connection, sql: QueryBuilder<Self>) -> Answer<'c, Vec<Self::Row>>;
    /// Runs a script of several statements without parameters.
    fn script<'c>(conn: &'c mut Self::Connection, sql: String) -> Answer<'c, ()>;
}

impl<DB> Run for DB
where
    DB: Database,
    DB::Arguments: IntoArguments<DB>,
    for<'c> &'c mut DB::Connection: Executor<'c, Database = DB>,
{
    fn execute<'c>(conn: &'c mut DB::Connection, mut sql: QueryBuilder<DB>) -> Answer<'c, DB::QueryResult> {
        Box::pin(async move { conn.execute(sql.build()).await })
    }

    fn fetch<'c>(conn: &'c mut DB::Connection, mut sql: QueryBuilder<DB>) -> Answer<'c, Vec<DB::Row>> {
        Box::pin(async move { conn.fetch_all(sql.build()).await })
    }

    fn script<'c>(conn: &'c mut DB::Connection, sql: String) -> Answer<'c, ()> {
        Box::pin(async move { conn.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(sql))).await.map(|_| ()) })
    }
}

/// Takes parameters of a type.
pub trait Bind<T>: Database {
    fn bind(sql: &mut QueryBuilder<Self>, value: T);
}

impl<DB, T> Bind<T> for DB
where
    DB: Database,
    T: for<'t> Encode<'t, DB> + Type<DB>,
{
    fn bind(sql: &mut QueryBuilder<DB>, value: T) {
        sql.push_bind(value);
    }
}

/// Reads columns. Total: a value that is not of the type reads as none, because one odd row must not keep a
/// batch of others from being delivered.
pub trait Read: Database {
    fn int(row: &Self::Row, column: usize) -> Option<i64>;
    fn text(row: &Self::Row, column: usize) -> Option<String>;
    fn bytes(row: &Self::Row, column: usize) -> Option<Vec<u8>>;
}

impl<DB> Read for DB
where
    DB: Database,
    usize: ColumnIndex<DB::Row>,
    for<'r> i64: Decode<'r, DB>,
    for<'r> String: Decode<'r, DB>,
    for<'r> Vec<u8>: Decode<'r, DB>,
{
    fn int(row: &DB::Row, column: usize) -> Option<i64> {
        row.try_get_unchecked::<Option<i64>, _>(column).unwrap_or_default()
    }

    fn text(row: &DB::Row, column: usize) -> Option<String> {
        match row.try_get_unchecked::<Option<String>, _>(column) {
            Ok(text) => text,
            Err(_) => DB::bytes(row, column).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        }
    }

    fn bytes(row: &DB::Row, column: usize) -> Option<Vec<u8>> {
        row.try_get_unchecked::<Option<Vec<u8>>, _>(column).unwrap_or_default()
    }
}
