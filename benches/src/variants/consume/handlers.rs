use async_trait::async_trait;
use outbox_core::Payload;
use outbox_core::consumer::{Delivery, Handler, HandlerError};
use outbox_sqlx::PgInbox;
use sqlx::postgres::PgConnection;

use crate::effects::Effects;

/// The effect, and nothing that remembers it.
pub(crate) struct Plain(pub(crate) Effects);

#[async_trait]
impl Handler for Plain {
    type Payload = Payload;

    async fn handle(&self, delivery: Delivery<Payload>) -> Result<(), HandlerError> {
        let mut connection = self.0.pool.acquire().await?;
        self.0.write(&mut connection, delivery.msg_id()).await?;
        self.0.count();
        Ok(())
    }
}

/// The effect in one transaction with its marker.
pub(crate) struct Once {
    pub(crate) effects: Effects,
    pub(crate) inbox: PgInbox,
}

#[async_trait]
impl Handler for Once {
    type Payload = Payload;

    async fn handle(&self, delivery: Delivery<Payload>) -> Result<(), HandlerError> {
        let effect = async |tx: &mut PgConnection| Ok(self.effects.write(tx, delivery.msg_id()).await?);
        let first: Result<Option<()>, HandlerError> =
            self.inbox.once(super::GROUP, delivery.msg_id(), effect).await;
        if first?.is_some() {
            self.effects.count();
        }
        Ok(())
    }
}
