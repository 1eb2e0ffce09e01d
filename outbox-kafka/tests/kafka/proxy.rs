//! Stands between the publisher and the broker. Brokers tell their clients where to connect, so the proxy
//! writes its own port over the broker's in every answer.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::lab::servers;

const HOST: &str = "127.0.0.1";

pub(crate) struct Proxy {
    port: u16,
    broker: u16,
    /// Listens and forwards; nothing while the broker is away.
    work: Option<JoinSet<()>>,
}

impl Proxy {
    /// `None` when the broker is elsewhere, where its address cannot be written over.
    pub(crate) async fn start() -> Option<Self> {
        let broker = servers().strip_prefix(HOST)?.strip_prefix(':')?.parse().ok()?;
        let mut proxy = Self { port: 0, broker, work: None };
        proxy.accept().await;
        Some(proxy)
    }

    pub(crate) fn address(&self) -> String {
        format!("{HOST}:{}", self.port)
    }

    /// Cuts all connections and takes no more.
    pub(crate) async fn refuse(&mut self) {
        if let Some(mut work) = self.work.take() {
            work.shutdown().await;
        }
    }

    pub(crate) async fn accept(&mut self) {
        let listener = TcpListener::bind((HOST, self.port)).await.unwrap();
        self.port = listener.local_addr().unwrap().port();
        let mut work = JoinSet::new();
        work.spawn(serve(listener, self.port, self.broker));
        self.work = Some(work);
    }
}

async fn serve(listener: TcpListener, port: u16, broker: u16) {
    let mut connections = JoinSet::new();
    let rewrite = Arc::new(move |frame: &mut [u8]| rewrite(frame, broker, port));
    while let Ok((client, _)) = listener.accept().await {
        let server = TcpStream::connect((HOST, broker)).await.unwrap();
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        connections.spawn(async move {
            let (mut from_client, mut to_server) = (from_client, to_server);
            // Fails when either side goes, as both do.
            let _ = copy(&mut from_client, &mut to_server).await;
        });
        connections.spawn(answers(from_server, to_client, rewrite.clone()));
    }
}

async fn answers(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, rewrite: Arc<impl Fn(&mut [u8])>) {
    while let Ok(length) = from.read_u32().await {
        let mut frame = vec![0; length as usize];
        if from.read_exact(&mut frame).await.is_err() {
            return;
        }
        rewrite(&mut frame);
        if to.write_u32(length).await.is_err() || to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// An address is its host's name and then its port, four bytes with the highest first.
fn rewrite(frame: &mut [u8], broker: u16, port: u16) {
    let address = [HOST.as_bytes(), &u32::from(broker).to_be_bytes()].concat();
    let places: Vec<usize> = frame
        .windows(address.len())
        .enumerate()
        .filter(|(_, seen)| *seen == address)
        .map(|(at, _)| at)
        .collect();
    for at in places {
        frame[at + HOST.len()..at + address.len()].copy_from_slice(&u32::from(port).to_be_bytes());
    }
}
