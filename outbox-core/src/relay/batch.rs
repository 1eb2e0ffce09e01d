use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::claim::{Claim, Claimed, Outcome, Settlement};

/// Rows claimed together, on their way to the publisher.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) rows: Vec<Claimed>,
    /// By this process's monotonic clock, which goes on while the process is stopped.
    pub(crate) lease_ends: Instant,
    /// An unavailable broker is charged to these messages: it was ready for others.
    pub(crate) blamed: bool,
    end: Option<oneshot::Sender<()>>,
}

impl Batch {
    pub(crate) fn new(rows: Vec<Claimed>, lease_ends: Instant) -> Self {
        Self { rows, lease_ends, blamed: false, end: None }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    pub(crate) fn claims(&self) -> Vec<Claim> {
        self.rows.iter().map(|row| row.claim).collect()
    }

    /// Resolves when the batch has come to its end: with an error when it was dropped unsettled.
    pub(crate) fn notify_end(&mut self) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        self.end = Some(sender);
        receiver
    }

    /// What is to be written when publishing ended so.
    pub(crate) fn outcome(self, settlements: Vec<Settlement>) -> Published {
        Published { settlements, end: self.end }
    }

    /// Gives every row back untried.
    pub(crate) fn release(self) -> Published {
        let settlements =
            self.rows.iter().map(|row| Settlement { claim: row.claim, outcome: Outcome::Released }).collect();
        self.outcome(settlements)
    }
}

/// A batch whose publication ended, on its way to the store.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) settlements: Vec<Settlement>,
    end: Option<oneshot::Sender<()>>,
}

impl Published {
    pub(crate) fn done(self) {
        if let Some(end) = self.end {
            let _ = end.send(());
        }
    }
}
