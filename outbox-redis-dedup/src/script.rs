use std::time::Duration;

use outbox_core::{DedupKey, DedupToken};
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError, RedisResult, Script, ServerErrorKind, Value};

use crate::session::Query;

/// What the value of a key says, beside `lease:<token>`.
pub(crate) const DONE: &str = "done";

/// One step of the protocol: a script on one key, so that it runs on one node of a cluster.
pub(crate) struct Step {
    code: &'static str,
    script: Script,
}

impl Step {
    fn new(code: &'static str) -> Self {
        Self { code, script: Script::new(code) }
    }

    /// One round trip; two where the server does not know the script yet. Sending the text again, and not
    /// SCRIPT LOAD, needs only the node that owns the key.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        server: &dyn Query,
        key: &str,
        token: DedupToken,
        time: Option<Duration>,
    ) -> RedisResult<T> {
        let (lease, time) = (lease(token), time.map(millis));
        let call = |verb: &str, script: &str| {
            let mut cmd = redis::cmd(verb);
            cmd.arg(script).arg(1).arg(key).arg(&lease).arg(time);
            cmd
        };
        let answer = match query(server, call("EVALSHA", self.script.get_hash())).await {
            Err(error) if is_unknown(&error) => query(server, call("EVAL", self.code)).await,
            answer => answer,
        };
        Ok(redis::from_redis_value(answer?)?)
    }
}

async fn query(server: &dyn Query, cmd: Cmd) -> RedisResult<Value> {
    server.query(&cmd).await
}

fn is_unknown(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

fn lease(token: DedupToken) -> String {
    format!("lease:{}", token.0.simple())
}

/// Redis refuses a life of nothing, and one that ends after the end of its time.
fn millis(time: Duration) -> u64 {
    const TEN_THOUSAND_YEARS: u128 = 10_000 * 365 * 24 * 3600 * 1000;
    let millis = time.as_nanos().div_ceil(1_000_000).clamp(1, TEN_THOUSAND_YEARS);
    u64::try_from(millis).unwrap_or(u64::MAX)
}

/// The name of a key in Redis. The length of the group says where the group ends, so that no two keys share
/// a name whatever characters they have.
pub(crate) fn name(prefix: &str, key: &DedupKey) -> String {
    format!("{prefix}{}:{}:{}", key.group.len(), key.group, key.msg_id)
}

/// All steps.
pub(crate) struct Steps {
    pub(crate) begin: Step,
    pub(crate) renew: Step,
    pub(crate) finish: Step,
    pub(crate) abandon: Step,
}

impl Default for Steps {
    fn default() -> Self {
        Self {
            begin: Step::new(include_str!("begin.lua")),
            renew: Step::new(include_str!("renew.lua")),
            finish: Step::new(include_str!("finish.lua")),
            abandon: Step::new(include_str!("abandon.lua")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(group: &str, msg_id: &str) -> String {
        name("p:", &DedupKey::new(group, msg_id))
    }

    #[test]
    fn names_are_as_documented() {
        assert_eq!(named("points", "0190-a"), "p:6:points:0190-a");
    }

    #[test]
    fn keys_that_look_alike_have_different_names() {
        let parts = ["", ":", "a", "a:", ":a", "a:b", "1:a", "1", "1:", "é", "{a}", "\0", "11:a"];
        let mut names: Vec<_> = parts.iter().flat_map(|g| parts.iter().map(|m| named(g, m))).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), parts.len() * parts.len());
    }

    #[test]
    fn times_are_what_redis_accepts() {
        assert_eq!(millis(Duration::ZERO), 1);
        assert_eq!(millis(Duration::from_nanos(1_000_001)), 2);
        assert_eq!(millis(Duration::from_secs(30)), 30_000);
        assert!(i64::try_from(millis(Duration::MAX)).unwrap() < i64::MAX / 2);
    }
}
