//! A dedup store and a sink of receipts that fail on demand, a handler that does as it is told, and a log of
//! what happened in which order.
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use chrono::DateTime;
use outbox_core::consumer::{
    Consumer, ConsumerConfig, Delivery, Disposition, Handler, HandlerError, ReceiptError, ReceiptSink,
};
use outbox_core::memory::{MemoryDedup, TokioClock};
use outbox_core::{
    Begin, DedupError, DedupKey, DedupStore, DedupToken, Message, Receipt, RetryPolicy, Verdict,
};
use tokio::task::yield_now;
use tokio::time::sleep;

pub(crate) const GROUP: &str = "points";
pub(crate) const LEASE: Duration = Duration::from_secs(30);
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const LATER: Duration = Duration::from_secs(5);
pub(crate) const MAX_ATTEMPTS: u32 = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Event {
    Begun(String),
    /// The handler was called, with this attempt number.
    Called(String, u32),
    Effect(String),
    Abandoned(String),
    Finished(String),
    Receipt(Receipt),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Event>>>);

impl Log {
    pub(crate) fn push(&self, event: Event) {
        self.0.lock().unwrap().push(event);
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self, of: impl Fn(&Event) -> bool) -> usize {
        self.0.lock().unwrap().iter().filter(|event| of(event)).count()
    }

    pub(crate) fn effects(&self, id: &str) -> usize {
        self.count(|event| matches!(event, Event::Effect(of) if of == id))
    }

    pub(crate) fn calls(&self, id: &str) -> usize {
        self.count(|event| matches!(event, Event::Called(of, _) if of == id))
    }

    pub(crate) fn handled(&self, id: &str) -> usize {
        self.count(|e| matches!(e, Event::Receipt(r) if r.msg_id == id && r.verdict == Verdict::Handled))
    }

    pub(crate) fn rejected(&self, id: &str) -> usize {
        self.count(|e| matches!(e, Event::Receipt(r) if r.msg_id == id && r.verdict != Verdict::Handled))
    }
}

/// How a call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Without an effect.
    Before,
    /// After its effect: the answer is lost.
    After,
    /// Never ends.
    Hang,
}

/// Faults of the next calls, then of all calls while it is away.
#[derive(Debug, Clone, Default)]
pub(crate) struct Faults(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    next: VecDeque<Option<Fault>>,
    away: Option<Fault>,
}

impl Faults {
    pub(crate) fn next(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.0.lock().unwrap().next.extend(faults);
    }

    pub(crate) fn away(&self, fault: Option<Fault>) {
        self.0.lock().unwrap().away = fault;
    }

    pub(crate) fn heal(&self) {
        *self.0.lock().unwrap() = Plan::default();
    }

    /// An await before the effect and one after it, so that a crash can fall on either side.
    pub(crate) async fn around<T>(&self, effect: impl Future<Output = T>) -> Result<T, String> {
        let fault = {
            let mut plan = self.0.lock().unwrap();
            plan.next.pop_front().unwrap_or(plan.away)
        };
        yield_now().await;
        match fault {
            Some(Fault::Before) => return Err("told to fail".to_owned()),
            Some(Fault::Hang) => std::future::pending().await,
            _ => {}
        }
        let answer = effect.await;
        yield_now().await;
        if fault == Some(Fault::After) { Err("told to lose the answer".to_owned()) } else { Ok(answer) }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct FaultyDedup {
    memory: Arc<Mutex<MemoryDedup>>,
    pub(crate) faults: Faults,
    pub(crate) log: Log,
}

fn empty() -> MemoryDedup {
    MemoryDedup::new().with_clock(TokioClock::starting_at(DateTime::UNIX_EPOCH))
}

impl FaultyDedup {
    pub(crate) fn new(log: &Log) -> Self {
        Self { memory: Arc::new(Mutex::new(empty())), faults: Faults::default(), log: log.clone() }
    }

    /// What is behind the faults.
    pub(crate) fn memory(&self) -> MemoryDedup {
        self.memory.lock().unwrap().clone()
    }

    /// As when somebody empties the store.
    pub(crate) fn forget(&self) {
        *self.memory.lock().unwrap() = empty();
    }

    fn note(&self, happened: bool, event: impl Fn(String) -> Event, key: &DedupKey) -> bool {
        if happened {
            self.log.push(event(key.msg_id.clone()));
        }
        happened
    }
}

#[async_trait]
impl DedupStore for FaultyDedup {
    async fn begin(&self, key: &DedupKey, lease: Duration) -> Result<Begin, DedupError> {
        let effect = async {
            let begin = self.memory().begin(key, lease).await?;
            self.note(matches!(begin, Begin::Acquired(_)), Event::Begun, key);
            Ok(begin)
        };
        self.faults.around(effect).await.map_err(DedupError::new)?
    }

    async fn renew(&self, key: &DedupKey, token: DedupToken, lease: Duration) -> Result<bool, DedupError> {
        self.faults
            .around(async { self.memory().renew(key, token, lease).await })
            .await
            .map_err(DedupError::new)?
    }

    async fn finish(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        let effect = async { Ok(self.note(self.memory().finish(key, token).await?, Event::Finished, key)) };
        self.faults.around(effect).await.map_err(DedupError::new)?
    }

    async fn abandon(&self, key: &DedupKey, token: DedupToken) -> Result<bool, DedupError> {
        let effect = async { Ok(self.note(self.memory().abandon(key, token).await?, Event::Abandoned, key)) };
        self.faults.around(effect).await.map_err(DedupError::new)?
    }

    async fn is_done(&self, key: &DedupKey) -> Result<bool, DedupError> {
        self.faults.around(async { self.memory().is_done(key).await }).await.map_err(DedupError::new)?
    }

    fn retention(&self) -> Duration {
        self.memory().retention()
    }
}

/// Checks with every receipt that what it says is true.
#[derive(Debug, Clone, Default)]
pub(crate) struct FaultySink {
    pub(crate) faults: Faults,
    pub(crate) log: Log,
}

#[async_trait]
impl ReceiptSink for FaultySink {
    async fn record(&self, receipts: &[Receipt]) -> Result<(), ReceiptError> {
        let effect = async {
            for receipt in receipts {
                let effects = self.log.effects(&receipt.msg_id);
                assert!(receipt.verdict != Verdict::Handled || effects > 0, "{receipt:?} before any effect");
                self.log.push(Event::Receipt(receipt.clone()));
            }
        };
        self.faults.around(effect).await.map_err(ReceiptError::new)
    }
}

/// What a handler does, in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Succeed,
    FailBefore,
    FailAfter,
    PanicBefore,
    PanicAfter,
    Reject,
    Hang,
    /// Takes that long, then succeeds.
    Take(Duration),
}

/// Acts in order; the last one again and again.
#[derive(Debug, Clone)]
pub(crate) struct Scripted {
    pub(crate) acts: Arc<Mutex<VecDeque<Act>>>,
    log: Log,
}

impl Scripted {
    pub(crate) fn new(acts: impl IntoIterator<Item = Act>, log: &Log) -> Self {
        Self { acts: Arc::new(Mutex::new(acts.into_iter().collect())), log: log.clone() }
    }

