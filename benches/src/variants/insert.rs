use anyhow::Result;
use async_trait::async_trait;

use crate::case::Case;
use crate::stopwatch::{Sample, Stopwatch};
use crate::table::{Shape, Table};
use crate::variant::Variant;

/// Writing to the article's table by hand: so many rows in each transaction, one connection.
pub(crate) struct Insert {
    pub(crate) rows: usize,
}

#[async_trait]
impl Variant for Insert {
    fn name(&self) -> &'static str {
        if self.rows == 1 { "insert-1" } else { "insert-100" }
    }

    fn about(&self) -> &'static str {
        "plain INSERTs into the article's table, 1 or 100 rows a transaction, one connection"
    }

    fn publishes(&self) -> bool {
        false
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let count = if self.rows == 1 { case.few() } else { case.many() };
        let messages = case.messages("order.created", count)?;
        let table = Table::create(case.ground, Shape::Article).await?;
        let mut connection = case.pool().acquire().await?;
        let stopwatch = Stopwatch::start();
        for chunk in messages.chunks(self.rows) {
            let mut tx = sqlx::Connection::begin(&mut *connection).await?;
            table.insert(&mut tx, chunk).await?;
            tx.commit().await?;
        }
        let sample = stopwatch.stop(count);
        table.verify(0, count).await?;
        Ok(sample)
    }
}
