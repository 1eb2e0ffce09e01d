//! The application's connection dies around its COMMIT.

use std::time::Duration;

use anyhow::{Context, Result};
use outbox_core::{Enqueue, StoreErrorKind};
use outbox_tests::{Direction, Proxy, ids, orders, scenario, until, within};
use sqlx::{Connection, PgConnection};
use tokio::time::sleep;

const LIMIT: Duration = Duration::from_secs(30);

/// Before COMMIT has gone out there is nothing to doubt: the error says that it is worth trying again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn database_connection_killed_before_the_users_commit_means_nothing_was_written() -> Result<()> {
    scenario(async |s| {
        let relay = s.relay("relay").start_here().await?;
        let messages = orders(10)?;
        let mut connection = PgConnection::connect(&s.place().url_as("user")).await?;
        let mut tx = connection.begin().await?;
        s.store().enqueue(&mut tx, &messages[..5]).await?;
        let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut *tx).await?;
        sqlx::query("SELECT pg_terminate_backend($1)").bind(pid).execute(s.pool()).await?;
        let error = s.store().enqueue(&mut tx, &messages[5..]).await.err().context("an error")?;
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        assert!(error.is_transient());
        assert!(tx.commit().await.is_err(), "COMMIT must not seem to work");
        let again = s.commit(&messages).await?;
        s.delivered(&again).await?;
        relay.stop().await?;
        s.verify().await
    })
    .await
}

/// COMMIT went out and its answer is lost: nobody can tell but the row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn database_answer_to_the_users_commit_lost_is_cleared_up_by_a_retry() -> Result<()> {
    scenario(async |s| {
        let relay = s.relay("relay").start_here().await?;
        let url = s.place().url_as("user");
        let proxy = Proxy::before(&url).await?;
        let messages = orders(10)?;
        let mut connection = PgConnection::connect(&proxy.url(&url)).await?;
        let mut tx = connection.begin().await?;
        s.store().enqueue(&mut tx, &messages).await?;
        proxy.lose_answer_to("COMMIT\0");
        let commit = async {
            until("the commit is done", LIMIT, async || {
                Ok((s.tables().rows().await?.len() == messages.len()).then_some(()))
            })
            .await?;
            proxy.cut();
            anyhow::Ok(())
        };
        let (unknown, cut) =
            within("the lost commit", LIMIT, async { tokio::join!(tx.commit(), commit) }).await?;
        cut?;
        assert!(unknown.is_err(), "COMMIT must not seem to work");
        s.ledger().committed(ids(&messages));
        let mut tx = s.pool().begin().await?;
        let error = s.store().enqueue(&mut tx, &messages).await.err().context("an error")?;
        assert_eq!(error.kind(), StoreErrorKind::Duplicate, "{error}");
        drop(tx);
        let mut tx = s.pool().begin().await?;
        assert_eq!(s.store().enqueue_idempotent(&mut tx, &messages).await?, 0);
        tx.commit().await?;
        s.delivered(&ids(&messages)).await?;
        relay.stop().await?;
        s.verify().await
    })
    .await
}

/// COMMIT never arrived: the same error, the same retry, and this time it writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn database_connection_lost_on_the_way_to_the_users_commit_is_cleared_up_by_a_retry() -> Result<()> {
    scenario(async |s| {
        let relay = s.relay("relay").start_here().await?;
        let url = s.place().url_as("user");
        let proxy = Proxy::before(&url).await?;
        let messages = orders(10)?;
        let mut connection = PgConnection::connect(&proxy.url(&url)).await?;
        let mut tx = connection.begin().await?;
        s.store().enqueue(&mut tx, &messages).await?;
        proxy.stall(Direction::ToServer);
        let cut = async {
            sleep(Duration::from_millis(200)).await;
            proxy.cut();
        };
        let (unknown, ()) =
            within("the lost commit", LIMIT, async { tokio::join!(tx.commit(), cut) }).await?;
        assert!(unknown.is_err(), "COMMIT must not seem to work");
        let mut tx = s.pool().begin().await?;
        assert_eq!(s.store().enqueue_idempotent(&mut tx, &messages).await?, messages.len());
        tx.commit().await?;
        s.ledger().committed(ids(&messages));
        s.delivered(&ids(&messages)).await?;
        relay.stop().await?;
        s.verify().await
    })
    .await
}
