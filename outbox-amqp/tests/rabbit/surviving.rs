//! Consumers whose connection, queue, dedup store or process goes away.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use outbox_amqp::{
    AmqpConfig, AmqpConsumer, AmqpConsumerConfig, Order, Queue, QueueKind, SubscriberHandle, Topology,
};
use outbox_core::consumer::{Delivery, NoReceipts, ReceiptError, handler_fn};
use outbox_core::memory::MemoryDedup;
use outbox_core::{
    Begin, Consumer, DedupError, DedupKey, DedupStore, DedupToken, Message, Receipt, ReceiptSink,
};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::desk::{Desk, GROUP, consume, consume_at, end, fine, order, publish, quick, until};
use crate::lab::{Lab, header, uri};
use crate::proxy::{ACK, Proxy};

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_cut_while_a_handler_runs_brings_the_message_again_and_nothing_runs_beside_itself() {
    let mut lab = Lab::new("cut-handler").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let desk = Desk::new();
    let consumer = desk.forgetful(NoReceipts);
    let handle = consume_at(&proxy.uri(), &queue, consumer, AmqpConsumerConfig::default()).await;
    publish(&lab, &[order("slow", json!({"waits": true})), fine("0")]).await;
    until("the other is handled", || desk.handled() == ["0"] && desk.begun().len() == 2).await;
    sleep(Duration::from_millis(200)).await;
    proxy.cut();
    until("the loss is seen", || !handle.is_subscribed()).await;
    handle.subscribed().await;
    publish(&lab, &[fine("1")]).await;
    until("the next is handled", || desk.handled().len() == 2).await;
    assert_eq!(desk.begun_ids(), ["slow", "0", "1"], "the slow one waits for itself");
    desk.gate.add_permits(1);
    until("the redelivery begins when the first run has ended", || desk.begun().len() == 4).await;
    assert_eq!(desk.handled(), ["0", "1", "slow"]);
    desk.gate.add_permits(1);
    until("nothing runs", || desk.handled().len() == 4).await;
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_attempts_of_a_held_message_outlive_the_connection() {
    let mut lab = Lab::new("held").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_order(Order::ByOrderingKeyOrBizId);
    let handle = consume_at(&proxy.uri(), &queue, desk.consumer(), config).await;
    publish(&lab, &[order("A", json!({"fails": 2, "delay": 1_500})), fine("A")]).await;
    for attempt in 1..=2 {
        until("an attempt", || desk.begun().len() >= attempt).await;
        proxy.cut();
        until("the loss is seen", || !handle.is_subscribed()).await;
        handle.subscribed().await;
    }
    until("both are handled", || desk.handled().len() == 2).await;
    let attempts: Vec<u32> = desk.begun().into_iter().map(|(_, attempt)| attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 1]);
    // On a slow machine the second cut can take an acknowledgement with it, and then something is left.
    assert!(handle.shutdown(Duration::from_secs(5)).await.is_clean());
    lab.end().await;
}

/// With order and without.
fn configs() -> [AmqpConsumerConfig; 2] {
    [Order::None, Order::ByOrderingKeyOrBizId].map(|order| AmqpConsumerConfig::default().with_order(order))
}

