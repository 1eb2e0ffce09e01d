//! What the numbers of errors mean. SQLSTATEs are too coarse: most errors share `HY000`.

use outbox_core::StoreErrorKind;
use sqlx::error::DatabaseError;
use sqlx::mysql::MySqlDatabaseError;

fn number(error: &dyn DatabaseError) -> u16 {
    error.try_downcast_ref::<MySqlDatabaseError>().map_or(0, MySqlDatabaseError::number)
}

pub(super) fn kind(error: &dyn DatabaseError) -> StoreErrorKind {
    match number(error) {
        // lock wait time-out, deadlock, NOWAIT, changed since it was read (MariaDB), statement to be prepared again
        1205 | 1213 | 3572 | 1020 | 1615 => StoreErrorKind::Conflict,
        // no such column, table, index
        1054 | 1146 | 1176 => StoreErrorKind::Schema,
        // access denied, no such database
        1044 | 1045 | 1698 | 1049 => StoreErrorKind::Unavailable,
        // too many connections, per user, of a resource; disk, table or memory is full
        1040 | 1203 | 1226 | 1021 | 1114 | 1037 | 1038 | 1041 => StoreErrorKind::Unavailable,
        // shutdowns, killed, interrupted, time-outs of statements and idle sessions, network
        1053 | 1077 | 1078 | 1079 | 1152 | 1158..=1161 | 1184 | 1317 | 1927 | 1969 | 3024 | 3169 | 4031 => {
            StoreErrorKind::Unavailable
        }
        // read-only: a replica, or a server that is being switched over
        1290 | 1792 | 1836 => StoreErrorKind::Unavailable,
        _ => StoreErrorKind::Other,
    }
}

pub(super) fn advice(error: &dyn DatabaseError) -> Option<&'static str> {
    match number(error) {
        1044 | 1045 | 1698 | 1049 => Some(
            "the database lets nobody in under this name: check user, password and the database's name; \
             trying again helps once they are right",
        ),
        1153 => Some(
            "a message is larger than the server's max_allowed_packet: raise that, or keep large bodies elsewhere",
        ),
        1665 => Some(
            "the server replicates statements, which does not go with READ COMMITTED: set binlog_format to ROW \
             or MIXED",
        ),
        _ => None,
    }
}

/// Checks (MySQL's, MariaDB's), values that do not fit, integrity constraints, and what triggers raise.
pub(super) fn blames_a_row(error: &dyn DatabaseError) -> bool {
    let state = error.code().unwrap_or_default();
    matches!(number(error), 3819 | 1366 | 1364 | 1644 | 1690)
        || ["22", "23", "44", "45"].iter().any(|class| state.starts_with(class))
}

/// The unique key that has refused a row: `biz_outbox.msg_id` or `msg_id`.
pub(super) fn violated_key(error: &dyn DatabaseError) -> Option<&str> {
    if matches!(number(error), 1062 | 1586) { error.message().rsplit('\'').nth(1) } else { None }
}
