use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lapin::BasicProperties;
use lapin::message::Delivery;

/// What came out of the queues. Clones share the record.
#[derive(Debug, Clone, Default)]
pub struct Deliveries(Arc<Mutex<BTreeMap<String, Vec<Delivered>>>>);

/// One delivery.
#[derive(Debug, Clone)]
pub struct Delivered {
    /// The key under which it was routed.
    pub routing_key: String,
    /// The AMQP properties.
    pub properties: BasicProperties,
    /// The body.
    pub body: Vec<u8>,
}

impl From<Delivery> for Delivered {
    fn from(delivery: Delivery) -> Self {
        let routing_key = delivery.routing_key.to_string();
        Self { routing_key, properties: delivery.properties, body: delivery.data }
    }
}

impl Deliveries {
    /// How often each message came.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<String, usize> {
        self.lock().iter().map(|(id, all)| (id.clone(), all.len())).collect()
    }

    /// How often this message came.
    #[must_use]
    pub fn count(&self, msg_id: &str) -> usize {
        self.lock().get(msg_id).map_or(0, Vec::len)
    }

    /// How many different messages came.
    #[must_use]
    pub fn messages(&self) -> usize {
        self.lock().len()
    }

    /// Whether each of these came.
    #[must_use]
    pub fn has_all(&self, ids: &[String]) -> bool {
        let seen = self.lock();
        ids.iter().all(|id| seen.contains_key(id))
    }

    /// The first delivery of this message.
    #[must_use]
    pub fn first(&self, msg_id: &str) -> Option<Delivered> {
        self.lock().get(msg_id)?.first().cloned()
    }

    /// Adds one. A message without a `message_id` counts as one with an empty one.
    pub fn push(&self, delivered: Delivered) {
        let id = delivered.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default();
        self.lock().entry(id).or_default().push(delivered);
    }

    pub(crate) fn take(&self, msg_id: &str) -> Option<()> {
        self.lock().remove(msg_id).map(drop)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Vec<Delivered>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
