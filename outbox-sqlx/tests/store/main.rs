//! What the stores promise, each promise on every database from the same body.

#![allow(missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod adopting;
mod claiming;
mod conformance;
mod consuming;
mod deduplicating;
mod enqueueing;
mod forgetting;
mod handling_once;
mod harness;
mod inspecting;
mod keys;
mod migrating;
mod model;
mod mysql_only;
mod postgres_only;
mod receiving;
mod refusing;
mod settling;
mod surviving;
mod throughput;

/// One test per case and database.
#[macro_export]
macro_rules! on_every_database {
    ($($case:ident),+ $(,)?) => {
        mod sqlite {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    $crate::harness::run::<sqlx::Sqlite, _>(super::$case).await;
                }
            )+
        }

        mod mysql {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[ignore = "needs MariaDB or MySQL: run scripts/test.sh"]
                async fn $case() {
                    $crate::harness::run::<sqlx::MySql, _>(super::$case).await;
                }
            )+
        }

        mod postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[ignore = "needs PostgreSQL: run scripts/test.sh"]
                async fn $case() {
                    $crate::harness::run::<sqlx::Postgres, _>(super::$case).await;
                }
            )+
        }
    };
}

/// One test per case, on MariaDB or MySQL alone.
#[macro_export]
macro_rules! on_mysql {
    ($($case:ident),+ $(,)?) => {
        mod on_mysql {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[ignore = "needs MariaDB or MySQL: run scripts/test.sh"]
                async fn $case() {
                    $crate::harness::run::<sqlx::MySql, _>(super::$case).await;
                }
            )+
        }
    };
}

/// One test per case, on PostgreSQL alone.
#[macro_export]
macro_rules! on_postgres {
    ($($case:ident),+ $(,)?) => {
        mod on_postgres {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                #[ignore = "needs PostgreSQL: run scripts/test.sh"]
                async fn $case() {
                    $crate::harness::run::<sqlx::Postgres, _>(super::$case).await;
                }
            )+
        }
    };
}
