use anyhow::{Result, ensure};
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Confirmation, PublisherConfirm};
use sqlx::postgres::PgRow;
use sqlx::{FromRow, Row};

/// What the variants without the framework know of a message, in the order in which they select it.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) id: i64,
    pub(crate) msg_id: String,
    pub(crate) biz_type: String,
    pub(crate) payload: String,
}

impl FromRow<'_, PgRow> for Outgoing {
    fn from_row(row: &PgRow) -> sqlx::Result<Self> {
        let (id, msg_id) = (row.try_get(0)?, row.try_get(1)?);
        Ok(Self { id, msg_id, biz_type: row.try_get(2)?, payload: row.try_get(3)? })
    }
}

const PERSISTENT: u8 = 2;

/// Hands a message to the broker, straight to the queue that its type names.
pub(crate) async fn send(channel: &Channel, message: &Outgoing) -> Result<PublisherConfirm> {
    let properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type("application/json".into())
        .with_message_id(message.msg_id.as_str().into())
        .with_type(message.biz_type.as_str().into());
    let options = BasicPublishOptions { mandatory: true, ..Default::default() };
    let queue = message.biz_type.as_str().into();
    Ok(channel.basic_publish("".into(), queue, options, message.payload.as_bytes(), properties).await?)
}

/// Waits until the broker says that it has the message, and in a queue.
pub(crate) async fn confirmed(confirm: PublisherConfirm) -> Result<()> {
    let answer = confirm.await?;
    ensure!(answer == Confirmation::Ack(None), "the broker did not take the message: {answer:?}");
    Ok(())
}
