//! Not a check but a measurement: `cargo test -p outbox-sqlx --release -- --ignored --nocapture throughput`.

use std::time::Instant;

use outbox_core::{Enqueue, Message, OutboxStore, Policies, Policy};
use outbox_sqlx::SqlStore;
use sqlx::{MySql, Postgres, Sqlite};

use crate::harness::{Env, TestDb, confirmed, request, run, settle};

const ROWS: usize = 40_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn throughput_on_sqlite() {
    run::<Sqlite, _>(measure).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement; needs PostgreSQL: run scripts/test.sh"]
async fn throughput_on_postgres() {
    run::<Postgres, _>(measure).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement; needs MariaDB or MySQL: run scripts/test.sh"]
async fn throughput_on_mysql() {
    run::<MySql, _>(measure).await;
}

async fn measure<DB: TestDb>(env: Env<DB>) {
    env.migrated().await;
    let store = env.real_time_store();
    for batch in [1, 100, 1_000] {
        enqueue(&env, &store, batch).await;
    }
    drain(&store, "nobody decided, nothing required", 500, &[]).await;
    let decided = env.real_time_store().with_policies(Policies::default());
    for batch in [100, 500, 1_000] {
        fill(&env, &decided).await;
        drain(&store, "nothing required", batch, &[]).await;
    }
    let groups = Policy::default().with_required_groups(["inventory", "points"]);
    let two = env.real_time_store().with_policies(Policies::new(groups));
    fill(&env, &two).await;
    drain(&store, "two groups required", 500, &["inventory", "points"]).await;
    fill(&env, &store).await;
    drain(&store, "nobody decided, two groups required", 500, &["inventory", "points"]).await;
}

async fn fill<DB: TestDb>(env: &Env<DB>, store: &SqlStore<DB>) {
    for _ in 0..ROWS / 1_000 {
        env.commit(store, &orders(1_000)).await;
    }
}

async fn enqueue<DB: TestDb>(env: &Env<DB>, store: &SqlStore<DB>, batch: usize) {
    let transactions = if batch == 1 { 2_000 } else { ROWS / batch / 2 };
    let start = Instant::now();
    for _ in 0..transactions {
        let mut tx = env.begin().await;
        store.enqueue(&mut tx, &orders(batch)).await.unwrap();
        tx.commit().await.unwrap();
    }
    report(&format!("enqueue, {batch} a transaction"), transactions * batch, start);
}

async fn drain<DB: TestDb>(store: &SqlStore<DB>, what: &str, batch: usize, groups: &[&str]) {
    let (mut rows, start) = (0, Instant::now());
    loop {
        let claimed = store.claim(&request(batch)).await.unwrap();
        if claimed.is_empty() {
            break;
        }
        rows += settle(store, &claimed, &confirmed(groups)).await.applied;
    }
    report(&format!("claim and settle, batch {batch}, {what}"), rows, start);
}

fn report(what: &str, rows: usize, start: Instant) {
    let per_second = rows as f64 / start.elapsed().as_secs_f64();
    println!("{what}: {rows} rows, {per_second:.0} rows/s");
}

fn orders(count: usize) -> Vec<Message> {
    let payload = serde_json::json!({"orderNo": "A-1001", "amount": 990, "note": "x".repeat(250)});
    (0..count).map(|_| Message::json("order.created", "A-1001", &payload).unwrap()).collect()
}
