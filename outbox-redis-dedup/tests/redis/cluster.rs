//! Redis Cluster: one node that owns every slot, and two that share them.
use std::time::{Duration, Instant};

use outbox_core::{Begin, DedupStore};
use outbox_redis_dedup::redis::{self, Connection};
use outbox_redis_dedup::{Eviction, RedisDedup, RedisDedupConfig};

use crate::fixture::{LONG, SHORT, acquire, acquire_when_free, key};
use crate::private_server::{PrivateServer, free_port};

fn node() -> PrivateServer {
    let bus = free_port().to_string();
    PrivateServer::start(&["--cluster-enabled", "yes", "--cluster-port", &bus])
}

fn state(raw: &mut Connection) -> String {
    redis::cmd("CLUSTER").arg("INFO").query(raw).unwrap()
}

fn wait_until(nodes: &[&PrivateServer], line: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !nodes.iter().all(|node| state(&mut node.raw()).contains(line)) {
        assert!(Instant::now() < deadline, "never {line}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn one_node() -> PrivateServer {
    let node = node();
    node.run(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    wait_until(&[&node], "cluster_state:ok");
    node
}

fn two_nodes() -> [PrivateServer; 2] {
    let nodes = [node(), node()];
    nodes[0].run(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
    nodes[1].run(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
    let info = state(&mut nodes[1].raw());
    assert!(info.contains("cluster_known_nodes:1"), "{info}");
    let bus: (String, u16) =
        redis::cmd("CONFIG").arg("GET").arg("cluster-port").query(&mut nodes[1].raw()).unwrap();
    let port = nodes[1].port.to_string();
    nodes[0].run(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus.1.to_string()]);
    wait_until(&[&nodes[0], &nodes[1]], "cluster_slots_ok:16384");
    wait_until(&[&nodes[0], &nodes[1]], "cluster_state:ok");
    nodes
}

fn dedup(node: &PrivateServer) -> RedisDedup {
    RedisDedup::cluster([node.url().as_str()], RedisDedupConfig::default()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_cluster_does_every_step() {
    let node = one_node();
    let (dedup, key) = (dedup(&node), key("g"));
    let first = acquire(&dedup, &key, SHORT).await;
    assert_eq!(dedup.begin(&key, LONG).await.unwrap(), Begin::InProgress);
    let (token, _) = acquire_when_free(&dedup, &key).await;
    assert!(!dedup.finish(&key, first).await.unwrap());
    assert!(dedup.renew(&key, token, LONG).await.unwrap());
    assert!(dedup.abandon(&key, token).await.unwrap());
    let token = acquire(&dedup, &key, LONG).await;
    assert!(dedup.finish(&key, token).await.unwrap());
    assert_eq!(dedup.begin(&key, LONG).await.unwrap(), Begin::Done);
    assert!(dedup.is_done(&key).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_cluster_spreads_keys_over_its_nodes_and_asks_all_for_eviction() {
    let nodes = two_nodes();
    let dedup = dedup(&nodes[0]);
    for _ in 0..50 {
        let key = key("g");
        let token = acquire(&dedup, &key, LONG).await;
        assert!(dedup.finish(&key, token).await.unwrap());
    }
    for node in &nodes {
        let size: usize = redis::cmd("DBSIZE").query(&mut node.raw()).unwrap();
        assert!(size > 0 && size < 50, "{size} of 50 keys on one node");
    }
    assert_eq!(dedup.check_eviction().await.unwrap(), Eviction::Never);
    nodes[1].run(&["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    let possible = Eviction::Possible { policy: "volatile-lru".to_owned() };
    assert_eq!(dedup.check_eviction().await.unwrap(), possible);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_cluster_killed_is_an_error_in_time_and_found_again() {
    let mut node = one_node();
    let dedup = dedup(&node);
    acquire(&dedup, &key("g"), LONG).await;
    node.kill();
    for _ in 0..3 {
        let start = Instant::now();
        assert!(dedup.begin(&key("g"), LONG).await.is_err());
        assert!(start.elapsed() < Duration::from_secs(4), "{:?}", start.elapsed());
    }
    node.restart();
    wait_until(&[&node], "cluster_state:ok");
    let deadline = Instant::now() + Duration::from_secs(10);
    while let Err(error) = dedup.begin(&key("g"), LONG).await {
        assert!(Instant::now() < deadline, "still: {error}");
    }
}

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_cluster_reached_as_a_single_server_says_what_to_do() {
    let nodes = two_nodes();
    let dedup = RedisDedup::new(&nodes[0].url(), RedisDedupConfig::default()).unwrap();
    let mut errors = Vec::new();
    for _ in 0..20 {
        errors.extend(dedup.begin(&key("g"), LONG).await.err());
    }
    let error = errors.first().expect("20 keys, all on one of two nodes").to_string();
    assert!(error.contains("feature `cluster`"), "{error}");
}
