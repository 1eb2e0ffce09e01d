use super::format::message;
use crate::consumer::ReceiptError;
use crate::message::Message;
use crate::publisher::Publisher;
use crate::receipt::Receipt;

/// Sends receipts as messages, all in one batch.
///
/// # Errors
/// When some are not stored by the broker, or not known to be.
pub async fn send(publisher: &dyn Publisher, receipts: &[Receipt]) -> Result<(), ReceiptError> {
    let messages: Result<Vec<Message>, _> = receipts.iter().map(message).collect();
    let messages = messages.map_err(|error| ReceiptError::new("not encodable").with_source(error))?;
    let results = publisher.publish_batch(&messages).await;
    let mut errors = results.into_iter().filter_map(Result::err);
    let Some(first) = errors.next() else { return Ok(()) };
    let (failed, all) = (1 + errors.count(), receipts.len());
    Err(ReceiptError::new(format!("{failed} of {all} were not stored by the broker")).with_source(first))
}
