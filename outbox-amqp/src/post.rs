use lapin::options::BasicPublishOptions;
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::time::timeout;

use crate::fit::fit;
use crate::link::Link;
use crate::session::Session;
use crate::trouble::Trouble;

const MANDATORY: BasicPublishOptions = BasicPublishOptions { mandatory: true, immediate: false };

/// One message for one queue, as it is to be stored there.
pub(crate) struct Post<'a> {
    pub(crate) queue: &'a str,
    pub(crate) properties: BasicProperties,
    pub(crate) body: &'a [u8],
}

/// Why a message is not stored, or not known to be.
pub(crate) enum NotStored {
    /// There is no such queue.
    Unroutable,
    Trouble(Trouble),
}

impl<T: Into<Trouble>> From<T> for NotStored {
    fn from(trouble: T) -> Self {
        Self::Trouble(trouble.into())
    }
}

impl Post<'_> {
    /// Ends when the broker has confirmed that the queue has it. It is alone on its channel, so a return and
    /// a confirmation are surely its own. Dropped, it may have been stored.
    pub(crate) async fn store(self, session: &Session) -> Result<(), NotStored> {
        let _turn = session.turn().await;
        let link = session.link().await?;
        if link.is_blocked() {
            return Err(Trouble::blocked().into());
        }
        let channel = link.ask(link.channel()).await.map_err(Trouble::from)?;
        let (queue, frame_max) = (self.queue.to_owned(), link.frame_max());
        let limit = session.config.confirm_timeout;
        let confirmation = tokio::select! {
            sent = timeout(limit, self.send(&channel, frame_max)) => match sent {
                Ok(sent) => sent?,
                Err(_) => return Err(silent(&link, limit).await.into()),
            },
            () = link.stays_blocked() => return Err(Trouble::blocked().and_sent().into()),
        };
        if !matches!(confirmation, Confirmation::NotRequested) {
            link.give_back(channel);
        }
        match confirmation {
            Confirmation::Ack(None) => Ok(()),
            Confirmation::Ack(Some(_)) => Err(NotStored::Unroutable),
            Confirmation::Nack(_) => Err(Trouble::nacked(&queue).into()),
            Confirmation::NotRequested => Err(Trouble::not_confirming().into()),
        }
    }

    async fn send(self, channel: &Channel, frame_max: u32) -> Result<Confirmation, Trouble> {
        let queue = ShortString::try_new(self.queue).map_err(Trouble::too_long)?;
        let exchange = ShortString::default();
        let properties = fit(self.properties, frame_max as usize);
        let sending = channel.basic_publish(exchange, queue, MANDATORY, self.body, properties);
        sending.await.map_err(Trouble::lost)?.await.map_err(Trouble::lost)
    }
}

/// Asks the broker whether it is well.
async fn silent(link: &Link, limit: std::time::Duration) -> Trouble {
    match link.probe().await {
        Ok(()) => Trouble::unconfirmed(limit),
        Err(reason) => {
            link.set_stale();
            reason.into()
        }
    }
}
