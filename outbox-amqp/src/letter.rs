use std::time::Duration;

use bytes::Bytes;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel};
use outbox_core::Message;
use outbox_core::wire::{self, NoMsgId, Parts};
use tokio::time::{Instant, sleep};

use crate::stamp;

/// How long an answer may take to leave; after that, the broker may have it or not.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const LOST_POLL: Duration = Duration::from_millis(100);

/// A delivery that waits for its answer. Without one, it goes back to its queue when its channel ends.
pub(crate) struct Letter {
    delivery: lapin::message::Delivery,
    body: Bytes,
    headers: Vec<(String, String)>,
    arrived: Instant,
    /// It stays open for as long as there are letters of it.
    _channel: Channel,
}

impl Letter {
    pub(crate) fn new(mut delivery: lapin::message::Delivery, channel: Channel) -> Self {
        let headers = texts(delivery.properties.headers().as_ref());
        let body = Bytes::from(std::mem::take(&mut delivery.data));
        Self { delivery, body, headers, arrived: Instant::now(), _channel: channel }
    }

    pub(crate) fn message(&self) -> Result<Message, NoMsgId> {
        let properties = &self.delivery.properties;
        let text = |field: &Option<lapin::types::ShortString>| field.as_ref().map(|text| text.to_string());
        let headers = self.headers.iter().filter(|(name, _)| stamp::is_the_senders(name));
        wire::message(Parts {
            headers: headers.cloned().collect(),
            body: self.body.clone(),
            content_type: text(properties.content_type()),
            msg_id: text(properties.message_id()),
            biz_type: text(properties.kind()).or_else(|| Some(self.origin().1.to_owned())),
        })
    }

    pub(crate) fn body(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn properties(&self) -> &BasicProperties {
        &self.delivery.properties
    }

    /// Attempts charged so far.
    pub(crate) fn attempts(&self) -> u32 {
        wire::attempts(&self.headers)
    }

    /// The exchange and routing key of the message's first way into the queue.
    pub(crate) fn origin(&self) -> (&str, &str) {
        let said = |name: &str| self.header(name);
        (
            said(stamp::ORIGINAL_EXCHANGE).unwrap_or(self.delivery.exchange.as_str()),
            said(stamp::ORIGINAL_ROUTING_KEY).unwrap_or(self.delivery.routing_key.as_str()),
        )
    }

    /// How often it was delivered and came back without an answer; a classic queue does not say.
    pub(crate) fn returns(&self) -> u32 {
        self.header(stamp::DELIVERY_COUNT).and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Whether it was delivered before, here or elsewhere.
    pub(crate) fn is_redelivered(&self) -> bool {
        self.delivery.redelivered
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// For how long it has been here.
    pub(crate) fn held_for(&self) -> Duration {
        self.arrived.elapsed()
    }

    /// Whether its channel has ended: the broker delivers it again, and takes no answer from here.
    pub(crate) fn is_lost(&self) -> bool {
        self.delivery.acker.poisoned()
    }

    /// Takes it off the queue. `false`: the channel has ended, and it will be delivered again.
    pub(crate) async fn ack(&self) -> bool {
        self.answer(self.delivery.acker.ack(BasicAckOptions::default())).await
    }

    /// Takes it off the queue, and all that came before it on its channel.
    pub(crate) async fn ack_all_before(&self) -> bool {
        self.answer(self.delivery.acker.ack(BasicAckOptions { multiple: true })).await
    }

    /// Puts it back into its queue, to be delivered again at once.
    pub(crate) async fn give_back(&self) -> bool {
        let options = BasicNackOptions { requeue: true, multiple: false };
        self.answer(self.delivery.acker.nack(options)).await
    }

    /// Waits until the answer is on its way. One that lapin has taken when the connection ends may never end by
    /// itself.
    async fn answer(&self, answering: impl Future<Output = Result<bool, lapin::Error>>) -> bool {
        tokio::select! {
            biased;
            answered = answering => matches!(answered, Ok(true)),
            () = self.lost() => false,
            () = sleep(ANSWER_TIMEOUT) => false,
        }
    }

    async fn lost(&self) {
        while !self.is_lost() {
            sleep(LOST_POLL).await;
        }
    }
}

fn texts(headers: Option<&FieldTable>) -> Vec<(String, String)> {
    let all = headers.into_iter().flatten();
    all.filter_map(|(name, value)| Some((name.to_string(), text(value)?))).collect()
}

/// What is text, or has an obvious one.
fn text(value: &AMQPValue) -> Option<String> {
    Some(match value {
        AMQPValue::LongString(text) => String::from_utf8(text.as_bytes().to_vec()).ok()?,
        AMQPValue::ShortString(text) => text.to_string(),
        AMQPValue::Boolean(flag) => flag.to_string(),
        AMQPValue::ShortShortInt(number) => number.to_string(),
        AMQPValue::ShortShortUInt(number) => number.to_string(),
        AMQPValue::ShortInt(number) => number.to_string(),
        AMQPValue::ShortUInt(number) => number.to_string(),
        AMQPValue::LongInt(number) => number.to_string(),
        AMQPValue::LongUInt(number) => number.to_string(),
        AMQPValue::LongLongInt(number) => number.to_string(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_that_have_a_text_are_read() {
        let mut table = FieldTable::default();
        for (name, value) in [
            ("a", AMQPValue::LongString("é".into())),
            ("b", AMQPValue::LongLongInt(-3)),
            ("c", AMQPValue::Boolean(true)),
            ("d", AMQPValue::LongString(vec![0xff].into())),
            ("e", AMQPValue::Void),
        ] {
            table.insert(name.into(), value);
        }
        let expected = [("a", "é"), ("b", "-3"), ("c", "true")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(texts(Some(&table)), expected);
        assert!(texts(None).is_empty());
    }
}
