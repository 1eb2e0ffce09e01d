//! Many messages, duplicates, concurrent deliveries, crashes and faults of everything at once, from a seed.
//! `OUTBOX_CONSUMER_SEEDS=first..last` runs others.
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use outbox_core::consumer::Disposition;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::crashes::crash_after;
use crate::fakes::{Act, Fault, MAX_ATTEMPTS, World, config, message};

const MESSAGES: usize = 12;
const WORKERS: usize = 4;

/// A delivery that waits in the broker.
#[derive(Debug, Clone)]
struct Waiting {
    id: String,
    attempts: u32,
}

struct Run {
    rng: Rng,
    world: Arc<World>,
    queue: VecDeque<Waiting>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let acts: Vec<Act> = (0..200).map(|_| act(&mut rng)).collect();
        let config = config().with_handler_timeout(Duration::from_secs(300));
        let world = Arc::new(World::configured(acts, config));
        let waiting = |n: usize| Waiting { id: format!("m{}", n % MESSAGES), attempts: 0 };
        let queue = (0..3 * MESSAGES).map(waiting).collect();
        Self { rng, world, queue }
    }

    /// First with trouble, then without, until the queue is empty.
    async fn run(mut self) {
        let mut out = JoinSet::new();
        let mut trouble = 150;
        while !self.queue.is_empty() || !out.is_empty() {
            if trouble > 0 {
                trouble -= 1;
                self.trouble();
            } else {
                self.world.dedup.faults.heal();
                self.world.sink.faults.heal();
            }
            while out.len() < WORKERS && !self.queue.is_empty() {
                self.deliver(&mut out, trouble > 0);
            }
            if let Some(end) = out.join_next().await {
                self.queue.extend(end.unwrap());
            }
        }
        self.check();
    }

    fn deliver(&mut self, out: &mut JoinSet<Option<Waiting>>, may_crash: bool) {
        let index = self.rng.usize(0..self.queue.len());
        let waiting = self.queue.remove(index).unwrap();
        let crash = may_crash && self.rng.u8(0..3) == 0;
        let polls = if crash { self.rng.usize(0..30) } else { usize::MAX };
        let world = self.world.clone();
        out.spawn(async move {
            let end =
                crash_after(polls, world.consumer.process(message(&waiting.id), waiting.attempts)).await;
            settle(&world, waiting, end).await
        });
    }

    fn trouble(&mut self) {
        let fault = [None, None, Some(Fault::Before), Some(Fault::After), Some(Fault::Hang)];
        let mut any = || fault[self.rng.usize(0..fault.len())];
        let (dedup, sink): (Vec<_>, Vec<_>) = (0..3).map(|_| (any(), any())).unzip();
        self.world.dedup.faults.next(dedup);
        self.world.sink.faults.next(sink);
        if self.rng.u8(0..30) == 0 {
            self.world.dedup.forget();
        }
    }

    fn check(&self) {
        let log = &self.world.log;
        for id in (0..MESSAGES).map(|n| format!("m{n}")) {
            let (effects, handled, rejected) = (log.effects(&id), log.handled(&id), log.rejected(&id));
            assert!(handled + rejected > 0, "{id}: the producer knows nothing");
            assert!(effects > 0 || handled == 0, "{id}: acknowledged without an effect");
        }
    }
}

/// What the broker does, and what an acknowledgement promises at that moment.
async fn settle(world: &World, waiting: Waiting, end: Option<Disposition>) -> Option<Waiting> {
    let Waiting { id, attempts } = waiting;
    match end {
        None => Some(Waiting { id, attempts }),
        Some(Disposition::RetryLater { delay, attempts: charged }) => {
            assert!((attempts..=attempts + 1).contains(&charged) && charged <= MAX_ATTEMPTS);
            sleep(delay).await;
            Some(Waiting { id, attempts: charged })
        }
        Some(Disposition::Ack) => {
            assert!(world.log.effects(&id) > 0, "{id}: acknowledged without an effect");
            assert!(world.log.handled(&id) > 0, "{id}: acknowledged without a receipt");
            None
        }
        Some(Disposition::DeadLetter { .. }) => {
            assert!(world.log.rejected(&id) > 0, "{id}: given up without a word");
            None
        }
    }
}

fn act(rng: &mut Rng) -> Act {
    match rng.u8(0..12) {
        0 => Act::FailBefore,
        1 => Act::FailAfter,
        2 => Act::PanicBefore,
        3 => Act::PanicAfter,
        4 => Act::Reject,
        5 => Act::Hang,
        6 => Act::Take(Duration::from_secs(rng.u64(0..200))),
        _ => Act::Succeed,
    }
}

fn seeds() -> std::ops::Range<u64> {
    let Ok(range) = std::env::var("OUTBOX_CONSUMER_SEEDS") else { return 0..60 };
    let (first, last) = range.split_once("..").expect("first..last");
    first.parse().unwrap()..last.parse().unwrap()
}

/// A message that never comes to an end is lost too.
async fn bounded(run: Run) {
    let month = Duration::from_secs(30 * 24 * 3600);
    tokio::time::timeout(month, run.run()).await.expect("there is no end");
}

#[test]
fn nothing_is_lost_whatever_happens() {
    std::panic::set_hook(Box::new(|info| {
        if !info.to_string().contains("out of its mind") {
            eprintln!("{info}");
        }
    }));
    for seed in seeds() {
        fastrand::seed(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let run = std::panic::AssertUnwindSafe(|| runtime.unwrap().block_on(bounded(Run::new(seed))));
        std::panic::catch_unwind(run).unwrap_or_else(|_| panic!("seed {seed}"));
    }
}
