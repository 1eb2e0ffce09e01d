use lapin::BasicProperties;
use lapin::types::{AMQPValue, FieldTable, LongString, ShortString};
use outbox_core::{Message, PublishError, wire};

use crate::route::Route;

/// AMQP's delivery mode for messages that survive a restart of the broker.
const PERSISTENT: u8 = 2;
/// More than the properties can take without their headers, in bytes: five short strings and some numbers.
const WITHOUT_HEADERS: usize = 1_400;

/// A message and where it goes.
pub(crate) struct Parcel<'a> {
    pub(crate) message: &'a Message,
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
}

/// A parcel as AMQP sends it, but for the body.
pub(crate) struct Envelope {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
}

impl<'a> Parcel<'a> {
    pub(crate) fn new(message: &'a Message, route: &Route) -> Self {
        let routing_key = route.routing_key().unwrap_or(message.biz_type());
        Self { message, exchange: route.exchange().to_owned(), routing_key: routing_key.to_owned() }
    }

    pub(crate) fn body(&self) -> &'a [u8] {
        self.message.payload().as_bytes()
    }

    /// Where it goes, for errors.
    pub(crate) fn target(&self) -> String {
        format!("exchange {:?} with routing key {:?}", self.exchange, self.routing_key)
    }

    /// Rejects what AMQP cannot encode, in frames of `frame_max` bytes.
    pub(crate) fn envelope(&self, frame_max: u32) -> Result<Envelope, PublishError> {
        let message = self.message;
        let headers = headers(message)?;
        check_frame(&headers, frame_max)?;
        let mut properties = BasicProperties::default()
            .with_delivery_mode(PERSISTENT)
            .with_message_id(short("msg_id", message.msg_id())?)
            .with_type(short("biz_type", message.biz_type())?)
            .with_content_type(short("content type", message.content_type())?)
            .with_headers(headers);
        if let Some(seconds) = message.created_at().and_then(|at| u64::try_from(at.timestamp()).ok()) {
            properties = properties.with_timestamp(seconds);
        }
        Ok(Envelope {
            exchange: short("exchange name", &self.exchange)?,
            routing_key: short("routing key", &self.routing_key)?,
            properties,
        })
    }
}

fn headers(message: &Message) -> Result<FieldTable, PublishError> {
    let mut table = FieldTable::default();
    for (name, value) in wire::headers(message) {
        table.insert(short("header name", name)?, AMQPValue::LongString(value.into()));
    }
    Ok(table)
}

/// AMQP does not split properties over frames, and a frame that is too long ends the connection.
fn check_frame(headers: &FieldTable, frame_max: u32) -> Result<(), PublishError> {
    let field = |(name, value): (&ShortString, &AMQPValue)| {
        name.as_str().len() + value.as_long_string().map_or(0, LongString::len) + 6
    };
    let size = WITHOUT_HEADERS + headers.into_iter().map(field).sum::<usize>();
    if size <= frame_max as usize {
        return Ok(());
    }
    Err(PublishError::rejected(format!(
        "headers and properties take up to {size} bytes, but this broker's frames end at {frame_max}; \
         send fewer headers or raise RabbitMQ's frame_max"
    )))
}

fn short(field: &str, text: &str) -> Result<ShortString, PublishError> {
    ShortString::try_new(text).map_err(|_| {
        PublishError::rejected(format!("the {field} has {} bytes; AMQP takes at most 255", text.len()))
    })
}