    fn next(&self) -> Act {
        let mut acts = self.acts.lock().unwrap();
        if acts.len() > 1 { acts.pop_front() } else { acts.front().copied() }.unwrap_or(Act::Succeed)
    }
}

#[async_trait]
impl Handler for Scripted {
    type Payload = u32;

    async fn handle(&self, delivery: Delivery<u32>) -> Result<(), HandlerError> {
        let id = delivery.msg_id().to_owned();
        self.log.push(Event::Called(id.clone(), delivery.attempt()));
        yield_now().await;
        let act = self.next();
        match act {
            Act::FailBefore => return Err(HandlerError::retry("out of stock")),
            Act::PanicBefore => panic!("out of its mind"),
            Act::Reject => return Err(HandlerError::reject("no such product")),
            Act::Hang => std::future::pending().await,
            Act::Take(time) => sleep(time).await,
            Act::Succeed | Act::FailAfter | Act::PanicAfter => {}
        }
        self.log.push(Event::Effect(id));
        yield_now().await;
        match act {
            Act::FailAfter => Err(HandlerError::retry("connection lost in commit")),
            Act::PanicAfter => panic!("out of its mind"),
            _ => Ok(()),
        }
    }
}

/// A consumer and all its surroundings.
pub(crate) struct World {
    pub(crate) log: Log,
    pub(crate) dedup: FaultyDedup,
    pub(crate) sink: FaultySink,
    pub(crate) handler: Scripted,
    pub(crate) consumer: Arc<Consumer>,
}

impl World {
    pub(crate) fn new(acts: impl IntoIterator<Item = Act>) -> Self {
        Self::configured(acts, config())
    }

    pub(crate) fn configured(acts: impl IntoIterator<Item = Act>, config: ConsumerConfig) -> Self {
        let log = Log::default();
        let (dedup, sink) =
            (FaultyDedup::new(&log), FaultySink { log: log.clone(), ..FaultySink::default() });
        let handler = Scripted::new(acts, &log);
        let consumer = Consumer::new(GROUP, handler.clone(), sink.clone());
        let consumer = Arc::new(consumer.with_dedup(dedup.clone()).with_config(config));
        Self { log, dedup, sink, handler, consumer }
    }

    pub(crate) async fn process(&self, attempts: u32) -> Disposition {
        self.consumer.process(message("m"), attempts).await
    }

    /// As [`process`](Self::process), in a task.
    pub(crate) fn spawn(&self, attempts: u32) -> tokio::task::JoinHandle<Disposition> {
        let consumer = self.consumer.clone();
        tokio::spawn(async move { consumer.process(message("m"), attempts).await })
    }

    pub(crate) async fn is_done(&self) -> bool {
        self.dedup.memory().is_done(&key("m")).await.unwrap()
    }
}

pub(crate) fn config() -> ConsumerConfig {
    let retry = RetryPolicy::default()
        .with_steps([Duration::from_secs(60), Duration::from_secs(300)])
        .with_max_attempts(MAX_ATTEMPTS)
        .with_jitter(0.0);
    ConsumerConfig::default().with_retry(retry).with_lease(LEASE).with_patience(PATIENCE).with_later(LATER)
}

pub(crate) fn key(id: &str) -> DedupKey {
    DedupKey::new(GROUP, id)
}

pub(crate) fn message(id: &str) -> Message {
    Message::json("order.created", "A-1", &1).unwrap().with_msg_id(id).unwrap()
}

/// Not handled, and nobody's fault: comes again soon, uncharged.
pub(crate) fn later(attempts: u32) -> Disposition {
    Disposition::RetryLater { delay: LATER, attempts }
}

pub(crate) async fn passes(time: Duration) {
    sleep(time).await;
}
