use chrono::TimeDelta;
use outbox_core::{OutboxStore, Status, StoreErrorKind};
use outbox_sqlx::SqliteStore;
use sqlx::Sqlite;
use sqlx::sqlite::SqlitePoolOptions;

use crate::harness::{
    Env, TestDb, confirmed, ids, message, messages, request, row, run, settle, sqlite_file, sqlite_options,
};
use crate::on_every_database;

on_every_database!(
    migrating_again_changes_nothing,
    eight_migrations_at_once,
    without_tables_the_error_says_what_to_do,
    the_articles_table_is_adopted_with_its_rows,
    eight_adoptions_at_once,
    a_keyword_or_capitals_can_be_the_name,
);

async fn migrating_again_changes_nothing<DB: TestDb>(env: Env<DB>) {
    let store = env.migrated().await;
    env.commit(&store, &messages(2)).await;
    let claimed = store.claim(&request(1)).await.unwrap();
    store.migrate().await.unwrap();
    env.real_time_store().migrate().await.unwrap();
    assert_eq!(settle(&store, &claimed, &confirmed(&[])).await.applied, 1);
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["m1"]);
}

async fn migrate_eight_times<DB: TestDb>(env: &Env<DB>) {
    let migrations: Vec<_> = (0..8)
        .map(|_| {
            let store = env.store();
            tokio::spawn(async move { store.migrate().await })
        })
        .collect();
    for migration in migrations {
        migration.await.unwrap().unwrap();
    }
}

async fn eight_migrations_at_once<DB: TestDb>(env: Env<DB>) {
    migrate_eight_times(&env).await;
    let store = env.store();
    env.commit(&store, &messages(1)).await;
    assert_eq!(store.claim(&request(9)).await.unwrap().len(), 1);
}

async fn without_tables_the_error_says_what_to_do<DB: TestDb>(env: Env<DB>) {
    let store = env.store();
    let mut tx = env.begin().await;
    let enqueue = outbox_core::Enqueue::enqueue(&store, &mut tx, &messages(1)).await.unwrap_err();
    drop(tx);
    let claim = store.claim(&request(1)).await.unwrap_err();
    env.exec(&DB::article_table("{t}")).await.unwrap();
    let columns = store.claim(&request(1)).await.unwrap_err();
    for error in [enqueue, claim, columns] {
        assert_eq!(error.kind(), StoreErrorKind::Schema, "{error}");
        assert!(error.to_string().contains("migrate()"), "{error}");
    }
}

/// Four rows as the article's code leaves them: untouched, in backoff, sent, failed.
async fn article_rows<DB: TestDb>(env: &Env<DB>) {
    env.exec(&DB::article_table("{t}")).await.unwrap();
    let (now, later) = match DB::NAME {
        "SQLite" => ("CURRENT_TIMESTAMP", "datetime('now', '+5 minutes')"),
        "MySQL" => ("now()", "now() + INTERVAL 5 MINUTE"),
        _ => ("now()", "now() + interval '5 minutes'"),
    };
    env.exec(&format!(
        "INSERT INTO {{t}} (msg_id, biz_type, biz_id, payload) VALUES ('new', 'order.created', 'A-1', '{{\"n\": 1}}');
         INSERT INTO {{t}} (msg_id, biz_type, biz_id, payload, retry_count, next_retry_time)
            VALUES ('waiting', 'order.created', 'A-2', '2', 1, {later});
         INSERT INTO {{t}} (msg_id, biz_type, biz_id, payload, status, sent_at)
            VALUES ('sent', 'order.created', 'A-3', '3', 1, {now});
         INSERT INTO {{t}} (msg_id, biz_type, biz_id, payload, status, retry_count)
            VALUES ('failed', 'order.created', 'A-4', '4', 9, 5)"
    ))
    .await
    .unwrap();
}

