use std::collections::BTreeMap;

use outbox_core::{Filter, Requeued, Row, RowId, Stats, Status, StoreError};

use crate::access::commit;
use crate::row::{Cells, row, row_columns};
use crate::sql::Sql;
use crate::store::{SqlDatabase, SqlStore};

impl<DB: SqlDatabase> SqlStore<DB> {
    pub(crate) async fn try_requeue(&self, id: RowId, claim_no: u64) -> Result<Requeued, StoreError> {
        let mut tx = self.db.begin_write().await?;
        let requeued = self.back_to_pending(id, claim_no).execute(&mut tx).await?;
        commit(tx).await?;
        Ok(if requeued == 1 { Requeued::Done } else { Requeued::Stale })
    }

    fn back_to_pending(&self, id: RowId, claim_no: u64) -> Sql<DB> {
        self.sql()
            .text(format!("UPDATE {} SET status = 0, retry_count = 0", self.names.outbox))
            .text(", claim_no = claim_no + 1, unsettled_claims = 0, ack_due = NULL, next_retry_time = ")
            .now()
            .text(" WHERE status = 9 AND id = ")
            .bind(id.0)
            .text(" AND claim_no = ")
            .bind(i64::try_from(claim_no).unwrap_or(i64::MAX))
    }

    pub(crate) async fn try_find(&self, filter: &Filter) -> Result<Vec<Row>, StoreError> {
        let mut tx = self.db.begin_read().await?;
        let rows = self.matching(filter).fetch(&mut tx).await?;
        commit(tx).await?;
        Ok(rows.iter().map(|found| row(&mut Cells::<DB>::of(found))).collect())
    }

    fn matching(&self, filter: &Filter) -> Sql<DB> {
        let after = filter.after.map_or(i64::MIN, |id| id.0);
        let mut sql = self.sql().text(format!("SELECT {} FROM {}", row_columns::<DB>(), self.names.outbox));
        sql = sql.text(" WHERE id > ").bind(after);
        if let Some(status) = filter.status {
            sql = sql.text(format!(" AND status = {}", status.code()));
        }
        let texts = [("msg_id", &filter.msg_id), ("biz_type", &filter.biz_type), ("biz_id", &filter.biz_id)];
        for (column, text) in texts {
            if let Some(text) = text {
                sql = sql.text(format!(" AND {column} = ")).bind(crate::sql::storable_text(text));
            }
        }
        sql.text(" ORDER BY id LIMIT ").bind(i64::try_from(filter.limit).unwrap_or(i64::MAX))
    }

    pub(crate) async fn try_stats(&self) -> Result<Stats, StoreError> {
        let mut tx = self.db.begin_read().await?;
        let counts = self.counts().fetch(&mut tx).await?;
        let oldest = self.oldest_due().fetch(&mut tx).await?;
        commit(tx).await?;
        let mut stats = Stats::default();
        if let Some(row) = counts.first() {
            stats.rows = by_status(&mut Cells::<DB>::of(row));
        }
        if let Some(row) = oldest.first() {
            let mut cells = Cells::<DB>::of(row);
            let ages = cells.time().zip(cells.time());
            stats.oldest_due = ages.and_then(|(due, now)| (now - due).to_std().ok());
        }
        Ok(stats)
    }

    /// Each from an index of its own; the completed rows are what is left of all.
    fn counts(&self) -> Sql<DB> {
        let count = |index: &str, condition: &str| {
            let hint = DB::by_index(&self.names.table, index);
            format!("(SELECT count(*) FROM {}{hint} WHERE {condition})", self.names.outbox)
        };
        self.sql()
            .text(format!("SELECT {}, ", count("_due", "status = 0")))
            .text(format!("{}, ", count("_overdue", "status = 1")))
            .text(format!("{}, ", count("_failed", "status = 9")))
            .text(format!("(SELECT count(*) FROM {})", self.names.outbox))
    }

    pub(crate) fn oldest_due(&self) -> Sql<DB> {
        let sql = self.sql().text("SELECT next_retry_time, ").now();
        sql.text(format!(" FROM {} WHERE status = 0 AND next_retry_time <= ", self.by_due()))
            .now()
            .text(" ORDER BY next_retry_time LIMIT 1")
    }
}

fn by_status<DB: SqlDatabase>(cells: &mut Cells<'_, DB>) -> BTreeMap<Status, u64> {
    let (pending, sent, failed, all): (u64, u64, u64, u64) =
        (cells.number(), cells.number(), cells.number(), cells.number());
    let completed = all.saturating_sub(pending + sent + failed);
    [
        (Status::Pending, pending),
        (Status::Sent, sent),
        (Status::Completed, completed),
        (Status::Failed, failed),
    ]
    .into()
}
