//! The protocol, on the shared server.
use std::time::Instant;

use outbox_core::{Begin, DedupKey, DedupStore, DedupToken};
use outbox_redis_dedup::Eviction;
use outbox_redis_dedup::redis::{self, Commands};

use crate::fixture::{Fixture, LONG, SHORT, acquire, acquire_when_free, key};

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_gives_one_of_fifty_concurrent_begins_the_lease() {
    let fixture = Fixture::new();
    for _ in 0..20 {
        let key = key("g");
        let answers = (0..50).map(|_| fixture.dedup.begin(&key, LONG));
        let answers: Vec<Begin> =
            futures_util::future::join_all(answers).await.into_iter().map(Result::unwrap).collect();
        assert_eq!(answers.iter().filter(|b| matches!(b, Begin::Acquired(_))).count(), 1);
        assert_eq!(answers.iter().filter(|b| **b == Begin::InProgress).count(), 49);
    }
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_frees_a_key_when_its_lease_runs_out_and_not_before() {
    let fixture = Fixture::new();
    let (key, start) = (key("g"), Instant::now());
    let first = acquire(&fixture.dedup, &key, SHORT).await;
    let (second, at) = acquire_when_free(&fixture.dedup, &key).await;
    assert!(at - start >= SHORT, "free after {:?}", at - start);
    assert_ne!(first, second);
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_ignores_a_token_that_lost_its_lease() {
    let fixture = Fixture::new();
    let (key, dedup) = (key("g"), &fixture.dedup);
    let stale = acquire(dedup, &key, SHORT).await;
    let (holder, _) = acquire_when_free(dedup, &key).await;
    assert!(!dedup.renew(&key, stale, LONG).await.unwrap());
    assert!(!dedup.finish(&key, stale).await.unwrap());
    assert!(!dedup.abandon(&key, stale).await.unwrap());
    assert!(!dedup.is_done(&key).await.unwrap());
    assert_eq!(dedup.begin(&key, LONG).await.unwrap(), Begin::InProgress);
    assert!(dedup.finish(&key, holder).await.unwrap());
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_ignores_every_token_on_a_free_key_and_on_a_done_one() {
    let fixture = Fixture::new();
    let (key, dedup) = (key("g"), &fixture.dedup);
    let stranger = DedupToken::random();
    for token in [stranger, acquire(dedup, &key, LONG).await] {
        if token != stranger {
            assert!(dedup.finish(&key, token).await.unwrap());
        }
        assert!(!dedup.renew(&key, token, LONG).await.unwrap());
        assert!(!dedup.abandon(&key, token).await.unwrap());
        assert!(!dedup.finish(&key, token).await.unwrap());
        assert_eq!(dedup.is_done(&key).await.unwrap(), token != stranger);
    }
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_renewed_lease_outlives_its_first_end() {
    let fixture = Fixture::new();
    let key = key("g");
    let token = acquire(&fixture.dedup, &key, SHORT).await;
    assert!(fixture.dedup.renew(&key, token, LONG).await.unwrap());
    let left: i64 = fixture.raw().pttl(fixture.raw_name(&key)).unwrap();
    assert!((59_000..=60_000).contains(&left), "{left} ms left");
    assert!(fixture.dedup.finish(&key, token).await.unwrap());
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_done_marker_answers_every_later_begin_for_the_retention() {
    let fixture = Fixture::new();
    let (key, dedup) = (key("g"), &fixture.dedup);
    let token = acquire(dedup, &key, SHORT).await;
    assert!(!dedup.is_done(&key).await.unwrap());
    assert!(dedup.finish(&key, token).await.unwrap());
    assert_eq!(dedup.begin(&key, SHORT).await.unwrap(), Begin::Done);
    assert_eq!(dedup.begin(&key, LONG).await.unwrap(), Begin::Done);
    assert!(dedup.is_done(&key).await.unwrap());
    let left: i64 = fixture.raw().pttl(fixture.raw_name(&key)).unwrap();
    assert!((59_000..=60_000).contains(&left), "the lease's life, or the retention? {left} ms left");
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_forgets_a_done_marker_after_the_retention() {
    let fixture = Fixture::with_retention(SHORT);
    let (key, dedup) = (key("g"), &fixture.dedup);
    let token = acquire(dedup, &key, LONG).await;
    let done = Instant::now();
    assert!(dedup.finish(&key, token).await.unwrap());
    let (_, free) = acquire_when_free(dedup, &key).await;
    assert!(free - done >= SHORT, "forgotten after {:?}", free - done);
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_abandoned_key_is_free_at_once() {
    let fixture = Fixture::new();
    let (key, dedup) = (key("g"), &fixture.dedup);
    let first = acquire(dedup, &key, LONG).await;
    assert!(dedup.abandon(&key, first).await.unwrap());
    let second = acquire(dedup, &key, LONG).await;
    assert_ne!(first, second);
    assert!(!dedup.abandon(&key, first).await.unwrap());
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_groups_and_lookalike_keys_are_independent() {
    let fixture = Fixture::new();
    let pairs =
        [("a", "m"), ("b", "m"), ("a:b", "c"), ("a", "b:c"), ("", "a:m"), ("1:a", "m"), ("é {x}\0", "m")];
    for (group, msg_id) in pairs {
        let key = DedupKey::new(group, msg_id);
        let token = acquire(&fixture.dedup, &key, LONG).await;
        assert!(fixture.dedup.finish(&key, token).await.unwrap());
    }
    for (group, msg_id) in pairs {
        assert!(fixture.dedup.is_done(&DedupKey::new(group, msg_id)).await.unwrap());
    }
    assert!(!fixture.dedup.is_done(&DedupKey::new("b", "c")).await.unwrap());
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_accepts_a_lease_of_nothing_and_one_of_forever() {
    let fixture = Fixture::with_retention(std::time::Duration::MAX);
    let (short, long) = (key("g"), key("g"));
    acquire(&fixture.dedup, &short, std::time::Duration::ZERO).await;
    acquire_when_free(&fixture.dedup, &short).await;
    let token = acquire(&fixture.dedup, &long, std::time::Duration::MAX).await;
    assert!(fixture.dedup.finish(&long, token).await.unwrap());
    assert!(fixture.dedup.is_done(&long).await.unwrap());
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_that_forgot_its_scripts_is_told_them_again() {
    let fixture = Fixture::new();
    let (key, dedup) = (key("g"), &fixture.dedup);
    let flush = || redis::cmd("SCRIPT").arg("FLUSH").exec(&mut fixture.raw()).unwrap();
    flush();
    let token = acquire(dedup, &key, LONG).await;
    flush();
    assert!(dedup.renew(&key, token, LONG).await.unwrap());
    flush();
    assert!(dedup.abandon(&key, token).await.unwrap());
    let token = acquire(dedup, &key, LONG).await;
    flush();
    assert!(dedup.finish(&key, token).await.unwrap());
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_key_of_another_program_is_an_error_that_says_so() {
    let fixture = Fixture::new();
    let (text, hash) = (key("g"), key("g"));
    fixture.raw().set_ex::<_, _, ()>(fixture.raw_name(&text), "1", 60).unwrap();
    fixture.raw().hset::<_, _, _, ()>(fixture.raw_name(&hash), "a", "1").unwrap();
    for key in [text, hash] {
        let error = fixture.dedup.begin(&key, LONG).await.unwrap_err().to_string();
        assert!(error.contains("another program uses this key prefix"), "{error}");
    }
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_without_eviction_passes_the_check() {
    assert_eq!(Fixture::new().dedup.check_eviction().await.unwrap(), Eviction::Never);
}
