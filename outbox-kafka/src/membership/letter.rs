use bytes::Bytes;
use outbox_core::Message;
use outbox_core::wire::{self, Epitaph, NoMsgId, Parts};
use rdkafka::Message as _;
use rdkafka::message::{BorrowedMessage, Header, Headers, OwnedHeaders};

use super::board::Partition;
use crate::line::Record;
use crate::parcel::CONTENT_TYPE;

/// Where a dead letter came from.
const ORIGINAL: [&str; 3] = ["outbox-original-topic", "outbox-original-partition", "outbox-original-offset"];

/// A record as it came.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) partition: Partition,
    pub(crate) offset: i64,
    pub(crate) key: Option<Vec<u8>>,
    value: Option<Bytes>,
    headers: Vec<(String, Option<Vec<u8>>)>,
}

impl Letter {
    pub(crate) fn new(record: &BorrowedMessage<'_>) -> Self {
        let headers = record.headers().into_iter().flat_map(|headers| headers.iter());
        Self {
            partition: (record.topic().to_owned(), record.partition()),
            offset: record.offset(),
            key: record.key().map(<[u8]>::to_vec),
            value: record.payload().map(Bytes::copy_from_slice),
            headers: headers.map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect(),
        }
    }

    pub(crate) fn message(&self) -> Result<Message, NoMsgId> {
        let text = |(name, value): &(String, Option<Vec<u8>>)| {
            Some((name.clone(), String::from_utf8(value.clone()?).ok()?))
        };
        let mut headers: Vec<(String, String)> = self.headers.iter().filter_map(text).collect();
        // The last one is the sender's framework's; one before it would be the user's.
        let content_type = headers.iter().rposition(|(name, _)| name == CONTENT_TYPE);
        wire::message(Parts {
            content_type: content_type.map(|at| headers.remove(at).1),
            headers,
            body: self.value.clone().unwrap_or_default(),
            msg_id: None,
            biz_type: Some(self.partition.0.clone()),
        })
    }

    pub(crate) fn body(&self) -> &[u8] {
        self.value.as_deref().unwrap_or_default()
    }

    /// The record that goes to `topic`: as it came, and why.
    pub(crate) fn dead<'a>(&'a self, topic: &'a str, epitaph: &Epitaph<'_>) -> Record<'a> {
        let mut headers = OwnedHeaders::new_with_capacity(self.headers.len() + 7);
        // Those of an earlier death would be read for those of this one.
        for (key, value) in self.headers.iter().filter(|(name, _)| !is_of_a_death(name)) {
            headers = headers.insert(Header { key, value: value.as_ref() });
        }
        for (key, value) in self.origin().into_iter().chain(epitaph.headers()) {
            headers = headers.insert(Header { key, value: Some(&value) });
        }
        let record = Record { payload: self.value.as_deref(), ..Record::to(topic) }.headers(headers);
        Record { key: self.key.as_deref(), ..record }
    }

    fn origin(&self) -> [(&'static str, String); 3] {
        let [topic, partition, offset] = ORIGINAL;
        [
            (topic, self.partition.0.clone()),
            (partition, self.partition.1.to_string()),
            (offset, self.offset.to_string()),
        ]
    }
}

fn is_of_a_death(name: &str) -> bool {
    ORIGINAL.contains(&name) || Epitaph::has_header(name)
}
