use outbox_core::DedupError;
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Of a step that got no good answer from `server`. Neither has a password in it.
pub(crate) fn of_step(server: &str, error: RedisError) -> DedupError {
    DedupError::new(format!("{server}: {error}; {}", advice(&error))).with_source(error)
}

/// Of a URL. The client's text does not repeat the URL.
pub(crate) fn of_url(error: RedisError) -> DedupError {
    let form = "redis://user:password@host:6379/0, or rediss:// for TLS";
    DedupError::new(format!("{error}; trying again does not help, write it as {form}")).with_source(error)
}

/// Of an answer that no script gives.
pub(crate) fn of_answer(server: &str, answer: i64) -> DedupError {
    DedupError::new(format!("{server}: answered {answer}; is something between that rewrites answers?"))
}

fn advice(error: &RedisError) -> &'static str {
    match error.kind() {
        ErrorKind::Io => "try again, the connection is made anew by itself",
        ErrorKind::AuthenticationFailed => "check user and password",
        ErrorKind::Server(ServerErrorKind::NoPerm) => {
            "allow its user GET, SET, PEXPIRE, DEL, EVAL and EVALSHA on the key prefix"
        }
        ErrorKind::Server(ServerErrorKind::CrossSlot | ServerErrorKind::Moved) => {
            "a cluster needs the feature `cluster` and RedisDedup::cluster"
        }
        _ => match error.code() {
            Some("OOM") => "it is full: give it memory, then it goes on by itself",
            Some("FOREIGN" | "WRONGTYPE") => "another program uses this key prefix: choose one of your own",
            _ => "try again",
        },
    }
}
