use std::future::Future;
use std::time::Duration;

use outbox_core::{Message, StoreError, StoreErrorKind};
use sqlx::error::DatabaseError;

use crate::dialect::Dialect;
use crate::refusal::Refusal;

/// The pauses before an operation that lost against another one is run again.
const PAUSES_MS: [u64; 6] = [5, 10, 20, 40, 80, 160];

/// Runs `attempt` again while the database says that it collided with somebody else's.
pub(crate) async fn retrying<T, F>(mut attempt: impl FnMut() -> F) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    for pause in PAUSES_MS.map(Duration::from_millis) {
        match attempt().await {
            Err(error) if error.kind() == StoreErrorKind::Conflict => tokio::time::sleep(pause).await,
            done => return done,
        }
    }
    attempt().await
}

/// What a driver's error means for the caller; the cause is the source.
pub(crate) fn store_error<DB: Dialect>(error: sqlx::Error) -> StoreError {
    match error {
        sqlx::Error::Database(error) => refused::<DB>(error.as_ref()),
        error @ sqlx::Error::PoolClosed => {
            StoreError::new(StoreErrorKind::Unavailable, POOL_CLOSED).with_source(error)
        }
        error => StoreError::new(kind(&error), meaning(kind(&error))).with_source(error),
    }
}

const POOL_CLOSED: &str = "this process has closed the pool of the store: make a store on an open one, or stop \
     using it before the pool is closed";

fn refused<DB: Dialect>(error: &dyn DatabaseError) -> StoreError {
    let kind = DB::error_kind(error);
    let message = DB::advice(error).unwrap_or_else(|| meaning(kind));
    StoreError::new(kind, message).with_source(Refusal::of::<DB>(error))
}

/// Of an error that is not an answer of the database.
fn kind(error: &sqlx::Error) -> StoreErrorKind {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    }
}

fn meaning(kind: StoreErrorKind) -> &'static str {
    match kind {
        StoreErrorKind::Conflict => "the transaction collided with another one; run it again",
        StoreErrorKind::Unavailable => "the database is not available; try again later",
        StoreErrorKind::Schema => "the tables are missing or too old; run migrate()",
        _ => "the database refused",
    }
}

/// Of a call on a connection on which nothing was begun.
pub(crate) fn not_in_transaction(so: &str, what: &str) -> StoreError {
    let message = format!(
        "the connection is not in a transaction, so {so}: call begin() and pass the transaction to {what}"
    );
    StoreError::new(StoreErrorKind::NotInTransaction, message)
}

/// Names the `msg_id` where the database tells it, or where there is only one.
pub(crate) fn duplicate<DB: Dialect>(error: sqlx::Error, messages: &[Message]) -> StoreError {
    let Some(violation) = error.as_database_error().filter(|error| error.is_unique_violation()) else {
        return store_error::<DB>(error);
    };
    let what = match (DB::duplicate_id(violation), messages) {
        (Some(msg_id), _) => format!("msg_id {msg_id:?}"),
        (None, [message]) => format!("msg_id {:?}", message.msg_id()),
        (None, _) => "a msg_id of the batch".to_owned(),
    };
    let message = format!(
        "{what} is in the outbox already: if this was a retry after an unknown commit, the first one did commit"
    );
    StoreError::new(StoreErrorKind::Duplicate, message).with_source(Refusal::of::<DB>(violation))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::cell::Cell;

    use super::*;

    async fn tried(failures: usize, kind: StoreErrorKind) -> (usize, Result<(), StoreError>) {
        let tries = Cell::new(0);
        let attempt = || {
            tries.set(tries.get() + 1);
            std::future::ready(if tries.get() > failures { Ok(()) } else { Err(StoreError::new(kind, "x")) })
        };
        let outcome = retrying(attempt).await;
        (tries.get(), outcome)
    }

    #[tokio::test]
    async fn only_collisions_are_tried_again_and_not_for_ever() {
        assert!(matches!(tried(3, StoreErrorKind::Conflict).await, (4, Ok(()))));
        assert!(matches!(tried(1, StoreErrorKind::Unavailable).await, (1, Err(_))));
        let (tries, outcome) = tried(usize::MAX, StoreErrorKind::Conflict).await;
        assert_eq!((tries, outcome.unwrap_err().kind()), (PAUSES_MS.len() + 1, StoreErrorKind::Conflict));
    }
}
