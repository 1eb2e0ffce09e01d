use anyhow::{Context, Result, ensure};
use async_trait::async_trait;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;

use super::{fill, redis_url};
use crate::case::Case;
use crate::effects::Effects;
use crate::stopwatch::{Sample, Stopwatch};
use crate::variant::Variant;

/// The article's consumer: one message at a time, SETNX for a day, the effect, the acknowledgement.
pub(crate) struct ArticleConsumer;

/// What a listener of the article's framework fetches ahead.
const PREFETCH: u16 = 250;
const A_DAY: u64 = 86_400;

#[async_trait]
impl Variant for ArticleConsumer {
    fn name(&self) -> &'static str {
        "consume-article"
    }

    fn about(&self) -> &'static str {
        "the article's consumer: one message at a time, SETNX, effect, acknowledgement"
    }

    fn publishes(&self) -> bool {
        true
    }

    async fn measure(&self, case: &Case<'_>) -> Result<Sample> {
        let (queue, count) = (case.queue().await?, case.consumed());
        fill(case, &queue, count).await?;
        let effects = Effects::create(case.ground).await?;
        let client = redis::Client::open(redis_url(case)?)?;
        let mut redis = client.get_multiplexed_async_connection().await?;
        let channel = case.ground.confirming_channel().await?;
        channel.basic_qos(PREFETCH, BasicQosOptions::default()).await?;
        let stopwatch = Stopwatch::start();
        let (tag, none) = ("".into(), FieldTable::default());
        let mut deliveries =
            channel.basic_consume(queue.name().into(), tag, BasicConsumeOptions::default(), none).await?;
        let mut connection = case.pool().acquire().await?;
        for _ in 0..count {
            let delivery = next(&mut deliveries).await?;
            let msg_id =
                delivery.properties.message_id().as_ref().context("a message without an id")?.to_string();
            let key = format!("dedup:{}:{msg_id}", effects.table);
            let mut set = redis::cmd("SET");
            let set: Option<String> =
                set.arg(key).arg(1).arg("NX").arg("EX").arg(A_DAY).query_async(&mut redis).await?;
            ensure!(set.is_some(), "{msg_id} came twice");
            effects.write(&mut connection, &msg_id).await?;
            delivery.ack(BasicAckOptions::default()).await?;
        }
        let sample = stopwatch.stop(count);
        channel.close(200, "done".into()).await?;
        drop(connection);
        effects.verify(count).await?;
        queue.verify(0).await?;
        Ok(sample)
    }
}

async fn next(deliveries: &mut lapin::Consumer) -> Result<lapin::message::Delivery> {
    use futures_util::StreamExt;
    Ok(deliveries.next().await.context("the subscription ended")??)
}
