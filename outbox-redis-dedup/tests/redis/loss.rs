//! What makes Redis forget or refuse: the documented duplicates, and servers that are set up badly.
use outbox_core::{Begin, DedupStore};
use outbox_redis_dedup::{Eviction, RedisDedup, RedisDedupConfig};

use crate::fixture::{LONG, acquire, key};
use crate::private_server::PrivateServer;

fn dedup(url: &str) -> RedisDedup {
    RedisDedup::new(url, RedisDedupConfig::default()).unwrap()
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_emptied_frees_every_key_the_documented_duplicate() {
    let server = PrivateServer::start(&[]);
    let (dedup, done, held) = (dedup(&server.url()), key("g"), key("g"));
    let token = acquire(&dedup, &done, LONG).await;
    assert!(dedup.finish(&done, token).await.unwrap());
    let lost = acquire(&dedup, &held, LONG).await;
    server.run(&["FLUSHALL"]);
    acquire(&dedup, &done, LONG).await;
    assert!(!dedup.finish(&held, lost).await.unwrap(), "a lost lease must not become a marker");
    acquire(&dedup, &held, LONG).await;
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_killed_and_restarted_is_found_again_and_keeps_what_is_in_its_log() {
    let mut server = PrivateServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let (dedup, done, held) = (dedup(&server.url()), key("g"), key("g"));
    let token = acquire(&dedup, &done, LONG).await;
    assert!(dedup.finish(&done, token).await.unwrap());
    let token = acquire(&dedup, &held, LONG).await;
    server.kill();
    let error = dedup.begin(&done, LONG).await.unwrap_err();
    assert!(error.to_string().contains("try again"), "{error}");
    server.restart();
    assert_eq!(dedup.begin(&done, LONG).await.unwrap(), Begin::Done);
    assert_eq!(dedup.begin(&held, LONG).await.unwrap(), Begin::InProgress);
    assert!(dedup.finish(&held, token).await.unwrap());
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_that_may_evict_is_reported() {
    let server = PrivateServer::start(&["--maxmemory-policy", "allkeys-lru"]);
    let possible = Eviction::Possible { policy: "allkeys-lru".to_owned() };
    assert_eq!(dedup(&server.url()).check_eviction().await.unwrap(), possible);
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_user_with_the_documented_rights_can_do_every_step_and_not_the_check() {
    let server = PrivateServer::start(&[]);
    let rights = ["~outbox:dedup:*", "+get", "+set", "+pexpire", "+del", "+eval", "+evalsha"];
    server.run(&[&["ACL", "SETUSER", "app", "on", ">hunter2"], rights.as_slice()].concat());
    let dedup = dedup(&format!("redis://app:hunter2@127.0.0.1:{}", server.port));
    let key = key("g");
    let token = acquire(&dedup, &key, LONG).await;
    assert!(dedup.renew(&key, token, LONG).await.unwrap());
    assert!(dedup.abandon(&key, token).await.unwrap());
    let token = acquire(&dedup, &key, LONG).await;
    assert!(dedup.finish(&key, token).await.unwrap());
    assert!(dedup.is_done(&key).await.unwrap());
    assert_eq!(dedup.check_eviction().await.unwrap(), Eviction::Unknown);
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_user_without_rights_is_told_which() {
    let server = PrivateServer::start(&[]);
    server.run(&["ACL", "SETUSER", "app", "on", ">hunter2", "~other:*", "+@all"]);
    let dedup = dedup(&format!("redis://app:hunter2@127.0.0.1:{}", server.port));
    let error = dedup.begin(&key("g"), LONG).await.unwrap_err();
    assert!(error.to_string().contains("allow its user"), "{error}");
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_password_is_never_shown_and_a_corrected_one_needs_no_restart() {
    let server = PrivateServer::start(&["--requirepass", "old"]);
    let dedup = dedup(&format!("redis://:hunter2@127.0.0.1:{}", server.port));
    let error = dedup.begin(&key("g"), LONG).await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains("check user and password") && !text.contains("hunter2"), "{text}");
    let client = outbox_redis_dedup::redis::Client::open(format!("redis://:old@127.0.0.1:{}", server.port));
    let mut admin = client.unwrap().get_connection().unwrap();
    let change = ["CONFIG", "SET", "requirepass", "hunter2"];
    outbox_redis_dedup::redis::cmd(change[0]).arg(&change[1..]).exec(&mut admin).unwrap();
    acquire(&dedup, &key("g"), LONG).await;
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_that_is_full_refuses_and_heals() {
    let server = PrivateServer::start(&["--maxmemory-policy", "noeviction"]);
    let dedup = dedup(&server.url());
    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = dedup.begin(&key("g"), LONG).await.unwrap_err();
    assert!(error.to_string().contains("give it memory"), "{error}");
    server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    acquire(&dedup, &key("g"), LONG).await;
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_demoted_to_a_replica_is_left_for_the_new_master() {
    let (old, new) = (PrivateServer::start(&[]), PrivateServer::start(&[]));
    let proxy = crate::proxy::Proxy::start(format!("127.0.0.1:{}", old.port)).await;
    let dedup = dedup(&proxy.url());
    acquire(&dedup, &key("g"), LONG).await;
    old.run(&["REPLICAOF", "127.0.0.1", &new.port.to_string()]);
    proxy.lead_to(format!("127.0.0.1:{}", new.port));
    // The connection to the old one is still there and answers READONLY.
    assert!(dedup.begin(&key("g"), LONG).await.is_err());
    acquire(&dedup, &key("g"), LONG).await;
}
