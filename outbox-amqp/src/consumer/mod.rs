mod config;
mod errand;
mod ledger;
mod run;
mod slots;
mod suspicion;

use std::fmt;
use std::time::Duration;

use outbox_core::Consumer;
use outbox_core::subscriber::{Stop, SubscriberHandle};
use tracing::warn;

pub use config::{AmqpConsumerConfig, Order};

use errand::Office;
use ledger::Ledger;
use run::Run;
use slots::Slots;

use crate::config::AmqpConfig;
use crate::shelf::Shelf;
use crate::subscription::Subscription;

/// RabbitMQ's default for how long a delivery may go unacknowledged.
const BROKERS_PATIENCE: Duration = Duration::from_secs(1_800);

#[doc = include_str!("consumer.md")]
pub struct AmqpConsumer {
    amqp: AmqpConfig,
    queue: String,
    consumer: Consumer,
    config: AmqpConsumerConfig,
}

impl AmqpConsumer {
    /// Reads `queue` for `consumer`. What `amqp` says of routes does not matter here; its topology is declared
    /// whenever the queue is subscribed to.
    #[must_use]
    pub fn new(amqp: AmqpConfig, queue: impl Into<String>, consumer: Consumer) -> Self {
        Self { amqp, queue: queue.into(), consumer, config: AmqpConsumerConfig::default() }
    }

    /// Other settings.
    #[must_use]
    pub fn with_config(mut self, config: AmqpConsumerConfig) -> Self {
        self.config = config;
        self
    }

    /// Starts to read, and goes on until it is [shut down](SubscriberHandle::shutdown): whatever is wrong
    /// with the broker or the queue is logged, and tried again.
    ///
    /// # Panics
    /// Outside a Tokio runtime.
    pub fn spawn(self) -> SubscriberHandle {
        self.consumer.check_retention();
        self.warn_of_long_retries();
        let Self { amqp, queue, consumer, config } = self;
        let shelf = Shelf::new(amqp.clone(), &queue, config.queue_kind, config.declares);
        let subscription = shelf.beside(Subscription::new(amqp, &queue, config.prefetch));
        let (slots, ledger) = (Slots::new(config.slots()), Ledger::default());
        SubscriberHandle::spawn(subscription.subscribed(), |stop| {
            let (recall, recalled) = Stop::channel();
            let office = Office { consumer, config, shelf, slots, ledger, stop: recalled };
            Run::new(office, subscription, stop, recall).run()
        })
    }

    /// In order, a message is held here from its first attempt to its last.
    fn warn_of_long_retries(&self) {
        let horizon = self.consumer.config().retry().horizon();
        if self.config.order != Order::None && horizon > BROKERS_PATIENCE {
            warn!(
                group = self.consumer.group(),
                "retries in order take up to {horizon:?}, but RabbitMQ takes a message back, with its channel, \
                 after {BROKERS_PATIENCE:?} unless its consumer_timeout says otherwise; let retries take less long"
            );
        }
    }
}

impl fmt::Debug for AmqpConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpConsumer")
            .field("amqp", &self.amqp)
            .field("queue", &self.queue)
            .field("consumer", &self.consumer)
            .field("config", &self.config)
            .finish()
    }
}
