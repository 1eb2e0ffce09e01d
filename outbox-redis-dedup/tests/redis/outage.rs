//! Redis away and back, seen through a proxy.
use std::time::{Duration, Instant};

use outbox_core::{Begin, DedupKey, DedupStore};
use outbox_redis_dedup::{RedisDedup, RedisDedupConfig, redis};
use redis::IntoConnectionInfo;

use crate::fixture::{Fixture, LONG, acquire, key, shared_url};
use crate::proxy::{Proxy, Way};

const RESPONSE: Duration = Duration::from_millis(500);
const CONNECT: Duration = Duration::from_millis(500);
const LIMIT: Duration = Duration::from_secs(1);
/// What a busy machine may add.
const SLACK: Duration = Duration::from_secs(2);

pub(crate) async fn proxied() -> (Proxy, Fixture) {
    proxied_with(RedisDedupConfig::default().with_response_timeout(RESPONSE).with_connect_timeout(CONNECT))
        .await
}

async fn proxied_with(config: RedisDedupConfig) -> (Proxy, Fixture) {
    let server = shared_url().into_connection_info().unwrap().addr().to_string();
    let proxy = Proxy::start(server.clone()).await;
    let mut fixture = Fixture::at(&shared_url().replace(&server, &proxy.address.to_string()), config);
    fixture.url = shared_url();
    (proxy, fixture)
}

/// Every step fails, and in time.
async fn fails(dedup: &RedisDedup, key: &DedupKey) -> String {
    let token = outbox_core::DedupToken::random();
    let mut text = String::new();
    for step in 0..5 {
        let start = Instant::now();
        let error = match step {
            0 => dedup.begin(key, LONG).await.err(),
            1 => dedup.renew(key, token, LONG).await.err(),
            2 => dedup.finish(key, token).await.err(),
            3 => dedup.abandon(key, token).await.err(),
            _ => dedup.is_done(key).await.err(),
        };
        text = error.expect("no error").to_string();
        assert!(start.elapsed() < LIMIT + SLACK, "step {step} took {:?}", start.elapsed());
    }
    text
}

async fn works_again(dedup: &RedisDedup) {
    let (key, deadline) = (key("g"), Instant::now() + Duration::from_secs(5));
    while let Err(error) = dedup.begin(&key, LONG).await {
        assert!(Instant::now() < deadline, "still: {error}");
    }
    // A begin whose answer was lost holds the key, so another one.
    let key = DedupKey::new("again", key.msg_id);
    let token = acquire(dedup, &key, LONG).await;
    assert!(dedup.finish(&key, token).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_cut_connection_is_not_even_noticed() {
    let (proxy, fixture) = proxied_with(RedisDedupConfig::default().with_response_timeout(LONG)).await;
    let key = key("g");
    let token = acquire(&fixture.dedup, &key, LONG).await;
    for _ in 0..20 {
        proxy.cut();
        assert!(fixture.dedup.renew(&key, token, LONG).await.unwrap());
    }
    proxy.cut();
    assert_eq!(fixture.dedup.begin(&key, LONG).await.unwrap(), Begin::InProgress);
    proxy.cut();
    // Where the cut swallowed the answer, the repeated call finds no lease any more.
    let finished = fixture.dedup.finish(&key, token).await.unwrap();
    assert!(finished || fixture.dedup.is_done(&key).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_refusing_connections_is_an_error_in_time_and_heals() {
    let (proxy, fixture) = proxied().await;
    let key = key("g");
    let token = acquire(&fixture.dedup, &key, LONG).await;
    for _ in 0..3 {
        proxy.set(Way::Refusing);
        let error = fails(&fixture.dedup, &key).await;
        assert!(error.contains(&proxy.address.to_string()) && error.contains("try again"), "{error}");
        proxy.set(Way::Open);
        works_again(&fixture.dedup).await;
    }
    assert!(fixture.dedup.finish(&key, token).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_that_answers_nothing_is_an_error_in_time_and_heals() {
    let (proxy, fixture) = proxied().await;
    let key = key("g");
    let token = acquire(&fixture.dedup, &key, LONG).await;
    proxy.set(Way::Silent);
    fails(&fixture.dedup, &key).await;
    proxy.set(Way::Open);
    works_again(&fixture.dedup).await;
    assert!(fixture.dedup.renew(&key, token, LONG).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_old_connection_that_stays_silent_is_replaced() {
    let (proxy, fixture) = proxied().await;
    acquire(&fixture.dedup, &key("g"), LONG).await;
    proxy.set(Way::Moved);
    let first = fixture.dedup.begin(&key("g"), LONG).await;
    assert!(first.is_err(), "{first:?}");
    works_again(&fixture.dedup).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_may_be_away_at_the_start() {
    let (proxy, fixture) = proxied().await;
    proxy.set(Way::Refusing);
    fails(&fixture.dedup, &key("g")).await;
    proxy.set(Way::Open);
    works_again(&fixture.dedup).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn redis_silent_while_fifty_wait_fails_all_of_them_in_time() {
    let (proxy, fixture) = proxied().await;
    acquire(&fixture.dedup, &key("g"), LONG).await;
    proxy.set(Way::Silent);
    let keys: Vec<_> = (0..50).map(|_| key("g")).collect();
    // First on the connection that was there, then while a new one is being made.
    for _ in 0..2 {
        let start = Instant::now();
        let calls = keys.iter().map(|key| fixture.dedup.begin(key, LONG));
        let answers = futures_util::future::join_all(calls).await;
        assert!(answers.iter().all(Result::is_err));
        assert!(start.elapsed() < LIMIT + SLACK, "{:?}", start.elapsed());
    }
    proxy.set(Way::Open);
    works_again(&fixture.dedup).await;
}

#[tokio::test]
async fn redis_errors_and_debug_never_show_the_password() {
    let config = RedisDedupConfig::default();
    let dedup = RedisDedup::new("redis://me:hunter2@127.0.0.1:1/0", config.clone()).unwrap();
    let error = dedup.begin(&key("g"), LONG).await.unwrap_err();
    let bad = RedisDedup::new("http://me:hunter2@127.0.0.1/", config.clone()).unwrap_err();
    let worse = RedisDedup::new("redis://me:hunter2@127.0.0.1:port/", config).unwrap_err();
    for text in
        [format!("{dedup:?} {error} {error:?}"), format!("{bad} {bad:?}"), format!("{worse} {worse:?}")]
    {
        assert!(!text.contains("hunter2"), "{text}");
    }
    assert!(error.to_string().contains("127.0.0.1:1"), "{error}");
}
