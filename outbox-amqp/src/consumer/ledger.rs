use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// For how long after it was due a message is remembered that did not come again: another process has it.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);

/// What this process knows of messages that it holds. A message in the broker cannot be written on, so its
/// attempts and the time of its next one would be lost with the connection.
#[derive(Default)]
pub(super) struct Ledger(Mutex<HashMap<String, Held>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) attempts: u32,
    pub(super) due: Instant,
}

impl Ledger {
    pub(super) fn get(&self, msg_id: &str) -> Option<Held> {
        self.lock().get(msg_id).copied()
    }

    pub(super) fn note(&self, msg_id: &str, held: Held) {
        let mut known = self.lock();
        known.retain(|_, held| held.due.elapsed() < FORGOTTEN_AFTER);
        known.insert(msg_id.to_owned(), held);
    }

    pub(super) fn forget(&self, msg_id: &str) {
        self.lock().remove(msg_id);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn remembers_until_long_after_the_message_was_due() {
        let ledger = Ledger::default();
        let held = Held { attempts: 2, due: Instant::now() + FORGOTTEN_AFTER };
        ledger.note("a", held);
        tokio::time::advance(2 * FORGOTTEN_AFTER - Duration::from_secs(1)).await;
        ledger.note("b", held);
        assert_eq!(ledger.get("a"), Some(held));
        tokio::time::advance(Duration::from_secs(1)).await;
        ledger.note("c", held);
        assert_eq!(ledger.get("a"), None);
        ledger.forget("c");
        assert_eq!(ledger.get("c"), None);
    }
}
