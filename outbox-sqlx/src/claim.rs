use std::collections::{BTreeMap, HashSet};
use std::slice;
use std::time::Duration;

use outbox_core::{Claim, ClaimMode, ClaimRequest, ClaimToken, Claimed, Message, RowId, StoreError};
use sqlx::Connection;

use crate::access::commit;
use crate::error::store_error;
use crate::refusal::{Refused, blames_a_row, explain, is_unreadable, left_out};
use crate::row::{Cells, Stored, stored, stored_columns};
use crate::settle::UNCLAIM;
use crate::sql::Sql;
use crate::store::{SqlDatabase, SqlStore};

/// How many rows make the head of the queue.
const HEAD: usize = 10_000;
/// How many rows that cannot be updated a claim reads past.
const PASSED_OVER: usize = 500;

impl<DB: SqlDatabase> SqlStore<DB> {
    pub(crate) async fn try_claim(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        if request.limit == 0 {
            return Ok(Vec::new());
        }
        match self.claim_together(request).await {
            Err(error) if blames_a_row(&error) => self.claim_one_by_one(request).await,
            claimed => claimed,
        }
    }

    async fn claim_together(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        let mut tx = self.db.begin_write().await?;
        self.db.look_at_the_clock(&mut tx).await?;
        match self.take_due(&mut tx, request).await {
            Ok(claimed) => commit(tx).await.map(|()| claimed),
            Err(error) => {
                // Before the next attempt, which would pass over the rows that this one has locked.
                let _ = tx.rollback().await;
                Err(error)
            }
        }
    }

    async fn take_due(
        &self,
        conn: &mut DB::Connection,
        request: &ClaimRequest,
    ) -> Result<Vec<Claimed>, StoreError> {
        let rows = self.due(request).fetch(conn).await?;
        let due: Vec<Stored> = rows.iter().map(|row| stored(&mut Cells::<DB>::of(row))).collect();
        let token = ClaimToken::random();
        if !due.is_empty() {
            self.take_all(conn, &due, token, request.lease).await?;
        }
        Ok(due.into_iter().map(|row| claimed(row, token)).collect())
    }

    /// A row that cannot be updated must not keep the others waiting: it stays at the head of the queue, and
    /// the claim reads on past it. One that cannot even be read is failed.
    async fn claim_one_by_one(&self, request: &ClaimRequest) -> Result<Vec<Claimed>, StoreError> {
        let more = ClaimRequest { limit: request.limit.saturating_add(PASSED_OVER), ..*request };
        let mut tx = self.db.begin_write().await?;
        let rows = self.due_columns("id", &more).fetch(&mut tx).await?;
        let ids = rows.iter().map(|row| Cells::<DB>::of(row).id());
        let (token, mut taken, mut refused) = (ClaimToken::random(), Vec::new(), Refused::default());
        for id in ids {
            let mut savepoint = tx.begin().await.map_err(store_error::<DB>)?;
            let done = self.take_one(&mut savepoint, id, token, request.lease).await;
            let unreadable = done.as_ref().err().filter(|error| is_unreadable(error)).map(explain);
            taken.extend(refused.end(savepoint, id.0, done).await?);
            if let Some(error) = unreadable {
                self.fail_unread(id, &error).execute(&mut tx).await?;
            }
            if taken.len() == request.limit {
                break;
            }
        }
        commit(tx).await?;
        refused.report(&self.names.outbox);
        Ok(taken)
    }

    async fn take_one(
        &self,
        conn: &mut DB::Connection,
        id: RowId,
        token: ClaimToken,
        lease: Duration,
    ) -> Result<Claimed, StoreError> {
        let sql =
            self.sql().text(format!("SELECT {} FROM {} WHERE id", stored_columns::<DB>(), self.names.outbox));
        let rows = sql.among(&[id]).fetch(conn).await?;
        let row = rows.first().map(|row| stored(&mut Cells::<DB>::of(row))).ok_or_else(left_out)?;
        self.take_all(conn, slice::from_ref(&row), token, lease).await?;
        Ok(claimed(row, token))
    }

    /// A trigger, rule or policy of the user's may leave rows out of an UPDATE without an error. They are not
    /// claimed then, and would be published again and again.
    async fn take_all(
        &self,
        conn: &mut DB::Connection,
        due: &[Stored],
        token: ClaimToken,
        lease: Duration,
    ) -> Result<(), StoreError> {
        let taken = self.take(due, token, lease).execute(conn).await?;
        if taken < due.len() { Err(left_out()) } else { Ok(()) }
    }

    fn fail_unread(&self, id: RowId, error: &str) -> Sql<DB> {
        let sql = self.sql().text(format!("UPDATE {} SET {UNCLAIM}, status = 9", self.names.outbox));
        let sql = sql.text(", last_error = ");
        sql.bind(format!("the database cannot read the row: {error}")).text(" WHERE id").among(&[id])
    }

    /// Selects and locks. Two statements, not one with a subquery: every database can do it, none can plan it
    /// so that the subquery runs twice, and the order is that of the SELECT.
    pub(crate) fn due(&self, request: &ClaimRequest) -> Sql<DB> {
        self.due_columns(&stored_columns::<DB>(), request)
    }

