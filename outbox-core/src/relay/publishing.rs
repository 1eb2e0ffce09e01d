use std::collections::HashSet;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tracing::warn;

use super::batch::{Batch, Published};
use super::context::Context;
use super::phase::PhaseWatch;
use super::verdict::{PublishResult, Verdicts, check_in};
use crate::claim::Claim;
use crate::message::Message;
use crate::publisher::PublishError;

/// Publishes batches, several at a time.
pub(crate) struct Publishing {
    pub(crate) context: Arc<Context>,
    pub(crate) phase: PhaseWatch,
    pub(crate) published: mpsc::Sender<Published>,
}

impl Publishing {
    /// Runs until the last batch has come and gone, or until nobody settles any more.
    pub(crate) async fn run(self, mut batches: mpsc::Receiver<Batch>) {
        let mut in_flight = FuturesUnordered::new();
        let mut open = true;
        while (open || !in_flight.is_empty()) && !self.published.is_closed() {
            tokio::select! {
                batch = batches.recv(), if open && in_flight.len() < self.context.config.window => match batch {
                    Some(batch) => in_flight.push(self.pass_on(batch)),
                    None => open = false,
                },
                Some(()) = in_flight.next() => {}
            }
        }
    }

    async fn pass_on(&self, batch: Batch) {
        let rows = batch.len();
        let published = self.process(batch).await;
        let dropped = rows - published.settlements.len();
        self.context.pulse.gave(dropped);
        if self.published.send(published).await.is_err() {
            warn!(rows, "nobody settles any more: these rows go again when their lease has run out");
        }
    }

    async fn process(&self, mut batch: Batch) -> Published {
        if self.phase.is_draining() {
            return batch.release();
        }
        if !self.holds(&mut batch).await {
            return batch.release();
        }
        let mut verdicts = Verdicts::new(&self.context, batch.blamed);
        let rows = verdicts.park_repeat_offenders(std::mem::take(&mut batch.rows));
        if rows.is_empty() {
            return batch.outcome(verdicts.settlements());
        }
        let (tickets, messages) = check_in(rows);
        let claims: Vec<Claim> = tickets.iter().map(|ticket| ticket.claim).collect();
        let started = Instant::now();
        let mut phase = self.phase.clone();
        tokio::select! {
            results = self.publish(&messages) => verdicts.judge(&tickets, &messages, results),
            never = self.keep_claims(&claims, batch.lease_ends) => match never {},
            () = phase.give_back() => verdicts.release(&tickets),
        }
        metrics::histogram!("outbox_publish_seconds").record(started.elapsed().as_secs_f64());
        batch.outcome(verdicts.settlements())
    }

    /// Makes sure that there is time to publish. Rows that somebody else may have taken are dropped; where
    /// that cannot be told, all are to be given back.
    async fn holds(&self, batch: &mut Batch) -> bool {
        let lease = self.context.config.lease;
        if batch.lease_ends >= Instant::now() + lease / 2 {
            return true;
        }
        let ends = Instant::now() + lease;
        let claims = batch.claims();
        match self.renew(&claims).await {
            Some(held) => {
                let held: HashSet<_> = held.into_iter().collect();
                metrics::counter!("outbox_claim_lost_total").increment((claims.len() - held.len()) as u64);
                batch.rows.retain(|row| held.contains(&row.claim));
                batch.lease_ends = ends;
                true
            }
            None => false,
        }
    }

    /// Renews until it is dropped. It never ends by itself: a claim that is lost meanwhile is found out when
    /// it is settled, and the message may be with the broker already.
    async fn keep_claims(&self, claims: &[Claim], lease_ends: Instant) -> Infallible {
        let lease = self.context.config.lease;
        sleep((lease_ends - Instant::now()).saturating_sub(lease * 2 / 3)).await;
        loop {
            let renewed = self.renew(claims).await.is_some();
            sleep(if renewed { lease / 3 } else { lease / 12 }).await;
        }
    }

    /// Within a sixth of the lease, so that a call that hangs leaves time for others.
    async fn renew(&self, claims: &[Claim]) -> Option<Vec<Claim>> {
        let lease = self.context.config.lease;
        let call = self.context.ask("renew", self.context.store.renew(claims, lease));
        timeout(lease / 6, call).await.ok()?.ok()
    }

    async fn publish(&self, messages: &[Message]) -> Vec<PublishResult> {
        match self.guarded(messages).await {
            Some(results) => results,
            None if messages.len() == 1 => vec![Err(panicked())],
            None => self.one_by_one(messages).await,
        }
    }

    /// One of them makes the publisher panic: which one shows when each goes alone.
    async fn one_by_one(&self, messages: &[Message]) -> Vec<PublishResult> {
        let mut results = Vec::with_capacity(messages.len());
        for message in messages {
            let alone = self.guarded(std::slice::from_ref(message)).await;
            results.extend(alone.unwrap_or_else(|| vec![Err(panicked())]));
        }
        results
    }

    /// Within the time limit; `None` when the publisher panicked.
    async fn guarded(&self, messages: &[Message]) -> Option<Vec<PublishResult>> {
        let limit = self.context.config.publish_timeout;
        // In a block, so that a publisher that panics before it returns a future is caught as well.
        let call = AssertUnwindSafe(async { self.context.publisher.publish_batch(messages).await });
        let call = call.catch_unwind();
        match timeout(limit, call).await {
            Ok(Ok(results)) => Some(results),
            Ok(Err(_)) => None,
            Err(_) => {
                let text = format!("the publisher did not answer within {limit:?}");
                self.context.breaker.trip(&text);
                Some(messages.iter().map(|_| Err(PublishError::failed(text.clone()))).collect())
            }
        }
    }
}

fn panicked() -> PublishError {
    PublishError::failed("the publisher panicked on this message")
}
