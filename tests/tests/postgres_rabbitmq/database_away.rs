//! PostgreSQL connections die at the worst moment.

use std::time::Duration;

use anyhow::{Result, ensure};
use outbox_tests::{FaultPoint, Proxy, RelaySetup, Scenario, ids, orders, scenario, services_ctl, until};
use sqlx::{Connection, Executor, PgConnection};
use tokio::time::sleep;

use crate::start;

const ORDERS: usize = 50;
/// As it goes over the wire: `BEGIN … READ COMMITTED` is another question.
const COMMIT: &str = "COMMIT\0";
const LIMIT: Duration = Duration::from_secs(30);

/// A lock that lets nobody else read or write the outbox table while it lives.
struct TableLock {
    connection: PgConnection,
    pid: i32,
}

impl TableLock {
    async fn take(s: &Scenario) -> Result<Self> {
        let mut connection = PgConnection::connect(&s.place().url_as("lock")).await?;
        let pid = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut connection).await?;
        connection.execute("BEGIN; LOCK TABLE biz_outbox IN ACCESS EXCLUSIVE MODE").await?;
        Ok(Self { connection, pid })
    }

    /// The connection that waits for this lock, in the middle of its statement. (Asked by another connection:
    /// within a transaction `pg_stat_activity` stands still.)
    async fn waiting(&self, s: &Scenario) -> Result<i32> {
        let waiting = "SELECT pid FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))";
        until("a statement waits for the lock", LIMIT, async || {
            Ok(sqlx::query_scalar(waiting).bind(self.pid).fetch_optional(s.pool()).await?)
        })
        .await
    }

    /// Kills that connection.
    async fn kill_waiting(&self, s: &Scenario) -> Result<()> {
        let pid = self.waiting(s).await?;
        s.pool().execute(sqlx::query("SELECT pg_terminate_backend($1)").bind(pid)).await?;
        Ok(())
    }

    async fn release(self) -> Result<()> {
        Ok(self.connection.close().await?)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn database_connection_killed_in_claim_loses_and_repeats_nothing() -> Result<()> {
    scenario(async |s| {
        let ids = s.commit_orders(ORDERS).await?;
        let lock = TableLock::take(s).await?;
        let relay = start(&s.relay("victim")).await?;
        lock.kill_waiting(s).await?;
        lock.release().await?;
        s.delivered(&ids).await?;
        relay.stop().await?;
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn database_connection_killed_in_settle_loses_and_repeats_nothing() -> Result<()> {
    scenario(async |s| {
        let mut relay =
            start(&RelaySetup { fault: Some(FaultPoint::BeforeSettle), ..s.relay("victim") }).await?;
        s.commit_orders(ORDERS).await?;
        relay.says("fault").await?;
        let lock = TableLock::take(s).await?;
        relay.tell("go").await?;
        lock.kill_waiting(s).await?;
        lock.release().await?;
        s.settled().await?;
        relay.stop().await?;
        s.verify().await
    })
    .await
}

/// The database commits the claim, and the relay never learns which rows it has: they wait for their lease.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn database_answer_to_a_claim_lost_means_waiting_for_the_lease() -> Result<()> {
    scenario(async |s| {
        let url = s.relay("relay").database_url;
        let proxy = Proxy::before(&url).await?;
        s.commit_orders(ORDERS).await?;
        let lock = TableLock::take(s).await?;
        let relay = start(&RelaySetup { database_url: proxy.url(&url), ..s.relay("relay") }).await?;
        lock.waiting(s).await?;
        proxy.lose_answer_to(COMMIT);
        lock.release().await?;
        until("the claim is committed", LIMIT, async || {
            Ok((s.tables().claimed().await?.len() == ORDERS).then_some(()))
        })
        .await?;
        proxy.cut();
        proxy.resume();
        s.settled().await?;
        relay.stop().await?;
        s.verify().await?;
        let rows = s.tables().rows().await?;
        ensure!(rows.iter().all(|row| row.claim_no == 2), "each was claimed twice, the first time in vain");
        Ok(())
    })
    .await
}

/// The database commits the settlement, and the relay does not know: asking again must change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn database_answer_to_a_settlement_lost_changes_and_repeats_nothing() -> Result<()> {
    scenario(async |s| {
        let url = s.relay("relay").database_url;
        let proxy = Proxy::before(&url).await?;
        let setup = RelaySetup { database_url: proxy.url(&url), ..s.relay("relay") };
        let mut relay = start(&RelaySetup { fault: Some(FaultPoint::BeforeSettle), ..setup }).await?;
        s.commit_orders(ORDERS).await?;
        relay.says("fault").await?;
        proxy.lose_answer_to(COMMIT);
        relay.tell("go").await?;
        s.settled().await?;
        let before = s.tables().everything().await?;
        proxy.cut();
        proxy.resume();
        relay.says(&format!("settled 0 lost {ORDERS}")).await?;
        assert_eq!(before, s.tables().everything().await?);
        relay.stop().await?;
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn database_refusing_connections_under_load_loses_nothing_and_needs_no_restart() -> Result<()> {
    scenario(async |s| {
        let url = s.relay("relay").database_url;
        let proxy = Proxy::before(&url).await?;
        let mut relay = start(&RelaySetup { database_url: proxy.url(&url), ..s.relay("relay") }).await?;
        for _ in 0..10 {
            s.commit_orders(100).await?;
        }
        proxy.refuse();
        sleep(Duration::from_secs(4)).await;
        let health = relay.ask("health").await?;
        ensure!(health.contains("store_available: false"), "{health}");
        proxy.resume();
        s.settled().await?;
        let health = relay.ask("health").await?;
        ensure!(health.contains("store_available: true"), "{health}");
        relay.stop().await?;
        s.explain_by_claims().await?;
        s.verify().await
    })
    .await
}

/// The server dies with transactions under way: which of them committed, only the rows can tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs RabbitMQ, and PostgreSQL that may be killed: run scripts/test.sh"]
async fn alone_database_killed_under_load_loses_nothing_and_needs_no_restart() -> Result<()> {
    scenario(async |s| {
        let relay = start(&s.relay("relay")).await?;
        let load = async {
            loop {
                let some = orders(20)?;
                if s.commit(&some).await.is_err() {
                    return anyhow::Ok(ids(&some));
                }
            }
        };
        let outage = async {
            until("work under way", LIMIT, async || Ok((s.tables().count(2).await? > 500).then_some(())))
                .await?;
            services_ctl("kill", "pg").await
        };
        let broken = tokio::try_join!(load, outage);
        services_ctl("start", "pg").await?;
        let (unknown, ()) = broken?;
        let rows = until("the database answers", LIMIT, async || Ok(s.tables().rows().await.ok())).await?;
        s.ledger().committed(rows.into_iter().map(|row| row.msg_id).filter(|id| unknown.contains(id)));
        s.commit_orders(100).await?;
        s.settled().await?;
        relay.stop().await?;
        s.explain_by_claims().await?;
        s.verify().await
    })
    .await
}
