use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::slice;
use std::time::Duration;

use outbox_core::{Claim, ClaimToken, Outcome, RowId, Settled, Settlement, StoreError};
use serde_json::{Value, json};
use sqlx::Connection;

use crate::access::commit;
use crate::claim::fenced;
use crate::dialect::{Member, Update};
use crate::error::store_error;
use crate::refusal::{Refused, blames_a_row};
use crate::row::Cells;
use crate::sql::{Sql, storable_text};
use crate::store::{SqlDatabase, SqlStore};
use crate::time::micros;

/// Ends a claim, in an UPDATE.
pub(crate) const UNCLAIM: &str = "claim_token = NULL, lease_until = NULL, unsettled_claims = 0";

/// What every row of one UPDATE has in common.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Group<'a> {
    Confirmed { required: BTreeSet<&'a str>, ack_timeout: Duration },
    Released,
    Charged,
}

/// The settlements of a call, by claim and group.
#[derive(Default)]
struct Batch<'a> {
    groups: BTreeMap<(ClaimToken, Group<'a>), Vec<&'a Settlement>>,
}

impl<'a> Batch<'a> {
    /// The first settlement of a claim ends it, so a second one is stale.
    fn new(settlements: &'a [Settlement]) -> Self {
        let mut seen: HashSet<Claim> = HashSet::with_capacity(settlements.len());
        let mut batch = Self::default();
        for settlement in settlements.iter().filter(|settlement| seen.insert(settlement.claim)) {
            let key = (settlement.claim.token, group(&settlement.outcome));
            batch.groups.entry(key).or_default().push(settlement);
        }
        batch
    }
}

fn group(outcome: &Outcome) -> Group<'_> {
    match outcome {
        Outcome::Confirmed { required_groups, ack_timeout } => Group::Confirmed {
            required: required_groups.iter().map(String::as_str).collect(),
            ack_timeout: *ack_timeout,
        },
        Outcome::Released => Group::Released,
        Outcome::Retry { .. } | Outcome::Failed { .. } => Group::Charged,
    }
}

impl<DB: SqlDatabase> SqlStore<DB> {
    pub(crate) async fn try_settle(&self, settlements: &[Settlement]) -> Result<Settled, StoreError> {
        if settlements.is_empty() {
            return Ok(Settled::default());
        }
        let applied = match self.settle_together(settlements).await {
            Err(error) if blames_a_row(&error) => self.settle_one_by_one(settlements).await?,
            applied => applied?,
        };
        Ok(Settled { applied, lost: settlements.len().saturating_sub(applied) })
    }

    async fn settle_together(&self, settlements: &[Settlement]) -> Result<usize, StoreError> {
        let mut tx = self.db.begin_write().await?;
        let applied = self.write(&mut tx, settlements).await?;
        commit(tx).await?;
        Ok(applied)
    }

    /// A row that cannot be updated must not keep the others from being settled: its claim is lost.
    async fn settle_one_by_one(&self, settlements: &[Settlement]) -> Result<usize, StoreError> {
        let mut tx = self.db.begin_write().await?;
        let (mut applied, mut refused) = (0, Refused::default());
        for settlement in settlements {
            let mut savepoint = tx.begin().await.map_err(store_error::<DB>)?;
            let done = self.write(&mut savepoint, slice::from_ref(settlement)).await;
            applied += refused.end(savepoint, settlement.claim.id.0, done).await?.unwrap_or_default();
        }
        commit(tx).await?;
        refused.report(&self.names.outbox);
        Ok(applied)
    }

    async fn write(
        &self,
        conn: &mut DB::Connection,
        settlements: &[Settlement],
    ) -> Result<usize, StoreError> {
        let mut applied = 0;
        for ((token, group), settlements) in Batch::new(settlements).groups {
            let ids: Vec<RowId> = settlements.iter().map(|settlement| settlement.claim.id).collect();
            applied += match group {
                Group::Confirmed { required, ack_timeout } => {
                    self.confirm(conn, &ids, token, &required, ack_timeout).await?
                }
                Group::Released => self.release(&ids, token).execute(conn).await?,
                Group::Charged => self.charge(&settlements).execute(conn).await?,
            };
        }
        Ok(applied)
    }

    async fn confirm(
        &self,
        conn: &mut DB::Connection,
        ids: &[RowId],
        token: ClaimToken,
        required: &BTreeSet<&str>,
        ack_timeout: Duration,
    ) -> Result<usize, StoreError> {
        let mut applied = self.confirm_decided(ids, token, required, ack_timeout).execute(conn).await?;
        if applied < ids.len() && !required.is_empty() {
            let rows = self.undecided(ids, token).fetch(conn).await?;
            let undecided: Vec<RowId> = rows.iter().map(|row| Cells::<DB>::of(row).id()).collect();
            if !undecided.is_empty() {
                self.decide(&undecided, required).execute(conn).await?;
                applied +=
                    self.confirm_decided(&undecided, token, required, ack_timeout).execute(conn).await?;
            }
        }
        Ok(applied)
    }

