//! The properties with which a message goes on to another queue of its consumer.

use std::time::Duration;

use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use outbox_core::wire::{self, Epitaph};

use crate::letter::Letter;

/// The exchange through which the message came first.
pub(crate) const ORIGINAL_EXCHANGE: &str = "outbox-original-exchange";
/// The routing key with which it came first.
pub(crate) const ORIGINAL_ROUTING_KEY: &str = "outbox-original-routing-key";
/// How often a quorum queue has taken the message back.
pub(crate) const DELIVERY_COUNT: &str = "x-delivery-count";
/// What belongs to the way behind: the broker would route copies by CC and BCC, and count on from the others.
const LEFT_BEHIND: [&str; 11] = [
    "CC",
    "BCC",
    DELIVERY_COUNT,
    "x-acquired-count",
    "x-death",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
];
const PERSISTENT: u8 = 2;

/// For a message that comes again after `delay`, with the attempts charged so far.
pub(crate) fn for_retry(letter: &Letter, delay: Duration, attempts: u32) -> BasicProperties {
    let headers = headers(letter, [(wire::ATTEMPTS, attempts.to_string())]);
    let expiration = delay.as_millis().to_string();
    copy(letter.properties(), headers).with_expiration(ShortString::from(expiration))
}

/// For a dead letter. Without the attempts: whoever puts it back gives it a new start.
pub(crate) fn for_burial(letter: &Letter, epitaph: &Epitaph<'_>) -> BasicProperties {
    copy(letter.properties(), headers(letter, epitaph.headers()))
}

fn headers<const N: usize>(letter: &Letter, additions: [(&str, String); N]) -> FieldTable {
    let mut table = FieldTable::default();
    let old = letter.properties().headers().iter().flatten();
    for (name, value) in old.filter(|(name, _)| stays(name.as_str())) {
        table.insert(name.clone(), value.clone());
    }
    let (exchange, routing_key) = letter.origin();
    let origin = [(ORIGINAL_EXCHANGE, exchange.to_owned()), (ORIGINAL_ROUTING_KEY, routing_key.to_owned())];
    for (name, value) in origin.into_iter().chain(additions) {
        table.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    table
}

fn stays(header: &str) -> bool {
    header != wire::ATTEMPTS && is_the_senders(header)
}

/// Whether the broker has not added it on the way.
pub(crate) fn is_the_senders(header: &str) -> bool {
    !LEFT_BEHIND.contains(&header)
}

/// All but the expiration, which would end a message twice, and the user id, which must be the sender's own.
fn copy(old: &BasicProperties, headers: FieldTable) -> BasicProperties {
    let mut new = BasicProperties::default().with_delivery_mode(PERSISTENT).with_headers(headers);
    macro_rules! keep {
        ($($get:ident $set:ident),+) => {
            $(if let Some(value) = old.$get().clone() { new = new.$set(value); })+
        };
    }
    keep!(
        content_type with_content_type, content_encoding with_content_encoding, priority with_priority,
        correlation_id with_correlation_id, reply_to with_reply_to, message_id with_message_id,
        timestamp with_timestamp, kind with_type, app_id with_app_id, cluster_id with_cluster_id
    );
    new
}
