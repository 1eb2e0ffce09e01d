use outbox_core::PublishError;
use rdkafka::types::RDKafkaErrorCode::QueueFull;
use tokio::time::{Instant, sleep};

use crate::batch::PAUSE;
use crate::flight::{Ending, Flight};
use crate::judge::failed;
use crate::line::Record;
use crate::session::Session;
use crate::trouble::Trouble;

/// Sends one record that is no message of an outbox, and waits until it is stored.
pub(crate) async fn post<'a>(
    session: &Session,
    topic: &str,
    record: impl Fn() -> Record<'a>,
) -> Result<(), PublishError> {
    let line = session.line().map_err(Trouble::error)?;
    let deadline = Instant::now() + session.config.confirm_timeout;
    let report = loop {
        match line.send(record()) {
            Ok(report) => break report,
            Err(QueueFull) if Instant::now() < deadline => sleep(PAUSE).await,
            Err(code) => return Err(failed(code, topic)),
        }
    };
    let mut flight = Flight::new(session, &line, deadline);
    match (flight.land(report).await, flight.ending()) {
        (Ok(()), _) => Ok(()),
        (Err(_), Some(Ending::Trouble(trouble))) => Err(trouble.error()),
        (Err(code), _) => Err(failed(code, topic)),
    }
}
