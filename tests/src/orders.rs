use anyhow::Result;
use outbox_core::Message;
use serde_json::json;

/// New messages of the type `order.created`.
pub fn orders(count: usize) -> Result<Vec<Message>> {
    messages("order.created", count)
}

/// New messages of a type.
pub fn messages(biz_type: &str, count: usize) -> Result<Vec<Message>> {
    let new = |n| Message::json(biz_type, format!("A-{n}"), &json!({"order": n, "amount": 990}));
    Ok((0..count).map(new).collect::<Result<_, _>>()?)
}

/// Their ids.
#[must_use]
pub fn ids(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.msg_id().to_owned()).collect()
}
