use std::sync::Arc;

use outbox_core::conformance::{Setup, StoreFixture};
use outbox_core::{Enqueue, Message, StoreError, StoreErrorKind, Timestamp};
use outbox_sqlx::SqlStore;
use sqlx::{MySql, Pool, Postgres, Sqlite, Transaction};

use crate::harness::{Env, TestDb, table_name};

outbox_core::store_suite!(sqlite, Fixture::<Sqlite>::new);
outbox_core::store_suite!(
    #[ignore = "needs PostgreSQL: run scripts/test.sh"]
    postgres,
    Fixture::<Postgres>::new
);
outbox_core::store_suite!(
    #[ignore = "needs MariaDB or MySQL: run scripts/test.sh"]
    mysql,
    Fixture::<MySql>::new
);

struct Fixture<DB: TestDb> {
    env: Env<DB>,
    store: Arc<SqlStore<DB>>,
    other: Arc<SqlStore<DB>>,
}

impl<DB: TestDb> Fixture<DB> {
    async fn new(setup: Setup) -> Self {
        let table = table_name();
        let env = Env { pool: DB::connect(&table).await, table, clock: setup.clock };
        let store = |pool: Pool<DB>| {
            let store = SqlStore::new(pool).with_table(&env.table).unwrap().with_clock(env.clock.clone());
            Arc::new(store.with_policies(setup.policies.clone()).with_limits(setup.limits))
        };
        let (store, other) = (store(env.pool.clone()), store(DB::connect(&env.table).await));
        store.migrate().await.unwrap();
        Self { env, store, other }
    }
}

impl<DB: TestDb> StoreFixture for Fixture<DB> {
    type Store = SqlStore<DB>;
    type Tx = Transaction<'static, DB>;
    const CONCURRENT_WRITERS: bool = DB::CONCURRENT_WRITERS;

    fn store(&self) -> Arc<SqlStore<DB>> {
        Arc::clone(&self.store)
    }

    fn other(&self) -> Arc<SqlStore<DB>> {
        Arc::clone(&self.other)
    }

    async fn begin(&self) -> Self::Tx {
        self.env.begin().await
    }

    async fn commit(&self, tx: Self::Tx) -> Result<(), StoreError> {
        let failed = |error| StoreError::new(StoreErrorKind::Other, "the commit failed").with_source(error);
        tx.commit().await.map_err(|error: sqlx::Error| failed(error))
    }

    async fn rollback(&self, tx: Self::Tx) {
        tx.rollback().await.unwrap();
    }

    async fn enqueue_outside(&self, message: &Message) -> Option<Result<(), StoreError>> {
        let mut connection = self.env.pool.acquire().await.unwrap();
        Some(self.store.enqueue(&mut connection, std::slice::from_ref(message)).await)
    }

    async fn insert_undecided(&self, message: &Message, now: Timestamp) {
        let (msg_id, biz_type, biz_id) = (message.msg_id(), message.biz_type(), message.biz_id());
        let payload: serde_json::Value = message.decode().unwrap();
        let now = now.format("%Y-%m-%d %H:%M:%S%.6f");
        let sql = format!(
            "INSERT INTO {{t}} (msg_id, biz_type, biz_id, payload, next_retry_time, created_at)
             VALUES ('{msg_id}', '{biz_type}', '{biz_id}', '{payload}', '{now}', '{now}')"
        );
        self.env.exec(&sql).await.unwrap();
    }

    async fn cleanup(self) {
        self.other.pool().close().await;
        DB::clean(&self.env.pool, &self.env.table).await;
    }
}
