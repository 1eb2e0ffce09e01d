use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use outbox_core::wire::RESERVED_PREFIX;
use tracing::warn;

/// More than the properties can take without their headers, in bytes: short strings and some numbers.
const WITHOUT_HEADERS: usize = 2_500;

/// AMQP does not split properties over frames, and one that is too long would end the connection, again and
/// again. A message that came with headers that just fit, and got some more, leaves its longest ones behind.
pub(crate) fn fit(properties: BasicProperties, frame_max: usize) -> BasicProperties {
    let Some(headers) = properties.headers() else { return properties };
    let room = frame_max.saturating_sub(WITHOUT_HEADERS);
    if size_of_table(headers) <= room {
        return properties;
    }
    let mut kept = headers.inner().clone();
    while kept.iter().map(size_of_field).sum::<usize>() > room {
        let longest = kept.iter().filter(|(name, _)| !name.as_str().starts_with(RESERVED_PREFIX));
        let Some((name, _)) = longest.max_by_key(|field| size_of_field(*field)) else { break };
        let name = name.clone();
        warn!(header = name.as_str(), "the headers are longer than a frame: this one is left out");
        kept.remove(&name);
    }
    properties.with_headers(FieldTable::from(kept))
}

fn size_of_table(table: &FieldTable) -> usize {
    table.into_iter().map(size_of_field).sum()
}

fn size_of_field((name, value): (&ShortString, &AMQPValue)) -> usize {
    name.as_str().len() + 2 + size(value)
}

/// At most.
fn size(value: &AMQPValue) -> usize {
    4 + match value {
        AMQPValue::LongString(text) => text.len(),
        AMQPValue::ShortString(text) => text.as_str().len(),
        AMQPValue::ByteArray(bytes) => bytes.len(),
        AMQPValue::FieldTable(table) => size_of_table(table),
        AMQPValue::FieldArray(array) => array.as_slice().iter().map(|value| 1 + size(value)).sum(),
        _ => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(sizes: &[(&str, usize)]) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, size) in sizes {
            table.insert((*name).into(), AMQPValue::LongString("x".repeat(*size).into()));
        }
        BasicProperties::default().with_headers(table)
    }

    fn names(properties: &BasicProperties) -> Vec<&str> {
        properties.headers().iter().flatten().map(|(name, _)| name.as_str()).collect()
    }

    #[test]
    fn the_longest_foreign_headers_go_until_the_rest_fits() {
        let long = properties(&[("a", 2_000), ("b", 3_000), ("c", 10), ("outbox-x", 4_000)]);
        assert_eq!(names(&fit(long.clone(), 20_000)), ["a", "b", "c", "outbox-x"]);
        assert_eq!(names(&fit(long.clone(), 9_000)), ["a", "c", "outbox-x"]);
        assert_eq!(names(&fit(long, 1_000)), ["outbox-x"]);
        assert!(names(&fit(BasicProperties::default(), 0)).is_empty());
    }
}
