//! Time zones other than UTC, and hosts whose clocks are wrong: due times and leases are the database's.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use outbox_core::{Enqueue, OutboxStore};
use outbox_tests::{
    FaultPoint, Place, Process, RelaySetup, Scenario, Step, ids, messages, orders, psql, scenario,
    with_clock_off,
};

use crate::{RELAY_PROCESS, start};

const ORDERS: usize = 20;
/// How late a relay may be on a busy machine; far less than any error of a clock that is tested here.
const LATE: TimeDelta = TimeDelta::seconds(10);

/// The article's table, word for word.
const ARTICLE: &str = "
    CREATE TABLE biz_outbox (
        id             BIGSERIAL PRIMARY KEY,
        msg_id         VARCHAR(64)  NOT NULL UNIQUE,
        biz_type       VARCHAR(32)  NOT NULL,
        biz_id         VARCHAR(64)  NOT NULL,
        payload        JSONB        NOT NULL,
        status         SMALLINT     NOT NULL DEFAULT 0,
        retry_count    INT          NOT NULL DEFAULT 0,
        next_retry_time TIMESTAMP   NOT NULL DEFAULT now(),
        created_at     TIMESTAMP    NOT NULL DEFAULT now(),
        sent_at        TIMESTAMP
    );
    CREATE INDEX idx_outbox_status_time ON biz_outbox (status, next_retry_time);
";

/// Written as a server in this zone writes it.
fn old_row(zone: &str) -> String {
    format!(
        "{ARTICLE} SET TimeZone TO '{zone}';
        INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload) VALUES ('old', 'order.created', 'A-0', '{{}}');
        SET TimeZone TO 'UTC';"
    )
}

/// The first claim of a message.
fn first_claim<'a>(steps: &'a [Step], id: &str) -> Result<&'a Step> {
    steps.iter().find(|step| step.msg_id == id && step.claim_token.is_some()).context("a claim")
}

/// A relay takes what is due at `due`: not before, and not much later.
async fn due_at(s: &Scenario, id: &str, due: DateTime<Utc>) -> Result<()> {
    let late = first_claim(&s.steps().await?, id)?.at - due;
    ensure!(late >= TimeDelta::zero() && late < LATE, "{id} was claimed {late} after it was due");
    Ok(())
}

/// A victim that dies with claims in its hands, and an heir that is started at once: it takes over when the
/// lease has run out, not before and not much later.
async fn leases_hold(
    s: &Scenario,
    victim: Process,
    heir: impl Future<Output = Result<Process>>,
) -> Result<()> {
    let ids = s.commit_orders(ORDERS).await?;
    victim.says("fault").await?;
    victim.kill().await?;
    let heir = heir.await?;
    s.settled().await?;
    heir.stop().await?;
    let steps = s.steps().await?;
    for id in &ids {
        let claims: Vec<_> =
            steps.iter().filter(|step| step.msg_id == *id && step.claim_token.is_some()).collect();
        ensure!(claims.len() == 2, "{id} was claimed {} times", claims.len());
        let late = claims[1].at - claims[0].lease_until.context("a lease")?;
        ensure!(late >= TimeDelta::zero() && late < LATE, "{id} was taken over {late} after the lease");
        ensure!(claims[1].next_retry_time == claims[0].next_retry_time, "taking over is no retry");
    }
    Ok(())
}

/// An attempt that fails at `at` comes back a step later.
async fn retries_hold(s: &Scenario, relay: Process, step: Duration) -> Result<()> {
    let lost = messages("nobody.listens", 1)?;
    s.commit(&lost).await?;
    s.ledger().failed(ids(&lost));
    s.settled().await?;
    relay.stop().await?;
    let steps = s.steps().await?;
    let charged = steps.iter().find(|step| step.msg_id == lost[0].msg_id() && step.retry_count == 1);
    let charged = charged.context("a failed attempt")?;
    let error = (charged.next_retry_time - charged.at - TimeDelta::from_std(step)?).abs();
    ensure!(error < TimeDelta::milliseconds(150), "the retry is off by {error}");
    Ok(())
}

