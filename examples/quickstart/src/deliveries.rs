use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What the consumer has received: how often, by `msg_id`.
#[derive(Debug, Default)]
pub struct Deliveries(Mutex<HashMap<String, usize>>);

impl Deliveries {
    pub fn record(&self, msg_id: &str) {
        *self.lock().entry(msg_id.to_owned()).or_default() += 1;
    }

    /// How many different messages came.
    pub fn distinct(&self) -> usize {
        self.lock().len()
    }

    /// How many came, repetitions included.
    pub fn total(&self) -> usize {
        self.lock().values().sum()
    }

    /// How many of these came at least once.
    pub fn received_of(&self, msg_ids: &[String]) -> usize {
        let received = self.lock();
        msg_ids.iter().filter(|msg_id| received.contains_key(*msg_id)).count()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
