use std::fmt;

use async_trait::async_trait;
use outbox_core::{Message, PublishError, Publisher};

use crate::batch::Batch;
use crate::config::AmqpConfig;
use crate::link::Link;
use crate::session::Session;
use crate::trouble::Trouble;

/// Publishes to RabbitMQ, persistent, `mandatory`, and with all confirmations of a batch in flight together.
///
/// The connection is opened by the first call and opened anew, by the next call, after any error. Calls may
/// run concurrently; each has a channel of its own. Dropping a call gives up its channel; its messages may
/// have been published. When a batch-mate makes RabbitMQ close the channel, the others are sent again within
/// the same call: they may arrive twice, and never fail for it.
pub struct AmqpPublisher {
    session: Session,
}

impl AmqpPublisher {
    /// Connects to nothing yet; [`ready`](Publisher::ready) does.
    #[must_use]
    pub fn new(config: AmqpConfig) -> Self {
        Self { session: Session::new(config) }
    }
}

#[async_trait]
impl Publisher for AmqpPublisher {
    async fn publish(&self, message: &Message) -> Result<(), PublishError> {
        let mut verdicts = self.publish_batch(std::slice::from_ref(message)).await;
        verdicts.pop().unwrap_or_else(|| Err(Trouble::late().error()))
    }

    async fn publish_batch(&self, messages: &[Message]) -> Vec<Result<(), PublishError>> {
        Batch::new(&self.session, messages).run().await
    }

    /// Connects if need be, and opens a channel.
    async fn ready(&self) -> Result<(), PublishError> {
        let link = self.session.link().await.map_err(|trouble| trouble.error())?;
        check(&link).await.map_err(|trouble| trouble.error())
    }

    async fn close(&self) -> Result<(), PublishError> {
        self.session.close().await.map_err(|trouble| trouble.error())
    }
}

async fn check(link: &Link) -> Result<(), Trouble> {
    if link.is_blocked() {
        return Err(Trouble::blocked());
    }
    link.ask(link.open_channel()).await?;
    Ok(())
}

impl fmt::Debug for AmqpPublisher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpPublisher").field("config", &self.session.config).finish_non_exhaustive()
    }
}
