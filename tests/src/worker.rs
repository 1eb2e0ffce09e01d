use std::time::Duration;

use async_trait::async_trait;
use outbox_core::consumer::Delivery;
use outbox_core::{Handler, HandlerError, InvalidMessage, Message};
use outbox_sqlx::PgInbox;
use serde_json::Value;
use sqlx::PgPool;
use tokio::time::sleep;

use crate::effects;
use crate::fault::{Fault, FaultPoint};

const CONDUCT: &str = "conduct";

/// What a message makes of its handler. Without one the effect happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Conduct {
    /// The first attempt fails before the effect.
    FailsOnce,
    /// The first attempt panics before the effect.
    PanicsOnce,
    /// The first attempt panics after the effect.
    PanicsLateOnce,
    /// Every attempt fails.
    Fails,
    /// It is rejected.
    Rejected,
    /// It takes so many milliseconds.
    Takes(u64),
}

impl Conduct {
    /// `message`, which makes this of its handler.
    pub fn of(self, message: Message) -> Result<Message, InvalidMessage> {
        let words = match self {
            Self::FailsOnce => "fails-once".to_owned(),
            Self::PanicsOnce => "panics-once".to_owned(),
            Self::PanicsLateOnce => "panics-late-once".to_owned(),
            Self::Fails => "fails".to_owned(),
            Self::Rejected => "rejected".to_owned(),
            Self::Takes(millis) => millis.to_string(),
        };
        message.with_header(CONDUCT, words)
    }

    fn read(order: &Delivery<Value>) -> Option<Self> {
        let first = order.attempt() == 1;
        match order.header(CONDUCT)? {
            "fails-once" => first.then_some(Self::FailsOnce),
            "panics-once" => first.then_some(Self::PanicsOnce),
            "panics-late-once" => first.then_some(Self::PanicsLateOnce),
            "fails" => Some(Self::Fails),
            "rejected" => Some(Self::Rejected),
            millis => millis.parse().ok().map(Self::Takes),
        }
    }
}

/// A handler whose effect is a row, with an inbox in one transaction with the marker.
pub(crate) struct Worker {
    pub(crate) group: String,
    pub(crate) name: String,
    pub(crate) pool: PgPool,
    pub(crate) inbox: Option<PgInbox>,
    pub(crate) fault: Fault,
}

#[async_trait]
impl Handler for Worker {
    type Payload = Value;

    async fn handle(&self, order: Delivery<Value>) -> Result<(), HandlerError> {
        self.fault.at(FaultPoint::BeforeHandler, 1).await;
        effects::begin(&self.pool, &self.group, &self.name, &order).await?;
        let conduct = Conduct::read(&order);
        before(conduct).await?;
        match &self.inbox {
            Some(inbox) => self.once(inbox, &order, conduct).await,
            None => {
                effects::happen(&self.pool, &self.group, &self.name, &order).await?;
                self.after(conduct).await;
                Ok(())
            }
        }
    }
}

impl Worker {
    async fn once(
        &self,
        inbox: &PgInbox,
        order: &Delivery<Value>,
        conduct: Option<Conduct>,
    ) -> Result<(), HandlerError> {
        let effect = async |tx: &mut sqlx::PgConnection| {
            effects::happen(tx, &self.group, &self.name, order).await?;
            self.after(conduct).await;
            Ok::<(), HandlerError>(())
        };
        inbox.once(&self.group, order.msg_id(), effect).await?;
        self.fault.at(FaultPoint::AfterMarker, 1).await;
        Ok(())
    }

    #[expect(clippy::panic, reason = "that is what is tested")]
    async fn after(&self, conduct: Option<Conduct>) {
        self.fault.at(FaultPoint::AfterEffect, 1).await;
        if conduct == Some(Conduct::PanicsLateOnce) {
            panic!("after the effect");
        }
    }
}

#[expect(clippy::panic, reason = "that is what is tested")]
async fn before(conduct: Option<Conduct>) -> Result<(), HandlerError> {
    match conduct {
        Some(Conduct::FailsOnce | Conduct::Fails) => Err(HandlerError::retry("no such product")),
        Some(Conduct::Rejected) => Err(HandlerError::reject("not for sale")),
        Some(Conduct::PanicsOnce) => panic!("before the effect"),
        Some(Conduct::Takes(millis)) => {
            sleep(Duration::from_millis(millis)).await;
            Ok(())
        }
        Some(Conduct::PanicsLateOnce) | None => Ok(()),
    }
}