    fn due_columns(&self, columns: &str, request: &ClaimRequest) -> Sql<DB> {
        let sql = self
            .sql()
            .text(format!("SELECT {columns} FROM {} WHERE status = 0 AND next_retry_time <= ", self.by_due()))
            .now()
            .text(" AND (lease_until IS NULL OR lease_until <= ")
            .now()
            .text(") AND unsettled_claims ");
        let sql = match request.mode {
            ClaimMode::Ordinary { suspect_after } => sql.text("< ").bind(i64::from(suspect_after)),
            ClaimMode::Suspects { suspect_after } => {
                self.among_the_first(sql.text(">= ").bind(i64::from(suspect_after)))
            }
        };
        sql.text(" ORDER BY next_retry_time, id LIMIT ")
            .bind(i64::try_from(request.limit).unwrap_or(i64::MAX))
            .text(DB::FOR_UPDATE_SKIP_LOCKED)
    }

    /// Suspects have been claimed before, so they stand at the head of the queue: there is no need to read on
    /// through a backlog of any length.
    fn among_the_first(&self, sql: Sql<DB>) -> Sql<DB> {
        sql.text(" AND next_retry_time <= (SELECT max(next_retry_time) FROM (SELECT next_retry_time")
            .text(format!(" FROM {} WHERE status = 0 AND next_retry_time <= ", self.by_due()))
            .now()
            .text(format!(" ORDER BY next_retry_time LIMIT {HEAD}) AS head)"))
    }

    /// The outbox, read in the order of claims.
    pub(crate) fn by_due(&self) -> String {
        format!("{}{}", self.names.outbox, DB::by_index(&self.names.table, "_due"))
    }

    fn take(&self, due: &[Stored], token: ClaimToken, lease: Duration) -> Sql<DB> {
        let ids: Vec<RowId> = due.iter().map(|row| row.id).collect();
        self.sql()
            .text(format!("UPDATE {}{} SET claim_no = claim_no + 1", self.names.outbox, DB::BY_KEY))
            .text(", unsettled_claims = unsettled_claims + 1, claim_token = ")
            .token(token)
            .text(", lease_until = ")
            .later(lease)
            .text(" WHERE id")
            .among(&ids)
    }

    pub(crate) async fn try_renew(
        &self,
        claims: &[Claim],
        lease: Duration,
    ) -> Result<Vec<Claim>, StoreError> {
        if claims.is_empty() {
            return Ok(Vec::new());
        }
        match self.renew_together(claims, lease).await {
            Err(error) if blames_a_row(&error) => self.renew_one_by_one(claims, lease).await,
            renewed => renewed,
        }
    }

    async fn renew_together(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError> {
        let mut tx = self.db.begin_write().await?;
        let mut held = HashSet::new();
        for (token, ids) in by_token(claims) {
            self.prolong(&ids, token, lease).execute(&mut tx).await?;
            let rows = self.held(&ids, token).fetch(&mut tx).await?;
            held.extend(rows.iter().map(|row| Claim { id: Cells::<DB>::of(row).id(), token }));
        }
        commit(tx).await?;
        Ok(claims.iter().copied().filter(|claim| held.contains(claim)).collect())
    }

    /// A row that cannot be updated is not held any longer than its lease says; the others are.
    async fn renew_one_by_one(&self, claims: &[Claim], lease: Duration) -> Result<Vec<Claim>, StoreError> {
        let mut tx = self.db.begin_write().await?;
        let (mut held, mut refused) = (Vec::new(), Refused::default());
        for claim in claims {
            let mut savepoint = tx.begin().await.map_err(store_error::<DB>)?;
            let done = self.prolong(&[claim.id], claim.token, lease).execute(&mut savepoint).await;
            if refused.end(savepoint, claim.id.0, done).await? == Some(1) {
                held.push(*claim);
            }
        }
        commit(tx).await?;
        refused.report(&self.names.outbox);
        Ok(held)
    }

    pub(crate) fn prolong(&self, ids: &[RowId], token: ClaimToken, lease: Duration) -> Sql<DB> {
        let sql = self.sql().text(format!("UPDATE {}{} SET lease_until = ", self.names.outbox, DB::BY_KEY));
        fenced(sql.later(lease).text(" WHERE "), ids, token)
    }

    /// Asked after the UPDATE, whose locks keep the answer true; not every database has RETURNING.
    pub(crate) fn held(&self, ids: &[RowId], token: ClaimToken) -> Sql<DB> {
        let sql = self.sql().text(format!("SELECT id FROM {}{} WHERE ", self.names.outbox, DB::BY_KEY));
        fenced(sql, ids, token)
    }
}

/// The guard of every write that a relay does to rows it holds.
pub(crate) fn fenced<DB: SqlDatabase>(sql: Sql<DB>, ids: &[RowId], token: ClaimToken) -> Sql<DB> {
    sql.text("status = 0 AND claim_token = ").token(token).text(" AND id").among(ids)
}

fn by_token(claims: &[Claim]) -> BTreeMap<ClaimToken, Vec<RowId>> {
    let mut groups: BTreeMap<ClaimToken, Vec<RowId>> = BTreeMap::new();
    for claim in claims {
        groups.entry(claim.token).or_default().push(claim.id);
    }
    groups
}

fn claimed(row: Stored, token: ClaimToken) -> Claimed {
    let Stored { id, mut message, retry_count, unsettled_claims } = row;
    message.claim_no += 1;
    Claimed {
        claim: Claim { id, token },
        message: Message::from_stored(message),
        retry_count,
        unsettled_claims: unsettled_claims + 1,
    }
}