/// Everything that has to do with time, in a database in `zone`, with sessions in other zones.
async fn zones_do_not_matter(zone: &str) -> Result<()> {
    Scenario::run(Place::database(zone).await?, "", async |s| {
        let tokyo = |setup| RelaySetup { time_zone: Some("Asia/Tokyo".into()), ..setup };
        let relay = start(&tokyo(s.relay("relay"))).await?;
        ensure!(psql(s.place().url(), "SHOW TimeZone").await? == zone, "psql has the zone of the database");
        let insert = "INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload) VALUES ('psql', 'order.created', 'A', '1')";
        psql(s.place().url(), insert).await?;
        s.ledger().committed(["psql"]);
        let due = s.store().clock().now() + Duration::from_secs(2);
        let later = [orders(1)?.remove(0).with_deliver_after(due)];
        let mut tx = s.pool().begin().await?;
        sqlx::query("SET LOCAL TimeZone TO 'America/St_Johns'").execute(&mut *tx).await?;
        s.store().enqueue(&mut tx, &later).await?;
        tx.commit().await?;
        s.ledger().committed(ids(&later));
        s.settled().await?;
        relay.stop().await?;
        let born = s.steps().await?.into_iter().find(|step| step.msg_id == "psql").context("psql's row")?;
        due_at(s, "psql", born.at).await?;
        due_at(s, later[0].msg_id(), due).await?;
        let victim = RelaySetup { fault: Some(FaultPoint::AfterClaim), ..s.relay("victim") };
        let victim = start(&victim).await?;
        leases_hold(s, victim, start(&tokyo(s.relay("heir")))).await?;
        let step = Duration::from_secs(1);
        let setup = RelaySetup { retry_steps: vec![step], max_attempts: 2, ..s.relay("relay") };
        retries_hold(s, start(&tokyo(setup)).await?, step).await?;
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn time_zone_of_the_server_behind_utc_moves_no_due_time_and_no_lease() -> Result<()> {
    zones_do_not_matter("America/New_York").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn time_zone_of_the_server_ahead_of_utc_moves_no_due_time_and_no_lease() -> Result<()> {
    zones_do_not_matter("Asia/Kolkata").await
}

/// A table that was filled in local time, in a database whose zone is `zone`.
async fn adopted_in(zone: &str) -> Result<()> {
    Scenario::run(Place::database(zone).await?, &old_row(zone), async |s| {
        s.ledger().committed(["old", "new", "later"]);
        let relay = s.relay("relay").start_here().await?;
        psql(
            s.place().url(),
            "INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload) VALUES ('new', 'order.created', 'A-1', '{}');
             INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload, next_retry_time)
             VALUES ('later', 'order.created', 'A-2', '{}', now() + interval '2 s')",
        )
        .await?;
        s.settled().await?;
        relay.stop().await?;
        let steps = s.steps().await?;
        let born = |id| steps.iter().find(|step| step.msg_id == id).context("its first step");
        due_at(s, "old", born("old")?.at).await?;
        due_at(s, "new", born("new")?.at).await?;
        due_at(s, "later", born("later")?.next_retry_time).await?;
        let wait = born("later")?.next_retry_time - born("later")?.at;
        ensure!((wait - TimeDelta::seconds(2)).abs() < TimeDelta::milliseconds(150), "psql asked for 2 s, not {wait}");
        let age: f64 = sqlx::query_scalar(
            "SELECT max(abs(extract(epoch FROM clock_timestamp() - created_at)))::float8 FROM biz_outbox",
        )
        .fetch_one(s.pool())
        .await?;
        ensure!(age < 60.0, "a row seems to be {age} s old");
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn article_table_filled_in_a_time_zone_behind_utc_is_adopted_and_delivered() -> Result<()> {
    adopted_in("America/New_York").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn article_table_filled_in_a_time_zone_ahead_of_utc_is_adopted_and_delivered() -> Result<()> {
    adopted_in("Asia/Kolkata").await
}

/// Starts a relay whose host has a wrong clock.
async fn start_off(setup: &RelaySetup, offset: &str) -> Result<Process> {
    Process::spawn(with_clock_off(RELAY_PROCESS, offset).await?, setup).await
}

/// Commits one message that is due at once and one that is due in two seconds, in an application whose host has a
/// wrong clock; answers when the second is due.
async fn application_off(s: &Scenario, offset: &str) -> Result<(String, String, DateTime<Utc>)> {
    let mut command = with_clock_off(env!("CARGO_BIN_EXE_application-process"), offset).await?;
    let output = command.env("DATABASE_URL", s.place().url_as("application")).output().await?;
    ensure!(output.status.success(), "application: {}", String::from_utf8_lossy(&output.stderr));
    let line = String::from_utf8(output.stdout)?;
    let [clock, now, later, due] = line.split_whitespace().collect::<Vec<_>>()[..] else {
        anyhow::bail!("the application said {line:?}")
    };
    let off = (clock.parse::<i64>()? - Utc::now().timestamp()).abs();
    ensure!((3_500..3_700).contains(&off), "its clock is off by {off} s only");
    s.ledger().committed([now, later]);
    Ok((now.to_owned(), later.to_owned(), due.parse()?))
}

async fn clocks_do_not_matter(offset: &str) -> Result<()> {
    scenario(async |s| {
        let relay = start_off(&s.relay("relay"), offset).await?;
        let (now, later, due) = application_off(s, offset).await?;
        s.settled().await?;
        relay.stop().await?;
        let born = s.steps().await?.into_iter().find(|step| step.msg_id == now).context("its row")?;
        due_at(s, &now, born.at).await?;
        due_at(s, &later, due).await?;
        ensure!(
            (due - born.at - TimeDelta::seconds(2)).abs() < TimeDelta::seconds(1),
            "due {due}, born {}",
            born.at
        );
        let victim = RelaySetup { fault: Some(FaultPoint::AfterClaim), ..s.relay("victim") };
        leases_hold(s, start_off(&victim, offset).await?, start(&s.relay("heir"))).await?;
        leases_hold(s, start(&victim).await?, start_off(&s.relay("heir"), offset)).await?;
        let step = Duration::from_secs(1);
        let setup = RelaySetup { retry_steps: vec![step], max_attempts: 2, ..s.relay("relay") };
        retries_hold(s, start_off(&setup, offset).await?, step).await?;
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn clocks_of_application_and_relay_an_hour_ahead_move_no_due_time_and_no_lease() -> Result<()> {
    clocks_do_not_matter("+1h").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn clocks_of_application_and_relay_an_hour_behind_move_no_due_time_and_no_lease() -> Result<()> {
    clocks_do_not_matter("-1h").await
}
