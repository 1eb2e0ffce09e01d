use std::collections::{BTreeMap, BTreeSet, HashMap};

use outbox_core::state::RowState;
use outbox_core::{Receipt, ReceiptReport, StoreError, Timestamp};
use serde_json::Value;
use sqlx::Connection;

use crate::access::commit;
use crate::dialect::{Dialect, Member, Update};
use crate::error::store_error;
use crate::hearing::{HANDLED, Locked, REJECTED, Record, change, hear, kept};
use crate::refusal::{Refused, blames_a_row};
use crate::row::{Cells, groups, status, text};
use crate::sql::Sql;
use crate::store::{SqlDatabase, SqlStore};

/// Widths of the columns; a receipt past them belongs to no message and no group.
const MAX_MSG_ID: usize = 64;
const MAX_GROUP: usize = 255;

/// Whether the outbox's rows are written, or only what was said of them.
#[derive(Clone, Copy)]
enum Rows {
    Written,
    Left,
}

impl<DB: SqlDatabase> SqlStore<DB> {
    /// Locks the rows, lets the state machine decide, writes what has changed. Everything that touches the
    /// receipts of a row holds its lock, so that two receipts at once cannot each miss the other.
    pub(crate) async fn try_record_receipts(
        &self,
        receipts: &[Receipt],
    ) -> Result<ReceiptReport, StoreError> {
        let (receipts, odd): (Vec<&Receipt>, Vec<&Receipt>) =
            receipts.iter().partition(|receipt| fits(receipt));
        let report = ReceiptReport { unknown: odd.len(), ..ReceiptReport::default() };
        if receipts.is_empty() {
            return Ok(report);
        }
        let done = match self.record_together(&receipts).await {
            Err(error) if blames_a_row(&error) => self.record_one_by_one(&receipts).await?,
            done => done?,
        };
        Ok(sum(report, done))
    }

    async fn record_together(&self, receipts: &[&Receipt]) -> Result<ReceiptReport, StoreError> {
        let mut tx = self.db.begin_write().await?;
        let report = self.record(&mut tx, receipts, Rows::Written).await?;
        commit(tx).await?;
        Ok(report)
    }

    /// A row that cannot be updated stays as it is, but what was said of it is kept: the next receipt of the
    /// message, or a reconciler, makes it count. If not even that is possible, that is an error, after the others.
    async fn record_one_by_one(&self, receipts: &[&Receipt]) -> Result<ReceiptReport, StoreError> {
        let mut tx = self.db.begin_write().await?;
        let mut report = ReceiptReport::default();
        let (mut refused, mut lost) = (Refused::default(), Refused::default());
        for (msg_id, receipts) in by_message(receipts) {
            for (rows, refused) in [(Rows::Written, &mut refused), (Rows::Left, &mut lost)] {
                let mut savepoint = tx.begin().await.map_err(store_error::<DB>)?;
                let done = self.record(&mut savepoint, &receipts, rows).await;
                if let Some(done) = refused.end(savepoint, msg_id, done).await? {
                    report = sum(report, done);
                    break;
                }
            }
        }
        commit(tx).await?;
        refused.report(&self.names.outbox);
        lost.into_result().map(|()| report)
    }

    async fn record(
        &self,
        conn: &mut DB::Connection,
        receipts: &[&Receipt],
        write: Rows,
    ) -> Result<ReceiptReport, StoreError> {
        let mut report = ReceiptReport::default();
        let mut rows = self.lock_rows(conn, receipts).await?;
        let now = self.db.clock().now();
        let record = hear(receipts, &mut rows, now, &mut report);
        if !record.is_empty() {
            self.keep(&record).execute(conn).await?;
        }
        let changes: Vec<Value> = rows.values().filter_map(change).collect();
        match write {
            Rows::Written if !changes.is_empty() => _ = self.write_states(&changes).execute(conn).await?,
            Rows::Written => {}
            Rows::Left => report.completed = 0,
        }
        Ok(report)
    }

    async fn lock_rows(
        &self,
        conn: &mut DB::Connection,
        receipts: &[&Receipt],
    ) -> Result<HashMap<String, Locked>, StoreError> {
        let ids: BTreeSet<&str> = receipts.iter().map(|receipt| &*receipt.msg_id).collect();
        let rows = self.rows_of(&ids).fetch(conn).await?;
        let mut locked: HashMap<String, Locked> = rows.iter().map(read_row::<DB>).collect();
        for row in self.handled(&ids).fetch(conn).await? {
            let mut cells = Cells::<DB>::of(&row);
            let (msg_id, group) = (cells.text().unwrap_or_default(), cells.text().unwrap_or_default());
            if let Some(row) = locked.get_mut(&msg_id) {
                row.found.receipts.insert(group);
            }
        }
        locked.values_mut().for_each(|row| row.state = row.found.clone());
        Ok(locked)
    }