async fn cut(proxy: &Proxy, handle: &SubscriberHandle) {
    proxy.cut();
    until("the loss is seen", || !handle.is_subscribed()).await;
    handle.subscribed().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_failure_on_a_lost_connection_is_charged_once_and_does_not_double_the_message() {
    for config in configs() {
        let mut lab = Lab::new("cut-failure").await;
        let queue = lab.queue("#").await;
        let proxy = Proxy::start().await;
        let desk = Desk::new();
        let handle = consume_at(&proxy.uri(), &queue, desk.forgetful(NoReceipts), config).await;
        publish(&lab, &[order("A", json!({"waits": true, "fails": 9, "delay": 100}))]).await;
        for attempt in 1..=3 {
            until("an attempt", || desk.begun().len() == attempt).await;
            cut(&proxy, &handle).await;
            desk.gate.add_permits(1);
        }
        let dead = format!("{queue}.dead");
        assert_eq!(lab.drain(&dead, 1).await, ["A"]);
        sleep(Duration::from_millis(1_500)).await;
        assert_eq!(desk.begun(), [1, 2, 3].map(|attempt| ("A".to_owned(), attempt)));
        end(&lab, &queue, handle).await;
        assert!(lab.get(&dead).await.is_none(), "twice");
        lab.end().await;
    }
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_process_that_outlives_its_connections_gives_no_message_up_for_them() {
    for config in configs() {
        let mut lab = Lab::new("cut-often").await;
        let queue = lab.queue("#").await;
        let proxy = Proxy::start().await;
        let desk = Desk::new();
        let config = config.with_max_returns(3).with_concurrency(1);
        let handle = consume_at(&proxy.uri(), &queue, desk.forgetful(NoReceipts), config).await;
        publish(&lab, &[order("A", json!({"waits": true})), fine("A"), fine("A"), fine("B")]).await;
        until("the first runs", || desk.begun().len() == 1).await;
        for _ in 0..3 {
            sleep(Duration::from_millis(100)).await;
            cut(&proxy, &handle).await;
        }
        desk.gate.add_permits(2);
        until("all are handled, the first once more", || desk.handled().len() == 5).await;
        end(&lab, &queue, handle).await;
        assert!(lab.get(&format!("{queue}.dead")).await.is_none());
        lab.end().await;
    }
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_order_is_kept_when_the_broker_ends_the_subscription_and_not_the_channel() {
    let mut lab = Lab::new("cancelled").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let desk = Desk::new();
    // The broker, which does not know that it has ended the subscription, gives it no more than that.
    let config = AmqpConsumerConfig::default().with_order(Order::ByOrderingKey).with_prefetch(2);
    let handle = consume_at(&proxy.uri(), &queue, desk.consumer(), config).await;
    let keyed = |message: Message| message.with_ordering_key("k").unwrap();
    publish(&lab, &[keyed(order("1", json!({"waits": true}))), keyed(fine("2"))]).await;
    until("the first runs", || desk.begun().len() == 1).await;
    sleep(Duration::from_millis(200)).await;
    proxy.cancel_subscription();
    until("the end is seen", || !handle.is_subscribed()).await;
    handle.subscribed().await;
    publish(&lab, &[keyed(fine("3"))]).await;
    sleep(Duration::from_millis(200)).await;
    desk.gate.add_permits(1);
    until("all are handled", || desk.handled().len() == 3).await;
    assert_eq!(desk.handled(), ["1", "2", "3"]);
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_message_that_is_put_back_by_hand_starts_anew_where_it_was_held_before() {
    let mut lab = Lab::new("put-back").await;
    let queue = lab.queue("#").await;
    let mut proxy = Proxy::start().await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_order(Order::ByOrderingKeyOrBizId);
    let handle = consume_at(&proxy.uri(), &queue, desk.consumer(), config).await;
    let message = order("A", json!({"fails": 1, "delay": 500}));
    publish(&lab, std::slice::from_ref(&message)).await;
    until("it has failed", || desk.begun().len() == 1).await;
    proxy.refuse().await;
    until("the loss is seen", || !handle.is_subscribed()).await;
    assert_eq!(lab.drain(&queue, 1).await, ["A"]);
    publish(&lab, &[message]).await;
    proxy.accept().await;
    until("it is handled", || desk.handled() == ["A"]).await;
    assert_eq!(desk.begun(), [1, 1, 2].map(|attempt| ("A".to_owned(), attempt)));
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_half_open_connection_is_given_up_and_the_next_host_is_used() {
    let mut lab = Lab::new("half-open-consumer").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let desk = Desk::new();
    let amqp = AmqpConfig::new(proxy.uri()).unwrap().with_host(uri()).unwrap();
    let amqp = amqp.with_heartbeat(Duration::from_secs(1)).with_connect_timeout(Duration::from_millis(500));
    let handle = AmqpConsumer::new(amqp, &queue, desk.consumer()).spawn();
    handle.subscribed().await;
    proxy.stall();
    publish(&lab, &[fine("0")]).await;
    until("it comes by the other host", || desk.handled() == ["0"]).await;
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_deleted_queue_is_declared_and_read_again() {
    let mut lab = Lab::new("deleted").await;
    let queue = lab.queue("#").await;
    let desk = Desk::new();
    let mine = Queue::quorum(&queue).with_argument("x-expires", 600_000);
    let topology = Topology::default().with_queue(mine).with_binding(&lab.exchange, "#", &queue);
    lab.channel.queue_delete(queue.as_str().into(), Default::default()).await.unwrap();
    let amqp = AmqpConfig::new(uri()).unwrap().with_topology(topology);
    let handle = AmqpConsumer::new(amqp, &queue, desk.consumer()).spawn();
    handle.subscribed().await;
    lab.channel.queue_delete(queue.as_str().into(), Default::default()).await.unwrap();
    until("the end is seen", || !handle.is_subscribed()).await;
    handle.subscribed().await;
    publish(&lab, &[fine("0")]).await;
    until("it is handled", || desk.handled() == ["0"]).await;
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_consumer_that_declares_nothing_waits_for_its_queues_and_acknowledges_nothing_without_them()
{
    let mut lab = Lab::new("undeclared").await;
    let queue = lab.queue_with("#", "classic", &[]).await;
    let desk = Desk::new();
    let amqp = AmqpConfig::new(uri()).unwrap();
    let config = AmqpConsumerConfig::default().without_declaring();
    let handle = AmqpConsumer::new(amqp, &queue, desk.consumer()).with_config(config).spawn();
    publish(&lab, &[order("A", json!({"fails": 1})), fine("B")]).await;
    assert!(timeout(Duration::from_millis(600), handle.subscribed()).await.is_err(), "without dead letters");
    let declare = async |name: String, queue: Queue| {
        let topology = Topology::default().with_queue(queue);
        let publisher =
            outbox_amqp::AmqpPublisher::new(AmqpConfig::new(uri()).unwrap().with_topology(topology));
        outbox_core::Publisher::ready(&publisher).await.unwrap();
        name
    };
    let dead = format!("{queue}.dead");
    declare(dead.clone(), Queue::classic(&dead)).await;
    handle.subscribed().await;
    until("the other is handled", || desk.handled() == ["B"]).await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(desk.begun().len(), 2, "it waits for its retry queue, unacknowledged");
    let retry = format!("{queue}.retry.1000");
    let waiting = Queue::classic(&retry).with_dead_letter_exchange("").with_dead_letter_routing_key(&queue);
    declare(retry, waiting).await;
    until("it is handled", || desk.handled() == ["B", "A"]).await;
    end(&lab, &queue, handle).await;
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_classic_queues_retry_and_bury_too() {
    let mut lab = Lab::new("classic").await;
    let queue = lab.queue_with("#", "classic", &[]).await;
    publish(&lab, &[order("A", json!({"fails": 1})), order("B", json!({"rejects": true}))]).await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_queue_kind(QueueKind::Classic);
    let handle = consume(&queue, desk.consumer(), config).await;
    until("it is handled", || desk.handled() == ["A"]).await;
    end(&lab, &queue, handle).await;
    assert_eq!(lab.drain(&format!("{queue}.dead"), 1).await, ["B"]);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_shutdown_returns_what_has_not_begun_and_drops_what_does_not_end() {
    let mut lab = Lab::new("shutdown").await;
    let queue = lab.queue("#").await;
    let mut messages = vec![order("ends", json!({"waits": true})), order("hangs", json!({"waits": true}))];
    messages.extend((0..8).map(|i| fine(&i.to_string())));
    publish(&lab, &messages).await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_concurrency(2).with_prefetch(6);
    let handle = consume(&queue, desk.consumer(), config).await;
    until("two run", || desk.begun().len() == 2).await;
    let other = Desk::new();
    let (report, ()) = tokio::join!(handle.shutdown(Duration::from_secs(5)), async {
        let handle = consume(&queue, other.consumer(), AmqpConsumerConfig::default()).await;
        until("the others go on elsewhere", || other.handled().len() == 8).await;
        assert!(desk.handled().is_empty(), "and at once");
        handle.shutdown(Duration::from_secs(2)).await;
        desk.gate.add_permits(1);
    });
    assert_eq!((report.answered, report.returned, report.dropped), (1, 4, 1), "{report:?}");
    assert!(!report.is_clean());
    assert_eq!(desk.handled(), ["ends"]);
    assert_eq!(lab.drain(&queue, 1).await, ["hangs"]);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_shutdown_counts_as_one_return() {
    let mut lab = Lab::new("one-return").await;
    let queue = lab.queue("#").await;
    let messages: Vec<Message> = (0..200).map(|i| order(&i.to_string(), json!({"waits": true}))).collect();
    publish(&lab, &messages).await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_concurrency(1).with_prefetch(100);
    let handle = consume(&queue, desk.consumer(), config).await;
    until("one runs", || desk.begun().len() == 1).await;
    sleep(Duration::from_millis(500)).await;
    let report = handle.shutdown(Duration::from_millis(500)).await;
    assert_eq!((report.returned, report.dropped), (99, 1), "{report:?}");
    let mut counts = Vec::new();
    while let Some(letter) = lab.get(&queue).await {
        let headers = letter.properties.headers().as_ref().unwrap().inner();
        counts.push(headers.get("x-delivery-count").map_or(0, |count| count.as_long_long_int().unwrap()));
    }
    counts.sort();
    assert_eq!(counts, [[0; 100], [1; 100]].concat());
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_shutdown_in_order_lets_nobody_begin_before_what_runs_has_ended() {
    let mut lab = Lab::new("shutdown-order").await;
    let queue = lab.queue("#").await;
    let waits = |biz_id: &str| order(biz_id, json!({"waits": true}));
    publish(&lab, &[waits("A"), order("B", json!({"fails": 1, "delay": 60_000})), fine("A"), fine("B")])
        .await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_order(Order::ByOrderingKeyOrBizId);
    let handle = consume(&queue, desk.consumer(), config.clone()).await;
    until("both keys are at work", || desk.begun().len() == 2).await;
    let other = Desk::new();
    let (report, next) = tokio::join!(handle.shutdown(Duration::from_secs(20)), async {
        let next = consume(&queue, other.consumer(), config).await;
        sleep(Duration::from_millis(500)).await;
        assert!(other.begun().is_empty(), "{:?}", other.begun());
        desk.gate.add_permits(1);
        next
    });
    assert_eq!((report.answered, report.returned, report.is_clean()), (1, 3, true), "{report:?}");
    until("the other A is handled, and B begins anew", || other.begun().len() == 2).await;
    assert_eq!((other.handled(), desk.handled()), (vec!["A".to_owned()], vec!["A".to_owned()]));
    next.shutdown(Duration::from_secs(5)).await;
    assert_eq!(lab.drain(&queue, 2).await, ["B", "B"]);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_order_is_kept_by_what_a_shutdown_returns() {
    let mut lab = Lab::new("returned-order").await;
    let queue = lab.queue("#").await;
    let keyed = |i: usize| {
        let act = if i == 0 { json!({"fails": 1, "delay": 60_000}) } else { json!({}) };
        order(&i.to_string(), act).with_ordering_key("k").unwrap()
    };
    publish(&lab, &(0..8).map(keyed).collect::<Vec<_>>()).await;
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_order(Order::ByOrderingKey).with_prefetch(5);
    let handle = consume(&queue, desk.consumer(), config).await;
    until("the first has failed", || desk.begun().len() == 1).await;
    sleep(Duration::from_millis(200)).await;
    let report = handle.shutdown(Duration::from_secs(5)).await;
    assert!(report.is_clean(), "{report:?}");
    let expected: Vec<String> = (0..8).map(|i| i.to_string()).collect();
    assert_eq!(lab.drain(&queue, 8).await, expected);
    lab.end().await;
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_shutdown_without_a_broker_ends_within_its_bound() {
    let mut lab = Lab::new("shutdown-away").await;
    let queue = lab.queue("#").await;
    let mut proxy = Proxy::start().await;
    let desk = Desk::new();
    let handle = consume_at(&proxy.uri(), &queue, desk.consumer(), AmqpConsumerConfig::default()).await;
    publish(&lab, &[order("slow", json!({"waits": true}))]).await;
    until("it runs", || desk.begun().len() == 1).await;
    proxy.refuse().await;
    until("the loss is seen", || !handle.is_subscribed()).await;
    let began = Instant::now();
    let report = handle.shutdown(Duration::from_millis(500)).await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert_eq!(report.dropped, 1);
    lab.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_shutdown_under_a_handler_that_blocks_its_thread_ends_within_its_bound() {
    let mut lab = Lab::new("shutdown-blocked").await;
    let queue = lab.queue("#").await;
    let (asker, gate) = std::sync::mpsc::channel::<()>();
    let (gate, runs) = (Arc::new(std::sync::Mutex::new(gate)), Arc::new(AtomicUsize::new(0)));
    let begun = runs.clone();
    let handler = handler_fn(move |_: Delivery<Value>| {
        let (gate, runs) = (gate.clone(), runs.clone());
        async move {
            runs.fetch_add(1, Ordering::SeqCst);
            let _ = gate.lock().unwrap().recv();
            Ok(())
        }
    });
    let consumer = Consumer::new(GROUP, handler, NoReceipts);
    let handle = consume(&queue, consumer, AmqpConsumerConfig::default()).await;
    publish(&lab, &[fine("0")]).await;
    until("it runs", || begun.load(Ordering::SeqCst) == 1).await;
    let report = timeout(Duration::from_secs(5), handle.shutdown(Duration::from_millis(300))).await.unwrap();
    assert_eq!((report.dropped, report.is_clean()), (1, false), "{report:?}");
    assert_eq!(lab.drain(&queue, 1).await, ["0"], "it is back while the handler still runs");
    drop(asker);
    lab.end().await;
}

/// A dedup store that can be away.
#[derive(Clone, Default)]
struct Moody {
    memory: MemoryDedup,
    away: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
}

impl Moody {
    fn check(&self) -> Result<(), DedupError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        match self.away.load(Ordering::SeqCst) {
            true => Err(DedupError::new("told to be away")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl DedupStore for Moody {
    async fn begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError> {
        self.check()?;
        self.memory.begin(key, lease).await
    }
    async fn renew(&self, key: &DedupKey, token: DedupToken, lease: Duration) -> Result<bool, DedupError> {
        self.check()?;
        self.memory.renew(key, token, lease).await
    }
    async fn finish(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.check()?;
        self.memory.finish(key, token).await
    }
    async fn abandon(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        self.check()?;
        self.memory.abandon(key, token).await
    }
    async fn is_done(&self, key: &DedupKey) -> Result<bool, DedupError> {
        self.memory.is_done(key).await
    }
    fn retention(&self) -> Duration {
        self.memory.retention()
    }
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_dedup_store_away_pauses_consumption_without_a_hot_loop() {
    let mut lab = Lab::new("dedup-away").await;
    let queue = lab.queue("#").await;
    let messages: Vec<Message> = (0..30).map(|i| fine(&i.to_string())).collect();
    let (desk, dedup) = (Desk::new(), Moody::default());
    dedup.away.store(true, Ordering::SeqCst);
    let config = AmqpConsumerConfig::default().with_prefetch(10).with_hold(Duration::from_millis(1_500));
    let handle = consume(&queue, desk.consumer_with(dedup.clone(), NoReceipts), config).await;
    publish(&lab, &messages).await;
    sleep(Duration::from_secs(4)).await;
    let calls = dedup.calls.load(Ordering::SeqCst);
    assert!((10..600).contains(&calls), "{calls} calls in four seconds");
    assert!(desk.begun().is_empty());
    dedup.away.store(false, Ordering::SeqCst);
    until("all are handled", || desk.handled().len() == 30).await;
    assert!(desk.begun().iter().all(|(_, attempt)| *attempt == 1), "nothing was charged");
    end(&lab, &queue, handle).await;
    assert!(lab.get(&format!("{queue}.dead")).await.is_none());
    lab.end().await;
}

/// A sink of receipts that panics, as code of others may, or is away.
struct Broken {
    panics: bool,
    healed: Arc<AtomicBool>,
}

#[async_trait]
impl ReceiptSink for Broken {
    async fn record(&self, _: &[Receipt]) -> Result<(), ReceiptError> {
        if self.healed.load(Ordering::SeqCst) {
            return Ok(());
        }
        assert!(!self.panics, "told to panic");
        Err(ReceiptError::new("told to be away"))
    }
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_receipts_that_cannot_be_sent_keep_the_delivery_unacknowledged() {
    for panics in [false, true] {
        let mut lab = Lab::new("receipts-away").await;
        let queue = lab.queue("#").await;
        publish(&lab, &[fine("0")]).await;
        let (desk, healed) = (Desk::new(), Arc::new(AtomicBool::new(false)));
        let consumer = desk.consumer_with(MemoryDedup::new(), Broken { panics, healed: healed.clone() });
        let handle = consume(&queue, consumer, AmqpConsumerConfig::default()).await;
        until("it is handled", || desk.handled() == ["0"]).await;
        sleep(Duration::from_millis(500)).await;
        let report = handle.shutdown(Duration::from_secs(2)).await;
        assert_eq!((report.returned, report.answered), (1, 0), "{report:?}");
        assert_eq!(lab.drain(&queue, 1).await, ["0"]);
        lab.end().await;
    }
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_crash_after_the_retry_is_stored_doubles_the_message_and_does_not_lose_it() {
    let mut lab = Lab::new("crash-retry").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let (desk, dedup) = (Desk::new(), MemoryDedup::new());
    let consumer = || desk.consumer_with(dedup.clone(), NoReceipts);
    let handle = consume_at(&proxy.uri(), &queue, consumer(), AmqpConsumerConfig::default()).await;
    proxy.swallow(Some(ACK));
    publish(&lab, &[order("0", json!({"fails": 1, "delay": 1_500}))]).await;
    until("the retry is stored", || proxy.swallow_count() > 0).await;
    handle.abort();
    proxy.cut();
    assert_eq!(lab.drain(&queue, 1).await, ["0"], "the original came back");
    let handle = consume(&queue, consumer(), AmqpConsumerConfig::default()).await;
    until("the retry is handled", || desk.handled() == ["0"]).await;
    assert_eq!(desk.begun(), [("0".to_owned(), 1), ("0".to_owned(), 2)]);
    end(&lab, &queue, handle).await;
    lab.end().await;
}

/// A "process" is a consumer; the handler of the killer has it ended.
#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_message_that_kills_every_process_is_given_up_and_its_neighbours_are_handled() {
    let mut lab = Lab::new("killer").await;
    let queue = lab.queue("#").await;
    let messages: Vec<Message> = (0..6)
        .map(|i| if i == 2 { order("killer", json!({"waits": true})) } else { fine(&i.to_string()) })
        .collect();
    let desk = Desk::new();
    let config = AmqpConsumerConfig::default().with_max_returns(4).with_concurrency(2);
    publish(&lab, &messages).await;
    let dead = format!("{queue}.dead");
    let runs = || desk.begun_ids().iter().filter(|id| *id == "killer").count();
    let mut processes = 0;
    let letter = loop {
        processes += 1;
        assert!(processes < 10, "for ever");
        let before = runs();
        let consumer = desk.consumer_with(MemoryDedup::new(), NoReceipts);
        let handle = consume(&queue, consumer, config.clone()).await;
        let letter = loop {
            match lab.get(&dead).await {
                None if runs() == before => sleep(Duration::from_millis(10)).await,
                letter => break letter,
            }
        };
        let Some(letter) = letter else {
            handle.abort();
            continue;
        };
        until("the others are handled", || desk.handled().into_iter().collect::<BTreeSet<_>>().len() == 5)
            .await;
        end(&lab, &queue, handle).await;
        break letter;
    };
    assert_eq!(header(&letter.properties, "outbox-biz-id"), "killer");
    assert!(header(&letter.properties, "outbox-dead-reason").contains("came back 4 times without an answer"));
    assert!(lab.get(&dead).await.is_none(), "nobody else");
    lab.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_crashes_at_any_moment_lose_nothing() {
    let mut lab = Lab::new("crashes").await;
    let queue = lab.queue("#").await;
    let messages: Vec<Message> = (0..120)
        .map(|i| match i % 4 {
            0 => order(&format!("retry{i}"), json!({"fails": 1, "delay": 50})),
            1 => order(&format!("dead{i}"), json!({"rejects": true})),
            _ => order(&format!("fine{i}"), json!({"takes": i % 7})),
        })
        .collect();
    publish(&lab, &messages).await;
    let (desk, dedup) = (Desk::new(), MemoryDedup::new());
    let config = AmqpConsumerConfig::default().with_max_returns(1_000);
    for round in 0..15 {
        let handle = consume(&queue, desk.consumer_with(dedup.clone(), NoReceipts), config.clone()).await;
        sleep(Duration::from_millis(5 + round * 7 % 40)).await;
        handle.abort();
    }
    let handle = consume(&queue, desk.consumer_with(dedup.clone(), NoReceipts), config).await;
    let handled = || desk.handled().into_iter().collect::<BTreeSet<String>>().len();
    until("all are handled", || handled() == 90).await;
    let dead: BTreeSet<String> = lab.drain(&format!("{queue}.dead"), 30).await.into_iter().collect();
    assert_eq!(dead.len(), 30, "{dead:?}");
    assert!(dead.iter().all(|id| id.starts_with("dead")), "{dead:?}");
    handle.shutdown(Duration::from_secs(5)).await;
    lab.end().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_order_within_a_key_holds_over_cut_connections() {
    let mut lab = Lab::new("order-cuts").await;
    let queue = lab.queue("#").await;
    let proxy = Proxy::start().await;
    let (desk, dedup) = (Desk::new(), MemoryDedup::new());
    let messages: Vec<Message> = (0..90)
        .map(|i| {
            let act = json!({"takes": i % 9, "fails": u64::from(i % 10 == 5), "delay": 30});
            order(&i.to_string(), act).with_ordering_key((i % 3).to_string()).unwrap()
        })
        .collect();
    publish(&lab, &messages).await;
    let config = AmqpConsumerConfig::default().with_order(Order::ByOrderingKey).with_max_returns(1_000);
    let consumer = desk.consumer_with(dedup, NoReceipts);
    let handle = consume_at(&proxy.uri(), &queue, consumer, config).await;
    for round in 0..6 {
        sleep(Duration::from_millis(20 + 15 * round)).await;
        proxy.cut();
        until("the loss is seen", || !handle.is_subscribed()).await;
        handle.subscribed().await;
    }
    let handled = || desk.handled().into_iter().collect::<BTreeSet<String>>().len();
    until("all are handled", || handled() == 90).await;
    for key in 0..3 {
        let of_key = desk.handled().into_iter().map(|id| id.parse::<u64>().unwrap()).filter(|i| i % 3 == key);
        let mut first_times: Vec<u64> = Vec::new();
        of_key.for_each(|i| {
            if !first_times.contains(&i) {
                first_times.push(i)
            }
        });
        assert!(first_times.is_sorted(), "{first_times:?}");
    }
    assert!(handle.shutdown(Duration::from_secs(5)).await.is_clean());
    lab.end().await;
}

/// The handler's own type, over a message of a stranger who sends nothing but a body and an id.
#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_message_of_a_stranger_is_handled_and_keeps_its_event_type_over_retries() {
    let mut lab = Lab::new("stranger").await;
    let queue = lab.queue("#").await;
    let (seen, mut got) = tokio::sync::mpsc::unbounded_channel();
    let handler = handler_fn(move |delivery: Delivery<Value>| {
        let seen = seen.clone();
        async move {
            seen.send((delivery.biz_type().to_owned(), delivery.attempt()))?;
            if delivery.attempt() == 1 {
                return Err(outbox_core::HandlerError::retry("once more"));
            }
            Ok(())
        }
    });
    let consumer = Consumer::new(GROUP, handler, NoReceipts).with_config(quick());
    let handle = consume(&queue, consumer, AmqpConsumerConfig::default()).await;
    let properties = lapin::BasicProperties::default().with_message_id("m-1".into());
    let exchange = lab.exchange.as_str().into();
    lab.channel.basic_publish(exchange, "a.b".into(), Default::default(), b"{}", properties).await.unwrap();
    assert_eq!(got.recv().await.unwrap(), ("a.b".to_owned(), 1));
    assert_eq!(got.recv().await.unwrap(), ("a.b".to_owned(), 2));
    end(&lab, &queue, handle).await;
    lab.end().await;
}
