use std::time::Duration;

/// What is to happen to a delivery, by the [`Consumer`](super::Consumer) that processed it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "the broker is waiting for an answer"]
pub enum Disposition {
    /// Handled, and the receipt is on its way: acknowledge it.
    Ack,
    /// Not handled, or not known to be: deliver it again.
    RetryLater {
        /// Not before this long.
        delay: Duration,
        /// Attempts charged so far; they travel with the message, as [`wire::ATTEMPTS`](crate::wire::ATTEMPTS).
        attempts: u32,
    },
    /// This group gives it up, and has told the producer: put it with the dead letters, with the reason and
    /// without the attempts, so that whoever puts it back gives it a new start.
    DeadLetter {
        /// Why, for people. At most some thousand characters.
        reason: String,
    },
}
