use std::collections::VecDeque;

use anyhow::Result;
use async_trait::async_trait;
use outbox_core::Message;

use super::wire::{self, Outgoing};
use crate::case::Case;
use crate::stopwatch::{Sample, Stopwatch};
use crate::variant::Variant;

/// The broker's half: no database, as many confirms in flight as in the hand-written pipeline.
pub(crate) struct Publish;

const IN_FLIGHT: usize = 3_000;

#[async_trait]
impl Variant for Publish {
    fn name(&self) -> &'static str {
        "publish"
    }

    fn about(&self) -> &'static str {
        "publish alone, from memory, 3,000 confirms in flight"
    }

    fn publishes(&self) -> bool {
        true
    }

    fn compared_with(&self) -> &'static [&'static str] {
        &["article", "hand-written"]
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let (queue, count) = (case.queue().await?, case.many());
        let messages: Vec<_> = case.messages(queue.name(), count)?.iter().map(outgoing).collect();
        let channel = case.ground.confirming_channel().await?;
        let stopwatch = Stopwatch::start();
        let mut in_flight = VecDeque::with_capacity(IN_FLIGHT);
        for message in &messages {
            if in_flight.len() == IN_FLIGHT
                && let Some(oldest) = in_flight.pop_front()
            {
                wire::confirmed(oldest).await?;
            }
            in_flight.push_back(wire::send(&channel, message).await?);
        }
        for confirm in in_flight {
            wire::confirmed(confirm).await?;
        }
        let sample = stopwatch.stop(count);
        queue.verify(count).await?;
        Ok(sample)
    }
}

fn outgoing(message: &Message) -> Outgoing {
    Outgoing {
        id: 0,
        msg_id: message.msg_id().to_owned(),
        biz_type: message.biz_type().to_owned(),
        payload: String::from_utf8_lossy(message.payload().as_bytes()).into_owned(),
    }
}
