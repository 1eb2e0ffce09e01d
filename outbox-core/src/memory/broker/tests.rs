use super::*;
use crate::publisher::PublishErrorKind::{self, Failed, Rejected, Unavailable};

fn message(biz_type: &str) -> Message {
    Message::json(biz_type, "A-1", &1).unwrap()
}

async fn kind_of(broker: &MemoryBroker, biz_type: &str) -> Option<PublishErrorKind> {
    broker.publish(&message(biz_type)).await.err().map(|error| error.kind())
}

async fn turns() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn each_fault_answers_and_stores_as_it_says() {
    let cases = [
        (BrokerFault::Nack, Some(Failed), 0),
        (BrokerFault::Unroutable, Some(Failed), 0),
        (BrokerFault::Reject, Some(Rejected), 0),
        (BrokerFault::LoseConfirm, Some(Failed), 1),
        (BrokerFault::DelayConfirm(Duration::from_millis(1)), None, 1),
    ];
    for (fault, kind, stored) in cases {
        let broker = MemoryBroker::new();
        broker.fail("order.*", fault);
        assert_eq!(kind_of(&broker, "order.created").await, kind, "{fault:?}");
        assert_eq!(broker.delivered().len(), stored, "{fault:?}");
        assert_eq!(kind_of(&broker, "point.granted").await, None, "{fault:?}");
        broker.heal();
        assert_eq!(kind_of(&broker, "order.created").await, None, "{fault:?}");
    }
}

#[tokio::test]
async fn fail_next_counts_messages_of_a_batch() {
    let broker = MemoryBroker::new();
    broker.fail_next(2, "#", BrokerFault::Nack);
    let answers = broker.publish_batch(&[message("a"), message("b"), message("c")]).await;
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [false, false, true]);
}

#[tokio::test]
async fn too_large_is_rejected() {
    let broker = MemoryBroker::new().with_max_payload(3);
    let answer = broker.publish(&Message::binary("a", "b", vec![0; 4]).unwrap()).await;
    assert_eq!(answer.unwrap_err().kind(), Rejected);
    broker.publish(&Message::binary("a", "b", vec![0; 3]).unwrap()).await.unwrap();
}

#[tokio::test]
async fn what_hangs_is_answered_at_release() {
    for (fault, stored_before) in [(BrokerFault::Hang, 0), (BrokerFault::HoldConfirm, 1)] {
        let broker = MemoryBroker::new();
        broker.fail("a", fault);
        let publishing = tokio::spawn({
            let broker = broker.clone();
            async move { broker.publish(&message("a")).await }
        });
        turns().await;
        assert!(!publishing.is_finished());
        assert_eq!(broker.delivered().len(), stored_before);
        broker.release();
        publishing.await.unwrap().unwrap();
        assert_eq!(broker.delivered().len(), 1);
    }
}

#[tokio::test]
async fn going_away_cuts_what_hangs_and_coming_back_heals() {
    for fault in [BrokerFault::Hang, BrokerFault::HoldConfirm, BrokerFault::DelayConfirm(Duration::MAX)] {
        let broker = MemoryBroker::new();
        broker.fail_next(1, "a", fault);
        let publishing = tokio::spawn({
            let broker = broker.clone();
            async move { kind_of(&broker, "a").await }
        });
        turns().await;
        broker.go_away();
        assert_eq!(publishing.await.unwrap(), Some(Unavailable));
        assert_eq!(kind_of(&broker, "a").await, Some(Unavailable));
        assert_eq!(broker.ready().await.unwrap_err().kind(), Unavailable);
        broker.come_back();
        broker.ready().await.unwrap();
        assert_eq!(kind_of(&broker, "a").await, None);
    }
}

#[tokio::test]
async fn every_subscription_gets_everything_in_order() {
    let broker = MemoryBroker::new();
    broker.publish(&message("a")).await.unwrap();
    let (early, late) = (broker.subscribe(), broker.subscribe());
    let consuming = tokio::spawn(async move {
        let mut seen = Vec::new();
        for _ in 0..3 {
            let delivery = early.next().await;
            seen.push(delivery.message().biz_type().to_owned());
            assert!(!delivery.redelivered() && delivery.ack());
        }
        seen
    });
    turns().await;
    broker.publish_batch(&[message("b"), message("c")]).await;
    assert_eq!(consuming.await.unwrap(), ["a", "b", "c"]);
    assert_eq!(late.backlog(), 3);
}

#[tokio::test]
async fn unacknowledged_deliveries_come_again() {
    let broker = MemoryBroker::new();
    let queue = broker.subscribe();
    broker.publish_batch(&[message("a"), message("b"), message("c")]).await;
    drop(queue.next().await);
    let (again, second) = (queue.next().await, queue.next().await);
    assert!(again.redelivered() && again.message().biz_type() == "a");
    assert!(!second.redelivered() && second.ack());
    broker.go_away();
    assert!(!again.ack(), "its connection is gone");
    let waiting = tokio::spawn(async move { queue.next().await.message().biz_type().to_owned() });
    turns().await;
    assert!(!waiting.is_finished());
    broker.come_back();
    assert_eq!(waiting.await.unwrap(), "a");
}
