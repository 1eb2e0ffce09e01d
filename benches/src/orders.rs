use anyhow::Result;
use outbox_core::{Message, Payload};
use serde_json::json;

/// Distinct messages, as an order service would write them, each with `bytes` of JSON.
pub(crate) fn messages(biz_type: &str, count: usize, bytes: usize) -> Result<Vec<Message>> {
    (0..count).map(|number| message(biz_type, number, bytes)).collect()
}

fn message(biz_type: &str, number: usize, bytes: usize) -> Result<Message> {
    let order = format!("A-{number:010}");
    let bare = body(&order, number, "");
    let note = "n".repeat(bytes.saturating_sub(bare.len()));
    Ok(Message::new(biz_type, &order, Payload::json_text(body(&order, number, &note))?)?)
}

fn body(order: &str, number: usize, note: &str) -> String {
    json!({ "orderNo": order, "amount": number % 1_000, "currency": "EUR", "note": note }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_have_the_size_asked_for() -> Result<()> {
        for message in messages("order.created", 1_200, 300)? {
            assert_eq!(message.payload().len(), 300);
        }
        Ok(())
    }
}
