use anyhow::Result;
use async_trait::async_trait;
use outbox_core::Enqueue as _;

use crate::case::Case;
use crate::stopwatch::{Sample, Stopwatch};
use crate::variant::Variant;

/// The application's side: so many rows in each call and transaction, one connection.
pub(crate) struct Enqueue {
    pub(crate) rows: usize,
}

#[async_trait]
impl Variant for Enqueue {
    fn name(&self) -> &'static str {
        if self.rows == 1 { "enqueue-1" } else { "enqueue-100" }
    }

    fn about(&self) -> &'static str {
        "the framework's enqueue, 1 or 100 messages a call and transaction, one connection"
    }

    fn publishes(&self) -> bool {
        false
    }

    fn compared_with(&self) -> &'static [&'static str] {
        if self.rows == 1 { &["insert-1"] } else { &["insert-100"] }
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let count = if self.rows == 1 { case.few() } else { case.many() };
        let messages = case.messages("order.created", count)?;
        let (store, table) = case.outbox().await?;
        let mut connection = case.pool().acquire().await?;
        let stopwatch = Stopwatch::start();
        for chunk in messages.chunks(self.rows) {
            let mut tx = sqlx::Connection::begin(&mut *connection).await?;
            store.enqueue(&mut tx, chunk).await?;
            tx.commit().await?;
        }
        let sample = stopwatch.stop(count);
        table.verify(0, count).await?;
        Ok(sample)
    }
}