    /// Where nothing is required, undecided rows are decided on the way.
    pub(crate) fn confirm_decided(
        &self,
        ids: &[RowId],
        token: ClaimToken,
        required: &BTreeSet<&str>,
        ack_timeout: Duration,
    ) -> Sql<DB> {
        let only_decided = if required.is_empty() { "" } else { "required_groups IS NOT NULL AND " };
        let sql = self
            .sql()
            .text(format!("UPDATE {}{} SET {UNCLAIM}, sent_at = ", self.names.outbox, DB::BY_KEY))
            .now()
            .text(", required_groups = COALESCE(required_groups, '[]'")
            .text(DB::AS_JSON)
            .text("), status = CASE WHEN received_count >= required_count THEN 2 ELSE 1 END")
            .text(", completed_at = CASE WHEN received_count >= required_count THEN ")
            .now()
            .text(" ELSE completed_at END, ack_due = CASE WHEN received_count >= required_count THEN NULL ELSE ")
            .later(ack_timeout)
            .text(format!(" END WHERE {only_decided}"));
        fenced(sql, ids, token)
    }

    /// Locks them. Whoever records a receipt locks the row first, so that after this statement its receipts
    /// are either all visible or yet to come.
    pub(crate) fn undecided(&self, ids: &[RowId], token: ClaimToken) -> Sql<DB> {
        let sql = self.sql().text(format!("SELECT id FROM {}{} WHERE ", self.names.outbox, DB::BY_KEY));
        fenced(sql.text("required_groups IS NULL AND "), ids, token).text(" ORDER BY id").text(DB::FOR_UPDATE)
    }

    pub(crate) fn decide(&self, ids: &[RowId], required: &BTreeSet<&str>) -> Sql<DB> {
        let (outbox, receipts) = (&self.names.outbox, &self.names.receipts);
        self.sql()
            .text(format!("UPDATE {outbox} AS t{} SET required_groups = ", DB::BY_KEY))
            .json(json!(required).to_string())
            .text(format!(
                ", received_count = (SELECT count(*) FROM {receipts} AS r WHERE r.verdict = 'handled'"
            ))
            .text(" AND r.msg_id = t.msg_id AND r.consumer_group")
            .among_texts(required.iter().map(|group| (*group).to_owned()))
            .text(") WHERE t.id")
            .among(ids)
    }

    pub(crate) fn release(&self, ids: &[RowId], token: ClaimToken) -> Sql<DB> {
        let sql = self.sql().text(format!("UPDATE {}{} SET {UNCLAIM} WHERE ", self.names.outbox, DB::BY_KEY));
        fenced(sql, ids, token)
    }

    /// Attempts that failed, each with a delay and an error of its own. The token is a column of the
    /// parameters, so that the planner looks rows up by id instead of all pending ones for the token.
    pub(crate) fn charge(&self, settlements: &[&Settlement]) -> Sql<DB> {
        const GIVEN_UP: &str = "t.retry_count + s.charge >= s.max_attempts";
        let rows: Vec<Value> = settlements.iter().filter_map(|settlement| charged(settlement)).collect();
        let members = [
            Member::Int("id"),
            Member::Token("token"),
            Member::Int("charge"),
            Member::Int("max_attempts"),
            Member::Int("delay"),
            Member::Text("error"),
        ];
        let set = |sql: Sql<DB>| {
            sql.text(format!("{UNCLAIM}, last_error = s.error"))
                .text(format!(", status = CASE WHEN {GIVEN_UP} THEN 9 ELSE 0 END"))
                .text(format!(", ack_due = CASE WHEN {GIVEN_UP} THEN NULL ELSE t.ack_due END"))
                .text(format!(", next_retry_time = CASE WHEN {GIVEN_UP} THEN t.next_retry_time ELSE "))
                .later_by("s.delay")
                .text(" END, retry_count = t.retry_count + s.charge")
        };
        let source = |sql: Sql<DB>| sql.json_rows(&rows, &members);
        let condition = "t.id = s.id AND t.status = 0 AND t.claim_token = s.token";
        let update = Update { set: &set, source: &source, condition };
        DB::push_update(self.sql(), &self.names.outbox, &update)
    }
}

fn charged(Settlement { claim, outcome }: &Settlement) -> Option<Value> {
    let (charge, max_attempts, delay, error) = match outcome {
        Outcome::Retry { delay, max_attempts, error } => (1, *max_attempts, micros(*delay), error),
        Outcome::Failed { error } => (0, 0, 0, error),
        Outcome::Confirmed { .. } | Outcome::Released => return None,
    };
    let error = storable_text(error);
    Some(json!({
        "id": claim.id.0, "token": claim.token.0.to_string(), "charge": charge, "max_attempts": max_attempts, "delay": delay, "error": error
    }))
}
