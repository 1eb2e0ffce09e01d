use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as Turn, oneshot};

use super::receipts::{ReceiptError, ReceiptSink};
use crate::receipt::Receipt;

/// More receipts than this go in several calls.
const MAX_BATCH: usize = 500;

type Answer = Result<(), Arc<ReceiptError>>;

/// Sends the receipts of deliveries that end at the same time together: whoever comes while a call is under
/// way goes with the next one. One delivery at a time waits for nothing.
pub(super) struct Batcher {
    sink: Arc<dyn ReceiptSink>,
    waiting: Mutex<VecDeque<Waiting>>,
    turn: Turn<()>,
}

struct Waiting {
    receipt: Receipt,
    answer: oneshot::Sender<Answer>,
}

impl Batcher {
    pub(super) fn new(sink: impl ReceiptSink) -> Self {
        Self { sink: Arc::new(sink), waiting: Mutex::default(), turn: Turn::default() }
    }

    /// Ends when the call that takes `receipt` has ended. That call may be another delivery's.
    pub(super) async fn record(&self, receipt: Receipt) -> Answer {
        let (answer, mut answered) = oneshot::channel();
        self.lock().push_back(Waiting { receipt, answer });
        loop {
            tokio::select! {
                biased;
                answer = &mut answered => return answer.unwrap_or_else(|_| Err(interrupted())),
                _turn = self.turn.lock() => self.send().await,
            }
        }
    }

    async fn send(&self) {
        let (receipts, answers) = self.take();
        if receipts.is_empty() {
            return;
        }
        let answer = self.sink.record(&receipts).await.map_err(Arc::new);
        for waiting in answers {
            let _ = waiting.send(answer.clone());
        }
    }

    fn take(&self) -> (Vec<Receipt>, Vec<oneshot::Sender<Answer>>) {
        let mut waiting = self.lock();
        // Whoever was dropped does not wait any more: its message will be delivered again.
        waiting.retain(|waiting| !waiting.answer.is_closed());
        let count = waiting.len().min(MAX_BATCH);
        waiting.drain(..count).map(|Waiting { receipt, answer }| (receipt, answer)).unzip()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn interrupted() -> Arc<ReceiptError> {
    Arc::new(ReceiptError::new("the delivery that was sending them ended before the answer came"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use async_trait::async_trait;
    use futures_util::future::join_all;
    use tokio::time::sleep;

    use super::*;

    #[derive(Default)]
    struct Slow {
        calls: Mutex<Vec<usize>>,
        failing: bool,
    }

    #[async_trait]
    impl ReceiptSink for Arc<Slow> {
        async fn record(&self, receipts: &[Receipt]) -> Result<(), ReceiptError> {
            sleep(Duration::from_millis(10)).await;
            self.calls.lock().unwrap().push(receipts.len());
            if self.failing { Err(ReceiptError::new("away")) } else { Ok(()) }
        }
    }

    fn receipt(n: usize) -> Receipt {
        Receipt::handled(format!("m{n}"), "points", 1)
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_during_a_call_goes_with_the_next() {
        let sink = Arc::new(Slow::default());
        let batcher = Batcher::new(sink.clone());
        let answers = join_all((0..1_201).map(|n| batcher.record(receipt(n)))).await;
        assert!(answers.iter().all(Result::is_ok));
        let calls = sink.calls.lock().unwrap().clone();
        assert_eq!(calls.iter().sum::<usize>(), 1_201, "each once");
        assert_eq!(calls, [1, 500, 500, 200]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_call_fails_all_that_it_took() {
        let sink = Arc::new(Slow { failing: true, ..Slow::default() });
        let batcher = Batcher::new(sink.clone());
        let answers = join_all((0..3).map(|n| batcher.record(receipt(n)))).await;
        assert!(answers.iter().all(Result::is_err));
        assert_eq!(*sink.calls.lock().unwrap(), [1, 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sender_that_is_dropped_leaves_nobody_waiting() {
        let sink = Arc::new(Slow::default());
        let batcher = Arc::new(Batcher::new(sink.clone()));
        let record = |n| {
            let batcher = batcher.clone();
            tokio::spawn(async move { batcher.record(receipt(n)).await })
        };
        let first = record(0);
        sleep(Duration::from_millis(1)).await;
        let (second, third) = (record(1), record(2));
        sleep(Duration::from_millis(12)).await;
        assert!(first.await.unwrap().is_ok());
        second.abort();
        let answer = third.await.unwrap();
        assert!(answer.unwrap_err().to_string().contains("ended before the answer"));
        assert!(batcher.record(receipt(2)).await.is_ok());
    }
}
