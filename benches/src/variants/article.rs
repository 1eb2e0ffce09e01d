use anyhow::Result;
use async_trait::async_trait;
use lapin::Channel;
use sqlx::postgres::PgConnection;

use super::wire::{self, Outgoing};
use crate::case::Case;
use crate::stopwatch::{Sample, Stopwatch};
use crate::table::{Shape, Table};
use crate::variant::Variant;

/// The article's loop, to the letter but for the 30 s that it rests between scans: take one row by
/// compare-and-set, publish it, wait for the confirm, mark it.
pub(crate) struct Article;

const SCAN: &str = "SELECT id, msg_id, biz_type, payload::text AS payload FROM {table}
    WHERE status = 0 AND next_retry_time <= now() LIMIT 100";
const CAS: &str = "UPDATE {table} SET status = 1, sent_at = now() WHERE id = $1 AND status = 0";
const MARK: &str = "UPDATE {table} SET status = 1, sent_at = now() WHERE id = $1";

#[async_trait]
impl Variant for Article {
    fn name(&self) -> &'static str {
        "article"
    }

    fn about(&self) -> &'static str {
        "the article's loop: one row at a time, compare-and-set, publish, confirm, mark"
    }

    fn publishes(&self) -> bool {
        true
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let (queue, count) = (case.queue().await?, case.few());
        let table = case.filled_table(Shape::Article, queue.name(), count).await?;
        let channel = case.ground.confirming_channel().await?;
        let mut connection = case.pool().acquire().await?;
        let stopwatch = Stopwatch::start();
        while scan_and_send(&table, &mut connection, &channel).await? > 0 {}
        let sample = stopwatch.stop(count);
        table.verify(1, count).await?;
        queue.verify(count).await?;
        Ok(sample)
    }
}

async fn scan_and_send(table: &Table, connection: &mut PgConnection, channel: &Channel) -> Result<usize> {
    let pending: Vec<Outgoing> = sqlx::query_as(table.sql(SCAN)).fetch_all(&mut *connection).await?;
    for message in &pending {
        let taken = sqlx::query(table.sql(CAS)).bind(message.id).execute(&mut *connection).await?;
        if taken.rows_affected() == 0 {
            continue;
        }
        wire::confirmed(wire::send(channel, message).await?).await?;
        sqlx::query(table.sql(MARK)).bind(message.id).execute(&mut *connection).await?;
    }
    Ok(pending.len())
}
