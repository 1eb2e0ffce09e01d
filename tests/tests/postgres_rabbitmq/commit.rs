use anyhow::{Context, Result};
use outbox_core::{Enqueue, Message};
use outbox_tests::{orders, psql, scenario};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn committed_messages_are_delivered_and_rolled_back_ones_never() -> Result<()> {
    scenario(async |s| {
        let relay = s.relay("relay").start_here().await?;
        s.roll_back_orders(20).await?;
        let ids = s.commit_orders(100).await?;
        let mut forgotten = s.pool().begin().await?;
        s.store().enqueue(&mut forgotten, &orders(20)?).await?;
        drop(forgotten);
        s.roll_back_orders(20).await?;
        s.delivered(&ids).await?;
        relay.stop().await?;
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn what_is_delivered_is_what_was_committed() -> Result<()> {
    scenario(async |s| {
        let relay = s.relay("relay").start_here().await?;
        let document = json!({"order": "A-1", "lines": [1, 2.5, null], "note": "größer \u{1f980} \"x\""});
        let order = Message::json("order.created", "A-1", &document)?.with_header("tenant", "acme")?;
        let image =
            Message::binary("order.label", "A-1", vec![0, 159, 146, 150])?.with_content_type("image/png")?;
        let ids = s.commit(&[order, image]).await?;
        s.delivered(&ids).await?;
        let order = s.deliveries().first(&ids[0]).context("the order")?;
        let image = s.deliveries().first(&ids[1]).context("the label")?;
        assert_eq!(serde_json::from_slice::<Value>(&order.body)?, document);
        assert_eq!(order.routing_key, "order.created");
        assert_eq!(order.properties.kind().as_ref().map(|kind| kind.as_str()), Some("order.created"));
        assert_eq!(
            order.properties.content_type().as_ref().map(|kind| kind.as_str()),
            Some("application/json")
        );
        assert_eq!(order.properties.delivery_mode(), &Some(2));
        let headers = order.properties.headers().clone().context("headers")?;
        let tenant = headers.inner().get("tenant").and_then(|value| value.as_long_string());
        assert_eq!(tenant.map(ToString::to_string), Some("acme".into()));
        assert_eq!(image.body, [0, 159, 146, 150]);
        assert_eq!(image.properties.content_type().as_ref().map(|kind| kind.as_str()), Some("image/png"));
        relay.stop().await?;
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn an_insert_of_only_the_articles_columns_from_psql_is_delivered() -> Result<()> {
    scenario(async |s| {
        let url = s.place().url();
        psql(
            url,
            r#"INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload)
               VALUES ('psql-1', 'order.created', 'A-1', '{"orderNo": "A-1"}')"#,
        )
        .await?;
        psql(
            url,
            r#"INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload, status, retry_count, next_retry_time,
                                       created_at, sent_at)
               VALUES ('psql-2', 'order.created', 'A-2', '{"orderNo": "A-2"}', 0, 0, now(), now(), NULL)"#,
        )
        .await?;
        psql(
            url,
            r#"BEGIN;
               INSERT INTO biz_outbox (msg_id, biz_type, biz_id, payload)
               VALUES ('psql-3', 'order.created', 'A-3', '{}');
               ROLLBACK"#,
        )
        .await?;
        let ids = ["psql-1".to_owned(), "psql-2".to_owned()];
        s.ledger().committed(ids.clone());
        let relay = s.relay("relay").start_here().await?;
        s.delivered(&ids).await?;
        let first = s.deliveries().first("psql-1").context("psql-1")?;
        assert_eq!(serde_json::from_slice::<Value>(&first.body)?, json!({"orderNo": "A-1"}));
        assert_eq!(first.routing_key, "order.created");
        relay.stop().await?;
        s.verify().await
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
async fn a_transaction_that_inserts_first_and_commits_last_is_not_skipped() -> Result<()> {
    scenario(async |s| {
        let relay = s.relay("relay").start_here().await?;
        let slow = orders(10)?;
        let mut tx = s.pool().begin().await?;
        s.store().enqueue(&mut tx, &slow).await?;
        let fast = s.commit_orders(10).await?;
        s.delivered(&fast).await?;
        s.settled().await?;
        tx.commit().await?;
        let slow = outbox_tests::ids(&slow);
        s.ledger().committed(&slow);
        s.delivered(&slow).await?;
        let rows = s.tables().rows().await?;
        let (first, last) = (&rows[0], &rows[rows.len() - 1]);
        assert!(
            slow.contains(&first.msg_id) && fast.contains(&last.msg_id),
            "the slow ones have smaller ids"
        );
        relay.stop().await?;
        s.verify().await
    })
    .await
}
