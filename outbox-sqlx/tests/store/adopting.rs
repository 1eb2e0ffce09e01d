//! Tables of PostgreSQL that are looser than they should be.

use chrono::TimeDelta;
use outbox_core::{OutboxStore, Status};
use sqlx::Postgres;

use crate::harness::{Env, confirmed, ids, request, row, settle};
use crate::on_postgres;

on_postgres!(
    columns_that_may_be_null_are_filled_and_get_their_defaults,
    times_of_any_precision_become_universal,
    msg_id_becomes_unique,
    pending_rows_that_violate_a_check_fail_and_the_others_go_on,
    checks_that_all_rows_pass_are_valid,
);

/// Nothing is NOT NULL, nothing has a default, nothing is unique.
async fn loose_table(env: &Env<Postgres>) {
    env.exec(
        "CREATE TABLE {t} (id bigserial PRIMARY KEY, msg_id varchar(64), biz_type varchar(32), biz_id varchar(64),
            payload jsonb, status smallint, retry_count integer, next_retry_time timestamp(6),
            created_at timestamp(3) without time zone, sent_at timestamp(0))",
    )
    .await
    .unwrap();
}

async fn insert(env: &Env<Postgres>, values: &str) {
    let columns = "msg_id, biz_type, biz_id, payload, status, next_retry_time, sent_at";
    env.exec(&format!("INSERT INTO {{t}} ({columns}) VALUES {values}")).await.unwrap();
}

async fn columns_that_may_be_null_are_filled_and_get_their_defaults(env: Env<Postgres>) {
    loose_table(&env).await;
    insert(&env, "('bare', 'a', 'b', '1', NULL, NULL, NULL)").await;
    let store = env.real_time_store();
    store.migrate().await.unwrap();
    let claimed = store.claim(&request(9)).await.unwrap();
    assert_eq!(ids(&claimed), ["bare"]);
    assert!(store.clock().now() - claimed[0].message.created_at().unwrap() < TimeDelta::minutes(1));
    settle(&store, &claimed, &confirmed(&[])).await;
    env.exec("INSERT INTO {t} (msg_id, biz_type, biz_id, payload) VALUES ('next', 'a', 'b', '1')")
        .await
        .unwrap();
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["next"]);
    for column in ["status", "retry_count", "next_retry_time", "created_at"] {
        assert!(env.exec(&format!("UPDATE {{t}} SET {column} = NULL")).await.is_err(), "{column}");
    }
}

async fn times_of_any_precision_become_universal(env: Env<Postgres>) {
    loose_table(&env).await;
    insert(&env, "('sent', 'a', 'b', '1', 1, now(), now() at time zone current_setting('log_timezone'))")
        .await;
    let store = env.real_time_store();
    store.migrate().await.unwrap();
    let age = store.clock().now() - row(&store, "sent").await.sent_at.unwrap();
    assert!(age.abs() < TimeDelta::minutes(1), "{age}");
    let kinds = "SELECT string_agg(DISTINCT data_type, ' ') FROM information_schema.columns
         WHERE table_name = '{t}' AND data_type LIKE 'timestamp%'";
    assert_eq!(env.text(kinds).await.as_deref(), Some("timestamp with time zone"));
}

async fn msg_id_becomes_unique(env: Env<Postgres>) {
    loose_table(&env).await;
    // Neither makes msg_id unique.
    env.exec(
        "CREATE UNIQUE INDEX ON {t} (msg_id, biz_id); CREATE UNIQUE INDEX ON {t} (msg_id) WHERE status = 1",
    )
    .await
    .unwrap();
    insert(&env, "('m', 'a', 'b', '1', 0, now(), NULL)").await;
    let store = env.real_time_store();
    let constraints =
        "SELECT count(*)::text FROM pg_constraint WHERE conrelid = '{t}'::regclass AND contype = 'u'";
    for _ in 0..2 {
        store.migrate().await.unwrap();
        assert_eq!(env.text(constraints).await.as_deref(), Some("1"));
    }
    let again = "INSERT INTO {t} (msg_id, biz_type, biz_id, payload) VALUES ('m', 'a', 'c', '1')";
    assert!(env.exec(again).await.is_err());
}

async fn pending_rows_that_violate_a_check_fail_and_the_others_go_on(env: Env<Postgres>) {
    loose_table(&env).await;
    insert(&env, "('empty', 'a', 'b', NULL, 0, now(), NULL), ('good', 'a', 'b', '1', 0, now(), NULL)").await;
    insert(&env, "('odd', 'a', 'b', '1', 7, now(), NULL), ('old', 'a', 'b', NULL, 1, now(), now())").await;
    let store = env.real_time_store();
    store.migrate().await.unwrap();
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["good"]);
    let empty = row(&store, "empty").await;
    assert_eq!(empty.status, Status::Failed);
    assert!(empty.last_error.is_some_and(|error| error.contains("_one_payload")));
    assert_eq!(row(&store, "old").await.status, Status::Sent);

    env.exec("UPDATE {t} SET payload = '2' WHERE msg_id = 'empty'").await.unwrap();
    store.requeue(empty.id, 0).await.unwrap();
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["empty"]);
    store.migrate().await.unwrap();
}

async fn checks_that_all_rows_pass_are_valid(env: Env<Postgres>) {
    loose_table(&env).await;
    insert(&env, "('m', 'a', 'b', '1', 0, now(), NULL)").await;
    env.real_time_store().migrate().await.unwrap();
    let valid = "SELECT count(*)::text FROM pg_constraint
         WHERE conrelid = '{t}'::regclass AND contype = 'c' AND convalidated";
    assert_eq!(env.text(valid).await.as_deref(), Some("4"));
}
