use std::sync::Arc;
use std::time::Duration;

use super::DedupFixture;
use crate::dedup::{Begin, DedupKey, DedupStore, DedupToken};

const LONG: Duration = Duration::from_secs(600);

fn key() -> DedupKey {
    DedupKey::new("points", "01890000-0000-7000-8000-000000000001")
}

async fn acquire<S: DedupStore>(store: &S, key: &DedupKey, lease: Duration) -> DedupToken {
    match store.begin(key, lease).await.unwrap() {
        Begin::Acquired(token) => token,
        other => panic!("the key is free, but begin says {other:?}"),
    }
}

pub async fn free_key_is_acquired_once<F: DedupFixture>(fixture: &F) {
    let (store, other, key) = (fixture.store(), fixture.other(), key());
    assert!(!store.is_done(&key).await.unwrap());
    acquire(&*store, &key, LONG).await;
    assert_eq!(store.begin(&key, LONG).await.unwrap(), Begin::InProgress);
    assert_eq!(other.begin(&key, LONG).await.unwrap(), Begin::InProgress);
    assert!(!other.is_done(&key).await.unwrap());
}

pub async fn racing_handles_acquire_a_key_once<F: DedupFixture>(fixture: &F) {
    const KEYS: usize = 20;
    let handles = [fixture.store(), fixture.other()];
    let racers: Vec<_> = (0..8)
        .map(|n| Arc::clone(&handles[n % 2]))
        .map(|store| tokio::spawn(async move { acquired_of(&*store, KEYS).await }))
        .collect();
    let mut acquired = [0; KEYS];
    for racer in racers {
        racer.await.unwrap().into_iter().for_each(|index: usize| acquired[index] += 1);
    }
    assert_eq!(acquired, [1; KEYS]);
}

async fn acquired_of<S: DedupStore>(store: &S, keys: usize) -> Vec<usize> {
    let mut acquired = Vec::new();
    for index in 0..keys {
        let key = DedupKey::new("points", format!("message-{index}"));
        if let Begin::Acquired(_) = store.begin(&key, LONG).await.unwrap() {
            acquired.push(index);
        }
    }
    acquired
}

pub async fn finished_key_is_done<F: DedupFixture>(fixture: &F) {
    let (store, other, key) = (fixture.store(), fixture.other(), key());
    let token = acquire(&*store, &key, LONG).await;
    assert!(store.finish(&key, token).await.unwrap());
    assert_eq!(other.begin(&key, LONG).await.unwrap(), Begin::Done);
    assert!(other.is_done(&key).await.unwrap());
}

pub async fn finishing_twice_counts_once<F: DedupFixture>(fixture: &F) {
    let (store, key) = (fixture.store(), key());
    let token = acquire(&*store, &key, LONG).await;
    assert!(store.finish(&key, token).await.unwrap());
    assert!(!store.finish(&key, token).await.unwrap());
    assert!(!store.renew(&key, token, LONG).await.unwrap());
    assert!(!store.abandon(&key, token).await.unwrap());
    assert!(store.is_done(&key).await.unwrap());
}

pub async fn abandoned_key_is_free_at_once<F: DedupFixture>(fixture: &F) {
    let (store, key) = (fixture.store(), key());
    let token = acquire(&*store, &key, LONG).await;
    assert!(store.abandon(&key, token).await.unwrap());
    assert!(!store.abandon(&key, token).await.unwrap());
    let next = acquire(&*fixture.other(), &key, LONG).await;
    assert_ne!(next, token);
}

pub async fn expired_lease_frees_its_key<F: DedupFixture>(fixture: &F) {
    let (store, key) = (fixture.store(), key());
    acquire(&*store, &key, fixture.short_lease()).await;
    fixture.pass(fixture.short_lease()).await;
    let token = acquire(&*fixture.other(), &key, LONG).await;
    assert!(store.finish(&key, token).await.unwrap());
}

pub async fn expired_lease_cannot_finish<F: DedupFixture>(fixture: &F) {
    let (store, key) = (fixture.store(), key());
    let token = acquire(&*store, &key, fixture.short_lease()).await;
    fixture.pass(fixture.short_lease()).await;
    assert!(!store.finish(&key, token).await.unwrap());
    assert!(!store.renew(&key, token, LONG).await.unwrap());
    assert!(!store.is_done(&key).await.unwrap());
    acquire(&*store, &key, LONG).await;
}

pub async fn stale_token_changes_nothing<F: DedupFixture>(fixture: &F) {
    let (store, key) = (fixture.store(), key());
    let stale = acquire(&*store, &key, fixture.short_lease()).await;
    fixture.pass(fixture.short_lease()).await;
    let holder = acquire(&*fixture.other(), &key, LONG).await;
    assert!(!store.finish(&key, stale).await.unwrap());
    assert!(!store.renew(&key, stale, LONG).await.unwrap());
    assert!(!store.abandon(&key, stale).await.unwrap());
    assert_eq!(store.begin(&key, LONG).await.unwrap(), Begin::InProgress);
    assert!(store.finish(&key, holder).await.unwrap(), "the holder still holds it");
    assert!(!store.abandon(&key, stale).await.unwrap());
    assert!(store.is_done(&key).await.unwrap());
}

pub async fn unknown_token_changes_nothing<F: DedupFixture>(fixture: &F) {
    let (store, key, unknown) = (fixture.store(), key(), DedupToken::random());
    for _ in 0..2 {
        assert!(!store.finish(&key, unknown).await.unwrap());
        assert!(!store.renew(&key, unknown, LONG).await.unwrap());
        assert!(!store.abandon(&key, unknown).await.unwrap());
    }
    assert!(!store.is_done(&key).await.unwrap());
    acquire(&*store, &key, LONG).await;
}

pub async fn renewed_lease_lives_longer<F: DedupFixture>(fixture: &F) {
    let (store, key) = (fixture.store(), key());
    let token = acquire(&*store, &key, fixture.short_lease()).await;
    assert!(store.renew(&key, token, LONG).await.unwrap());
    fixture.pass(fixture.short_lease()).await;
    assert_eq!(store.begin(&key, LONG).await.unwrap(), Begin::InProgress);
    assert!(store.finish(&key, token).await.unwrap());
}

pub async fn done_marker_ends_with_its_retention<F: DedupFixture>(fixture: &F) {
    let (store, key) = (fixture.store(), key());
    let token = acquire(&*store, &key, LONG).await;
    store.finish(&key, token).await.unwrap();
    fixture.pass(store.retention()).await;
    assert!(!store.is_done(&key).await.unwrap());
    acquire(&*store, &key, LONG).await;
}

/// Neither separators, nor case, nor spaces make keys equal.
pub async fn keys_are_independent<F: DedupFixture>(fixture: &F) {
    let store = fixture.store();
    let keys = [("a:b", "c"), ("a", "b:c"), ("a", "b"), ("A", "b"), ("a", "b "), ("a", "ö"), ("a", "o")]
        .map(|(group, msg_id)| DedupKey::new(group, msg_id));
    let mut tokens = Vec::new();
    for key in &keys {
        tokens.push(acquire(&*store, key, LONG).await);
    }
    assert!(!store.finish(&keys[1], tokens[0]).await.unwrap(), "a token belongs to its key");
    assert!(store.finish(&keys[0], tokens[0]).await.unwrap());
    assert!(store.is_done(&keys[0]).await.unwrap());
    for key in &keys[1..] {
        assert_eq!(store.begin(key, LONG).await.unwrap(), Begin::InProgress, "{key:?}");
    }
}
