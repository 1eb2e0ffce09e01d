use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt, poll_immediate, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The right to run a handler, for as long as it is kept.
pub(super) type Slot = Option<OwnedSemaphorePermit>;
/// A place in the line for a [`Slot`].
pub(super) type Turn = BoxFuture<'static, Slot>;

/// The slots for handlers, given out in the order in which they were asked for.
#[derive(Clone)]
pub(super) struct Slots {
    slots: Arc<Semaphore>,
    all: u32,
}

impl Slots {
    pub(super) fn new(slots: usize) -> Self {
        let all = u32::try_from(slots).unwrap_or(u32::MAX);
        Self { slots: Arc::new(Semaphore::new(slots)), all }
    }

    /// Stands in line, now and not at the first poll of what it gives. `alone`: for all slots at once.
    pub(super) async fn line_up(&self, alone: bool) -> Turn {
        let count = if alone { self.all } else { 1 };
        let slots = self.slots.clone();
        let mut turn = async move { slots.acquire_many_owned(count).await.ok() }.boxed();
        match poll_immediate(&mut turn).await {
            Some(slot) => ready(slot).boxed(),
            None => turn,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn order_is_that_of_lining_up() {
        let slots = Slots::new(2);
        let (first, alone, last) =
            (slots.line_up(false).await, slots.line_up(true).await, slots.line_up(false).await);
        let (mut alone, mut last) = (alone, last);
        let held = first.await;
        assert!(poll_immediate(&mut last).await.is_none(), "the one before it waits");
        assert!(poll_immediate(&mut alone).await.is_none(), "one slot is taken");
        drop(held);
        let all = poll_immediate(&mut alone).await;
        assert!(all.is_some() && poll_immediate(&mut last).await.is_none());
        drop(all);
        assert!(poll_immediate(&mut last).await.is_some());
    }
}