    /// In the order of their ids, so that two batches cannot lock each other out.
    pub(crate) fn rows_of(&self, ids: &BTreeSet<&str>) -> Sql<DB> {
        self.sql()
            .text(format!("SELECT id, msg_id, status, claim_no, {}", text::<DB>("required_groups")))
            .text(format!(" FROM {} WHERE msg_id", self.names.outbox))
            .among_texts(ids.iter().map(|id| (*id).to_owned()))
            .text(" ORDER BY id")
            .text(DB::FOR_UPDATE)
    }

    pub(crate) fn handled(&self, ids: &BTreeSet<&str>) -> Sql<DB> {
        self.sql()
            .text(format!("SELECT msg_id, consumer_group FROM {}", self.names.receipts))
            .text(format!(" WHERE verdict = '{HANDLED}' AND msg_id"))
            .among_texts(ids.iter().map(|id| (*id).to_owned()))
    }

    /// A group that has handled a message stays so; one that has rejected it may yet handle it.
    fn keep(&self, record: &Record<'_>) -> Sql<DB> {
        let rows: Vec<Value> = record.values().map(|receipt| kept(receipt)).collect();
        let members = [
            Member::Text("msg_id"),
            Member::Text("consumer_group"),
            Member::Int("claim_no"),
            Member::Text("verdict"),
            Member::Text("reason"),
        ];
        let receipts = &self.names.receipts;
        let (begin, end) = DB::or_replace(receipts, "msg_id, consumer_group", REJECTED);
        self.sql()
            .text(format!("INSERT INTO {receipts}{begin}"))
            .text(" (msg_id, consumer_group, claim_no, verdict, reason, received_at)")
            .text(" SELECT s.msg_id, s.consumer_group, s.claim_no, s.verdict, s.reason, ")
            .now()
            .text(" FROM ")
            .json_rows(&rows, &members)
            .text(end)
    }

    pub(crate) fn write_states(&self, changes: &[Value]) -> Sql<DB> {
        const ENDED: &str = "s.new_status IN (2, 9) AND t.status <> s.new_status";
        let members =
            [Member::Int("id"), Member::Int("new_status"), Member::Int("received"), Member::Text("error")];
        let set = |sql: Sql<DB>| {
            sql.text("received_count = s.received")
                .text(format!(", claim_token = CASE WHEN {ENDED} THEN NULL ELSE t.claim_token END"))
                .text(format!(", lease_until = CASE WHEN {ENDED} THEN NULL ELSE t.lease_until END"))
                .text(format!(", unsettled_claims = CASE WHEN {ENDED} THEN 0 ELSE t.unsettled_claims END"))
                .text(format!(", ack_due = CASE WHEN {ENDED} THEN NULL ELSE t.ack_due END"))
                .text(", last_error = COALESCE(s.error, t.last_error)")
                .text(", completed_at = CASE WHEN s.new_status = 2 AND t.status <> 2 THEN ")
                .now()
                .text(" ELSE t.completed_at END, status = s.new_status")
        };
        let source = |sql: Sql<DB>| sql.json_rows(changes, &members);
        let update = Update { set: &set, source: &source, condition: "t.id = s.id" };
        DB::push_update(self.sql(), &self.names.outbox, &update)
    }
}

fn by_message<'a>(receipts: &[&'a Receipt]) -> BTreeMap<&'a str, Vec<&'a Receipt>> {
    let mut messages: BTreeMap<&str, Vec<&Receipt>> = BTreeMap::new();
    for receipt in receipts {
        messages.entry(&receipt.msg_id).or_default().push(receipt);
    }
    messages
}

fn sum(one: ReceiptReport, other: ReceiptReport) -> ReceiptReport {
    ReceiptReport {
        recorded: one.recorded + other.recorded,
        stale: one.stale + other.stale,
        unknown: one.unknown + other.unknown,
        completed: one.completed + other.completed,
    }
}

fn fits(receipt: &Receipt) -> bool {
    let fits = |text: &str, max| !text.is_empty() && text.len() <= max && !text.contains('\0');
    fits(&receipt.msg_id, MAX_MSG_ID) && fits(&receipt.group, MAX_GROUP)
}

fn read_row<DB: Dialect>(row: &DB::Row) -> (String, Locked) {
    let mut cells = Cells::<DB>::of(row);
    let (id, msg_id) = (cells.id(), cells.text().unwrap_or_default());
    let mut found = RowState::new(Timestamp::default(), None);
    found.status = status(cells.number());
    found.claim_no = cells.number();
    found.required_groups = cells.text().as_deref().map(groups);
    (msg_id, Locked { id, state: found.clone(), found })
}
