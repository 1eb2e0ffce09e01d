use std::error::Error;
use std::fmt;

use outbox_core::{StoreError, StoreErrorKind};
use sqlx::Transaction;
use sqlx::error::DatabaseError;

use crate::dialect::Dialect;
use crate::error::store_error;

/// The SQLSTATE of a value past the database's own limits.
const PROGRAM_LIMIT_EXCEEDED: &str = "54000";

/// What the database answered instead of doing it: the source of a [`StoreError`]. The driver's own error is not
/// kept, because it prints what the database quotes, such as `Failing row contains (…)`, payload and all.
#[derive(Debug)]
pub struct Refusal {
    code: Option<String>,
    constraint: Option<String>,
    message: String,
    blames_a_row: bool,
}

impl Refusal {
    pub(crate) fn of<DB: Dialect>(error: &dyn DatabaseError) -> Self {
        Self {
            code: error.code().map(Into::into),
            constraint: error.constraint().map(str::to_owned),
            message: error.message().to_owned(),
            blames_a_row: DB::blames_a_row(error),
        }
    }

    /// SQLSTATE, or SQLite's extended result code.
    #[must_use]
    pub fn code(&self) -> Option<&str> {
        self.code.as_deref()
    }

    /// The constraint that was violated, where the database names it.
    #[must_use]
    pub fn constraint(&self) -> Option<&str> {
        self.constraint.as_deref()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)?;
        self.code().map_or(Ok(()), |code| write!(f, " (code {code})"))
    }
}

impl Error for Refusal {}

/// Whether a constraint, a trigger or a value of one row is the cause, so that other rows may fare better.
pub(crate) fn blames_a_row(error: &StoreError) -> bool {
    refusal(error).is_some_and(|refusal| refusal.blames_a_row)
}

fn refusal(error: &StoreError) -> Option<&Refusal> {
    error.source().and_then(|source| source.downcast_ref::<Refusal>())
}

/// Whether a row has grown past what the database can give out, as a JSON column of very large numbers can.
pub(crate) fn is_unreadable(error: &StoreError) -> bool {
    refusal(error).and_then(Refusal::code).is_some_and(|code| code == PROGRAM_LIMIT_EXCEEDED)
}

/// What the database said, without what it means.
pub(crate) fn explain(error: &StoreError) -> String {
    refusal(error).map(ToString::to_string).unwrap_or_default()
}

/// An UPDATE wrote fewer rows than it was given.
pub(crate) fn left_out() -> StoreError {
    let message = "an update left the row out: a trigger, rule or policy skips it".to_owned();
    let refusal = Refusal { code: None, constraint: None, message, blames_a_row: true };
    StoreError::new(StoreErrorKind::Other, "the database did not do it").with_source(refusal)
}

/// The rows of one call that the database refused to update.
#[derive(Default)]
pub(crate) struct Refused {
    rows: usize,
    first: Option<(String, StoreError)>,
}

impl Refused {
    /// Ends the savepoint in which one row was updated; none if the row was refused.
    pub(crate) async fn end<DB: Dialect, T>(
        &mut self,
        savepoint: Transaction<'_, DB>,
        row: impl ToString,
        done: Result<T, StoreError>,
    ) -> Result<Option<T>, StoreError> {
        match done {
            Ok(done) => savepoint.commit().await.map(|()| Some(done)),
            Err(error) if blames_a_row(&error) => {
                self.rows += 1;
                self.first.get_or_insert((row.to_string(), error));
                savepoint.rollback().await.map(|()| None)
            }
            Err(error) => return Err(error),
        }
        .map_err(store_error::<DB>)
    }

    /// The first of them says why.
    pub(crate) fn into_result(self) -> Result<(), StoreError> {
        self.first.map_or(Ok(()), |(_, error)| Err(error))
    }

    pub(crate) fn report(&self, table: &str) {
        if let Some((row, error)) = &self.first {
            let cause = error.source().map(ToString::to_string).unwrap_or_default();
            tracing::warn!(
                table,
                rows = self.rows,
                first = row,
                cause,
                "the database refuses to read or update rows: what cannot be updated stays as it is"
            );
        }
    }
}
