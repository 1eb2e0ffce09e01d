//! lapin runs a thread for each connection; alone in its process, since it counts them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::{Message, Publisher};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

/// Takes connections and never says anything, as a frozen broker does.
async fn frozen_broker() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            tokio::spawn(async move { while client.read_u8().await.is_ok() {} });
        }
    });
    format!("amqp://guest:guest@{address}")
}

fn connection_threads() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
    };
    tasks.filter_map(name).filter(|name| name.trim() == "lapin-io-loop").count()
}

async fn no_threads_left(what: &str) {
    let patience = Instant::now() + Duration::from_secs(10);
    while connection_threads() > 0 {
        assert!(Instant::now() < patience, "{what}: {} threads left", connection_threads());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn frozen_broker_costs_no_threads() {
    let config = AmqpConfig::new(frozen_broker().await).unwrap();
    let publisher = AmqpPublisher::new(config.with_connect_timeout(Duration::from_millis(100)));
    for _ in 0..3 {
        publisher.ready().await.unwrap_err();
    }
    no_threads_left("connect time-out").await;

    let message = Message::binary("a", "1", "").unwrap();
    let given_up = tokio::time::timeout(Duration::from_millis(50), publisher.publish(&message)).await;
    given_up.expect_err("a frozen broker answered");
    no_threads_left("dropped call").await;
}
