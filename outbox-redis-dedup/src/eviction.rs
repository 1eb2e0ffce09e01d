use redis::{ErrorKind, RedisResult, ServerErrorKind, Value};

use crate::session::Query;

/// Whether a full server throws keys away. A done marker that is thrown away lets a duplicate through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Eviction {
    /// `maxmemory-policy` is `noeviction`: a full server refuses new keys, and consumption waits.
    Never,
    /// It does.
    Possible {
        /// The server's `maxmemory-policy`.
        policy: String,
    },
    /// The server does not let its user ask, or does not say.
    Unknown,
}

/// INFO says the same as CONFIG GET, and is allowed on hosted servers that forbid CONFIG.
pub(crate) async fn check(server: &dyn Query, name: &str) -> RedisResult<Eviction> {
    let eviction = match server.query(redis::cmd("INFO").arg("memory")).await {
        Ok(info) => read(&info),
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => Eviction::Unknown,
        Err(error) => return Err(error),
    };
    match &eviction {
        Eviction::Possible { policy } => tracing::warn!(
            server = name,
            policy,
            "maxmemory-policy lets Redis drop done markers when its memory is full, and their messages would \
             be handled again: set it to noeviction"
        ),
        Eviction::Unknown => tracing::debug!(server = name, "Redis does not tell its maxmemory-policy"),
        Eviction::Never => {}
    }
    Ok(eviction)
}

fn read(info: &Value) -> Eviction {
    let mut policies = Vec::new();
    collect(info, &mut policies);
    match policies.iter().find(|policy| *policy != "noeviction") {
        Some(policy) => Eviction::Possible { policy: policy.clone() },
        None if policies.is_empty() => Eviction::Unknown,
        None => Eviction::Never,
    }
}

/// A cluster answers with a map of nodes.
fn collect(info: &Value, policies: &mut Vec<String>) {
    match info {
        Value::BulkString(text) => policies.extend(policy(&String::from_utf8_lossy(text))),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => policies.extend(policy(text)),
        Value::Map(nodes) => nodes.iter().for_each(|(_, node)| collect(node, policies)),
        Value::Array(nodes) => nodes.iter().for_each(|node| collect(node, policies)),
        _ => {}
    }
}

fn policy(info: &str) -> Option<String> {
    info.lines().find_map(|line| line.strip_prefix("maxmemory_policy:")).map(|value| value.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(policy: &str) -> Value {
        Value::BulkString(format!("# Memory\r\nused_memory:1\r\nmaxmemory_policy:{policy}\r\n").into_bytes())
    }

    #[test]
    fn one_server() {
        assert_eq!(read(&info("noeviction")), Eviction::Never);
        assert_eq!(read(&info("allkeys-lru")), Eviction::Possible { policy: "allkeys-lru".to_owned() });
        assert_eq!(read(&Value::BulkString(b"# Memory\r\n".to_vec())), Eviction::Unknown);
    }

    #[test]
    fn one_node_of_a_cluster_is_enough() {
        let node = |policy| (Value::SimpleString("10.0.0.1:6379".to_owned()), info(policy));
        let nodes = Value::Map(vec![node("noeviction"), node("volatile-ttl")]);
        assert_eq!(read(&nodes), Eviction::Possible { policy: "volatile-ttl".to_owned() });
    }
}
