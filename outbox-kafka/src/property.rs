//! Which of librdkafka's properties a user may set.

use rdkafka::ClientConfig;
use rdkafka::error::KafkaError;

use crate::error::InvalidKafkaConfig;

const SERVERS: &str = "give the servers to KafkaConfig::new";
const TIMEOUT: &str = "the publisher sets it; use KafkaConfig::with_confirm_timeout";
const STORED: &str = "only acks=all means that the broker stored the message";
const IDEMPOTENT: &str =
    "without idempotence a retry inside librdkafka stores a message twice or out of order";
const TRANSACTION: &str = "a message of a transaction that is never committed would count as stored";
const HANDLED: &str = "an offset is committed when its message was handled, and not before";
const GROUP: &str = "the group is that of the Consumer";
const REPORTS: &str = "the publisher needs the report of every delivery";

/// Refuses what librdkafka does not know and what breaks a promise.
pub(crate) fn check(name: &str, value: &str) -> Result<(), InvalidKafkaConfig> {
    if let Some(why) = broken_promise(name, value.trim()) {
        return Err(InvalidKafkaConfig::Promise { name: name.into(), why });
    }
    let native = ClientConfig::new().set(name, value).create_native_config();
    native.map(drop).map_err(|error| InvalidKafkaConfig::Property {
        name: name.into(),
        reason: without_value(reason(error), value),
    })
}

/// One name for each property that the publisher sets itself, so that a user's value takes its place.
pub(crate) fn canonical(name: String) -> String {
    match name.as_str() {
        "request.required.acks" => "acks".into(),
        "queue.buffering.max.ms" => "linger.ms".into(),
        _ => name,
    }
}

fn broken_promise(name: &str, value: &str) -> Option<&'static str> {
    match name {
        "bootstrap.servers" | "metadata.broker.list" => Some(SERVERS),
        "message.timeout.ms" | "delivery.timeout.ms" => Some(TIMEOUT),
        "acks" | "request.required.acks" if value != "all" && value != "-1" => Some(STORED),
        "enable.idempotence" if value != "true" => Some(IDEMPOTENT),
        "enable.auto.commit" | "enable.auto.offset.store" if value != "false" => Some(HANDLED),
        "group.id" => Some(GROUP),
        "transactional.id" => Some(TRANSACTION),
        "delivery.report.only.error" if value != "false" => Some(REPORTS),
        _ => None,
    }
}

/// The error's own text ends with the value.
fn reason(error: KafkaError) -> String {
    match error {
        KafkaError::ClientConfig(_, reason, ..) => reason,
        _ => "the name or the value holds a zero byte".into(),
    }
}

fn without_value(reason: String, value: &str) -> String {
    with_hint(if value.is_empty() { reason } else { reason.replace(value, "…") })
}

/// What to do where librdkafka was built without OpenSSL.
pub(crate) fn with_hint(reason: String) -> String {
    if reason.to_lowercase().contains("openssl") {
        return reason + "; add rdkafka with its feature `ssl` to your dependencies";
    }
    reason
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_breaks_a_promise_is_refused() {
        for (name, value) in [
            ("acks", "1"),
            ("request.required.acks", "0"),
            ("enable.idempotence", "false"),
            ("transactional.id", "t"),
            ("delivery.report.only.error", "true"),
            ("message.timeout.ms", "0"),
            ("bootstrap.servers", "elsewhere:9092"),
        ] {
            let error = check(name, value).unwrap_err();
            assert!(matches!(error, InvalidKafkaConfig::Promise { .. }), "{error}");
            assert!(error.to_string().contains(name), "{error}");
        }
    }

    #[test]
    fn what_keeps_them_is_taken() {
        for (name, value) in [
            ("acks", "all"),
            ("acks", "-1"),
            ("enable.idempotence", "true"),
            ("compression.type", "lz4"),
            ("sasl.mechanisms", "PLAIN"),
            ("sasl.password", "s3cret"),
        ] {
            check(name, value).unwrap();
        }
    }

    #[test]
    fn what_librdkafka_does_not_know_is_refused_without_the_value() {
        for name in ["no.such.property", "linger.ms", "compression.type", "security.protocol"] {
            let error = check(name, "s3cret").unwrap_err();
            assert!(matches!(error, InvalidKafkaConfig::Property { .. }), "{error}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error}");
        }
        assert!(check("client.id", "a\0b").is_err());
    }

    #[test]
    fn what_needs_openssl_says_how_to_get_it() {
        assert!(with_hint("OpenSSL not available at build time".into()).contains("feature `ssl`"));
        assert_eq!(with_hint("no such property".into()), "no such property");
    }
}
