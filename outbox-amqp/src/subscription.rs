use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{Channel, Consumer};
use outbox_core::relay::Backoff;
use outbox_core::subscriber::Stop;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::config::AmqpConfig;
use crate::letter::Letter;
use crate::link::Link;
use crate::session::Session;
use crate::topology::{Queue, Topology};
use crate::trouble::Trouble;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long the broker may take to end a subscription or a channel.
const ENDING_TIMEOUT: Duration = Duration::from_secs(3);

/// A queue to read from, through any number of connections.
pub(crate) struct Subscription {
    session: Session,
    /// Declared at each subscribing, since a queue may have been deleted meanwhile.
    topology: Topology,
    queue: String,
    /// Further queues that must be there.
    companions: Vec<String>,
    prefetch: u16,
    backoff: Backoff,
    subscribed: watch::Sender<bool>,
}

impl Subscription {
    pub(crate) fn new(mut config: AmqpConfig, queue: &str, prefetch: u16) -> Self {
        let topology = std::mem::take(&mut config.topology);
        Self {
            session: Session::new(config),
            topology,
            queue: queue.to_owned(),
            companions: Vec::new(),
            prefetch,
            backoff: Backoff::new(FIRST_PAUSE, LONGEST_PAUSE),
            subscribed: watch::Sender::new(false),
        }
    }

    pub(crate) fn with_queue(mut self, queue: Queue) -> Self {
        self.topology = self.topology.with_queue(queue);
        self
    }

    pub(crate) fn with_companion(mut self, queue: impl Into<String>) -> Self {
        self.companions.push(queue.into());
        self
    }

    /// Whether messages flow.
    pub(crate) fn subscribed(&self) -> watch::Receiver<bool> {
        self.subscribed.subscribe()
    }

    /// Subscribes, however long it takes. `last` is the stay before, where there was one: a short one makes
    /// the pause before the next longer. None when it is to stop.
    pub(crate) async fn open(&mut self, last: Option<Duration>, stop: &Stop) -> Option<Stay> {
        tokio::select! {
            biased;
            () = stop.asked() => None,
            stay = self.insist(last) => Some(stay),
        }
    }

    async fn insist(&mut self, last: Option<Duration>) -> Stay {
        if let Some(lasted) = last {
            if lasted > LONGEST_PAUSE {
                self.backoff.reset();
            }
            sleep(self.backoff.pause()).await;
        }
        loop {
            match self.subscribe().await {
                Ok(stay) => return stay,
                Err(trouble) => warn!(queue = self.queue, %trouble, "not subscribed; trying again"),
            }
            sleep(self.backoff.pause()).await;
        }
    }

    async fn subscribe(&self) -> Result<Stay, Trouble> {
        let link = self.session.link().await?;
        let limit = self.session.config.connect_timeout;
        let Ok(subscribing) = timeout(limit, self.subscribe_on(&link)).await else {
            link.cut();
            return Err(Trouble::silent());
        };
        let (channel, deliveries) = subscribing?;
        info!(queue = self.queue, prefetch = self.prefetch, "subscribed");
        self.subscribed.send_replace(true);
        let subscribed = self.subscribed.clone();
        Ok(Stay { link, channel, deliveries, since: Instant::now(), subscribed })
    }

    async fn subscribe_on(&self, link: &Link) -> Result<(Channel, Consumer), Trouble> {
        let channel = link.open_channel().await.map_err(Trouble::lost)?;
        self.topology.declare(&channel).await.map_err(Trouble::declaring)?;
        for companion in &self.companions {
            check(&channel, companion).await?;
        }
        let qos = channel.basic_qos(self.prefetch, BasicQosOptions::default());
        qos.await.map_err(Trouble::lost)?;
        let queue = ShortString::try_new(&self.queue).map_err(Trouble::too_long)?;
        let (tag, none) = (ShortString::default(), FieldTable::default());
        let consuming = channel.basic_consume(queue, tag, BasicConsumeOptions::default(), none);
        let deliveries = consuming.await.map_err(|error| Trouble::missing(&self.queue, error))?;
        Ok((channel, deliveries))
    }

    /// Ends the connection: what was delivered and not answered goes back to the queue.
    pub(crate) async fn close(&self) {
        self.subscribed.send_replace(false);
        if let Err(trouble) = self.session.close().await {
            warn!(%trouble, "the connection was not closed in good order");
        }
    }
}

async fn check(channel: &Channel, queue: &str) -> Result<(), Trouble> {
    let name = ShortString::try_new(queue).map_err(Trouble::too_long)?;
    let passive = QueueDeclareOptions { passive: true, ..Default::default() };
    match channel.queue_declare(name, passive, FieldTable::default()).await {
        Ok(_) => Ok(()),
        Err(error) => Err(Trouble::missing(queue, error)),
    }
}

/// A time during which messages flow, on one channel.
pub(crate) struct Stay {
    link: Arc<Link>,
    channel: Channel,
    deliveries: Consumer,
    since: Instant,
    subscribed: watch::Sender<bool>,
}

impl Stay {
    /// Ends the channel, if the broker has ended the subscription alone: all its letters are lost then, and none
    /// comes after later ones. How long it lasted.
    pub(crate) async fn end(self) -> Duration {
        let lasted = self.since.elapsed();
        if self.channel.status().connected() {
            let closing = self.channel.close(200, "the subscription has ended".into());
            if timeout(ENDING_TIMEOUT, closing).await.is_err() {
                self.link.cut();
            }
        }
        lasted
    }

    /// The next message; none when the stay is over. Cancellation safe.
    pub(crate) async fn next(&mut self) -> Option<Letter> {
        match self.deliveries.next().await {
            Some(Ok(delivery)) => return Some(Letter::new(delivery, self.channel.clone())),
            Some(Err(error)) => warn!(%error, "the subscription was lost"),
            None => info!("the subscription has ended"),
        }
        None
    }

    /// Puts what has arrived and was not taken back into the queue, once the flow is stopped; how much that was.
    pub(crate) async fn give_back_the_rest(&mut self) -> usize {
        let mut returned = 0;
        while let Some(letter) = self.next().await {
            returned += usize::from(letter.give_back().await);
        }
        returned
    }

    /// Stops the flow; `false`: the broker has not said that it is stopped.
    pub(crate) async fn cancel(&self) -> bool {
        let cancelling = self.channel.basic_cancel(self.deliveries.tag(), BasicCancelOptions::default());
        let cancelled = matches!(timeout(ENDING_TIMEOUT, cancelling).await, Ok(Ok(())));
        if !cancelled {
            warn!("the subscription was not cancelled in good order");
        }
        cancelled
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.subscribed.send_replace(false);
    }
}