async fn the_articles_table_is_adopted_with_its_rows<DB: TestDb>(env: Env<DB>) {
    article_rows(&env).await;
    let store = env.real_time_store();
    store.migrate().await.unwrap();

    let (waiting, sent, failed) =
        (row(&store, "waiting").await, row(&store, "sent").await, row(&store, "failed").await);
    assert_eq!((waiting.status, waiting.retry_count), (Status::Pending, 1));
    assert_eq!((failed.status, failed.retry_count), (Status::Failed, 5));
    let age = store.clock().now() - sent.sent_at.unwrap();
    assert!(sent.status == Status::Sent && age.abs() < TimeDelta::minutes(1), "{age}");
    let wait = waiting.next_retry_time - store.clock().now();
    assert!(wait < TimeDelta::minutes(6), "{wait}");

    let claimed = store.claim(&request(9)).await.unwrap();
    assert!(ids(&claimed).contains(&"new"));
    let age = store.clock().now() - claimed[0].message.created_at().unwrap();
    assert!(age.abs() < TimeDelta::minutes(1), "{age}");
    settle(&store, &claimed, &confirmed(&[])).await;

    // The old code can go on writing, and what the article's widths forbade fits now.
    env.exec("INSERT INTO {t} (msg_id, biz_type, biz_id, payload) VALUES ('old', 'a', 'b', '1')")
        .await
        .unwrap();
    let wide = outbox_core::Message::binary("t".repeat(128), "b".repeat(255), vec![0]).unwrap();
    env.commit(&store, &[wide.with_msg_id("wide").unwrap()]).await;
    assert_eq!(ids(&store.claim(&request(9)).await.unwrap()), ["old", "wide"]);
    // Numbers go on, so that no id is given twice.
    assert!(row(&store, "old").await.id > failed.id);
    assert!(env.exec("INSERT INTO {t} (msg_id, biz_type, biz_id) VALUES ('y', 'a', 'b')").await.is_err());
}

async fn eight_adoptions_at_once<DB: TestDb>(env: Env<DB>) {
    article_rows(&env).await;
    migrate_eight_times(&env).await;
    assert_eq!(env.text("SELECT CAST(count(*) AS TEXT) FROM {t}").await.as_deref(), Some("4"));
    assert!(ids(&env.real_time_store().claim(&request(9)).await.unwrap()).contains(&"new"));
}

async fn a_keyword_or_capitals_can_be_the_name<DB: TestDb>(env: Env<DB>) {
    let schema = if DB::NAME == "SQLite" { "main" } else { "pg_temp" };
    if DB::NAME == "SQLite" {
        let store = env.store().with_table(&format!("{schema}.Select")).unwrap();
        store.migrate().await.unwrap();
        store.migrate().await.unwrap();
        env.commit(&store, &[message("m")]).await;
        assert_eq!(store.claim(&request(9)).await.unwrap().len(), 1);
    }
    assert!(env.store().with_table("a\"b").is_err());
}

#[tokio::test]
async fn sqlite_does_not_adopt_a_table_that_others_refer_to() {
    run::<Sqlite, _>(referred_to).await;
}

async fn referred_to(env: Env<Sqlite>) {
    env.exec(&Sqlite::article_table(&env.table)).await.unwrap();
    env.exec("INSERT INTO {t} (msg_id, biz_type, biz_id, payload) VALUES ('m', 'a', 'b', '{}')")
        .await
        .unwrap();
    env.exec("CREATE TABLE note (of INTEGER REFERENCES {t} (id) ON DELETE CASCADE)").await.unwrap();
    env.exec("INSERT INTO note SELECT id FROM {t}").await.unwrap();
    let error = env.store().migrate().await.unwrap_err();
    assert!(error.to_string().contains("\"note\"") && error.to_string().contains("foreign_keys"), "{error}");

    let lax = sqlite_options(&sqlite_file(&env.table)).foreign_keys(false);
    let pool = SqlitePoolOptions::new().connect_with(lax).await.unwrap();
    SqliteStore::new(pool.clone()).with_table(&env.table).unwrap().migrate().await.unwrap();
    pool.close().await;
    let joined = env.texts("SELECT msg_id FROM note JOIN {t} ON id = of").await;
    assert_eq!(joined, [Some("m".to_owned())]);
    assert!(env.exec("INSERT INTO note VALUES (77)").await.is_err(), "still a foreign key of the new table");
    env.store().migrate().await.unwrap();
}
