use std::sync::Mutex;

use tokio::sync::watch;

use super::lock;

/// A value whose changes tasks can wait for.
#[derive(Debug, Default)]
pub(super) struct Watched<T> {
    value: Mutex<T>,
    changed: watch::Sender<()>,
}

impl<T> Watched<T> {
    pub(super) fn change<A>(&self, change: impl FnOnce(&mut T) -> A) -> A {
        let answer = change(&mut lock(&self.value));
        self.changed.send_replace(());
        answer
    }

    /// Waits until `ready` answers. Cancellation safe: what `ready` took is in its answer or was not taken.
    pub(super) async fn wait_until<A>(&self, mut ready: impl FnMut(&mut T) -> Option<A>) -> A {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(answer) = ready(&mut lock(&self.value)) {
                return answer;
            }
            // The sender lives as long as `self`: this never fails.
            _ = changed.changed().await;
        }
    }
}
