use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outbox_core::Message;
use tokio::time::Instant;

/// For how long after it was due a message is remembered that did not come again: another process has it.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);

/// What this process knows of messages that it holds, or held when their channel ended. A message in the broker
/// cannot be written on, so its attempts and the time of its next one would be lost with the connection.
#[derive(Default)]
pub(super) struct Ledger(Mutex<HashMap<Key, Held>>);

/// The claim belongs to it: what the producer publishes anew starts anew.
type Key = (String, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) attempts: u32,
    pub(super) due: Instant,
    /// Times that it comes back without having ended this process.
    pub(super) returns: u32,
}

impl Ledger {
    pub(super) fn get(&self, message: &Message) -> Option<Held> {
        self.lock().get(&key(message)).copied()
    }

    pub(super) fn note(&self, message: &Message, held: Held) {
        let mut known = self.lock();
        known.retain(|_, held| held.due.elapsed() < FORGOTTEN_AFTER);
        known.insert(key(message), held);
    }

    pub(super) fn forget(&self, message: &Message) {
        self.lock().remove(&key(message));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(message: &Message) -> Key {
    (message.msg_id().to_owned(), message.claim_no())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use outbox_core::wire::{self, Parts};

    use super::*;

    fn message(msg_id: &str, claim_no: u64) -> Message {
        let headers = vec![(wire::CLAIM_NO.to_owned(), claim_no.to_string())];
        wire::message(Parts { headers, msg_id: Some(msg_id.to_owned()), ..Parts::default() }).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn remembers_until_long_after_the_message_was_due() {
        let ledger = Ledger::default();
        let [a, b, c] = ["a", "b", "c"].map(|msg_id| message(msg_id, 1));
        let held = Held { attempts: 2, due: Instant::now() + FORGOTTEN_AFTER, returns: 3 };
        ledger.note(&a, held);
        tokio::time::advance(2 * FORGOTTEN_AFTER - Duration::from_secs(1)).await;
        ledger.note(&b, held);
        assert_eq!(ledger.get(&a), Some(held));
        tokio::time::advance(Duration::from_secs(1)).await;
        ledger.note(&c, held);
        assert_eq!(ledger.get(&a), None);
        ledger.forget(&c);
        assert_eq!(ledger.get(&c), None);
    }

    #[tokio::test]
    async fn what_is_published_anew_is_not_known() {
        let ledger = Ledger::default();
        ledger.note(&message("a", 1), Held { attempts: 2, due: Instant::now(), returns: 0 });
        assert!(ledger.get(&message("a", 1)).is_some());
        assert_eq!(ledger.get(&message("a", 2)), None);
    }
}
