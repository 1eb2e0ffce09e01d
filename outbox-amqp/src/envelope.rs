use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, ShortString};
use outbox_core::{Message, PublishError, wire};

use crate::route::Route;

/// AMQP's delivery mode for messages that survive a restart of the broker.
const PERSISTENT: u8 = 2;

/// A message as AMQP sends it, but for the body.
pub(crate) struct Envelope {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    /// An upper bound of the encoded properties, in bytes.
    size: usize,
}

impl Envelope {
    /// Rejects what AMQP cannot encode.
    pub(crate) fn new(message: &Message, route: &Route) -> Result<Self, PublishError> {
        let headers = headers(message)?;
        let size = 1024 + headers.inner().iter().map(field_size).sum::<usize>();
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(short("msg_id", message.msg_id())?)
            .with_type(short("biz_type", message.biz_type())?)
            .with_content_type(short("content type", message.content_type())?)
            .with_headers(headers);
        if let Some(seconds) = message.created_at().and_then(|at| u64::try_from(at.timestamp()).ok()) {
            properties = properties.with_timestamp(seconds);
        }
        let routing_key = route.routing_key().unwrap_or(message.biz_type());
        Ok(Self {
            exchange: short("exchange name", route.exchange())?,
            routing_key: short("routing key", routing_key)?,
            properties,
            size,
        })
    }

    /// Where it goes, for errors.
    pub(crate) fn target(&self) -> String {
        format!("exchange {:?} with routing key {:?}", self.exchange.as_str(), self.routing_key.as_str())
    }

    /// AMQP does not split properties over frames, and a frame that is too long ends the connection.
    pub(crate) fn check_frame(&self, frame_max: u32) -> Result<(), PublishError> {
        if self.size <= frame_max as usize {
            return Ok(());
        }
        Err(PublishError::rejected(format!(
            "headers and properties take up to {} bytes, but this broker's frames end at {frame_max}; \
             send fewer headers or raise RabbitMQ's frame_max",
            self.size
        )))
    }
}

fn headers(message: &Message) -> Result<FieldTable, PublishError> {
    let mut table = FieldTable::default();
    for (name, value) in wire::headers(message) {
        table.insert(short("header name", name)?, AMQPValue::LongString(value.into()));
    }
    Ok(table)
}

fn field_size((name, value): (&ShortString, &AMQPValue)) -> usize {
    let value = value.as_long_string().map_or(0, lapin::types::LongString::len);
    name.as_str().len() + value + 6
}

fn short(field: &str, text: &str) -> Result<ShortString, PublishError> {
    ShortString::try_new(text).map_err(|_| {
        PublishError::rejected(format!("the {field} has {} bytes; AMQP takes at most 255", text.len()))
    })
}
