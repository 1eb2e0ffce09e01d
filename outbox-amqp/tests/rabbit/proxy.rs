//! A TCP proxy before the broker that cuts, stalls, refuses, and speaks in the broker's name.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use lapin::uri::AMQPUri;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::lab::uri;

/// A kind of method frame, by class and method.
type Kind = (u16, u16);
pub(crate) const ACK: Kind = (60, 80);
const CONSUME_OK: Kind = (60, 21);
const BASIC_CANCEL: [u8; 4] = [0, 60, 0, 30];
const CONNECTION_BLOCKED: [u8; 8] = [0, 10, 0, 60, 3, b'l', b'o', b'w'];
const CONNECTION_UNBLOCKED: [u8; 4] = [0, 10, 0, 61];
type Frames = mpsc::UnboundedSender<Vec<u8>>;

pub(crate) struct Proxy {
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
}

struct Shared {
    broker: String,
    /// Whether nothing passes from the client to the broker, and back.
    up_stalled: watch::Sender<bool>,
    down_stalled: watch::Sender<bool>,
    /// Bytes from the client that may pass before that way stalls.
    allowance: AtomicU64,
    cuts: watch::Sender<u64>,
    swallowed: Mutex<Option<Kind>>,
    swallow_count: AtomicUsize,
    /// Channel and tag of the last one.
    subscription: Mutex<Option<([u8; 2], Vec<u8>)>>,
    clients: Mutex<Vec<Frames>>,
    connections: AtomicUsize,
}

impl Proxy {
    pub(crate) async fn start() -> Self {
        let broker: AMQPUri = uri().parse().unwrap();
        let shared = Arc::new(Shared {
            broker: format!("{}:{}", broker.authority.host, broker.authority.port),
            up_stalled: watch::Sender::new(false),
            down_stalled: watch::Sender::new(false),
            allowance: AtomicU64::new(u64::MAX),
            cuts: watch::Sender::new(0),
            swallowed: Mutex::new(None),
            swallow_count: AtomicUsize::new(0),
            subscription: Mutex::new(None),
            clients: Mutex::new(Vec::new()),
            connections: AtomicUsize::new(0),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = Some(tokio::spawn(accept(listener, shared.clone())));
        Self { address, accepting, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The broker's URI, through this proxy.
    pub(crate) fn uri(&self) -> String {
        let mut uri: AMQPUri = uri().parse().unwrap();
        uri.authority.host = self.address.ip().to_string();
        uri.authority.port = self.address.port();
        uri.to_string()
    }

    /// Connections accepted so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Nothing passes any more; new connections are taken and left unanswered.
    pub(crate) fn stall(&self) {
        self.shared.up_stalled.send_replace(true);
        self.shared.down_stalled.send_replace(true);
    }

    /// `bytes` more pass from the client to the broker; the other way stays open.
    pub(crate) fn stall_up_after(&self, bytes: u64) {
        self.shared.allowance.store(bytes, Ordering::SeqCst);
    }

    /// Waits until the bytes of [`stall_up_after`](Self::stall_up_after) have passed.
    pub(crate) async fn stalled(&self) {
        self.shared.up_stalled.subscribe().wait_for(|stalled| *stalled).await.unwrap();
    }

    pub(crate) fn resume(&self) {
        self.shared.allowance.store(u64::MAX, Ordering::SeqCst);
        self.shared.up_stalled.send_replace(false);
        self.shared.down_stalled.send_replace(false);
    }

    /// Ends all connections.
    pub(crate) fn cut(&self) {
        self.shared.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Ends all connections and refuses new ones.
    pub(crate) async fn refuse(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
            let _ = accepting.await;
        }
        self.cut();
    }

    /// Takes connections again, on the same port.
    pub(crate) async fn accept(&mut self) {
        let listener = TcpListener::bind(self.address).await.unwrap();
        self.accepting = Some(tokio::spawn(accept(listener, self.shared.clone())));
    }

    /// Drops method frames of this kind that the broker sends.
    pub(crate) fn swallow(&self, kind: Option<Kind>) {
        *self.shared.swallowed.lock().unwrap() = kind;
    }

    pub(crate) fn swallow_count(&self) -> usize {
        self.shared.swallow_count.load(Ordering::SeqCst)
    }

    /// Tells the clients, in the broker's name, that it is blocked.
    pub(crate) fn block(&self) {
        self.inject(&CONNECTION_BLOCKED);
    }

    pub(crate) fn unblock(&self) {
        self.inject(&CONNECTION_UNBLOCKED);
    }

    /// Ends the last subscription, in the broker's name, and leaves its channel open.
    pub(crate) fn cancel_subscription(&self) {
        let (channel, tag) = self.shared.subscription.lock().unwrap().take().unwrap();
        // `nowait`: the broker would not know what an answer is for.
        self.inject_on(channel, &[&BASIC_CANCEL[..], &tag, &[1]].concat());
    }

    fn inject(&self, method: &[u8]) {
        self.inject_on([0, 0], method);
    }

    fn inject_on(&self, channel: [u8; 2], method: &[u8]) {
        let mut frame = vec![1, channel[0], channel[1]];
        frame.extend(u32::try_from(method.len()).unwrap().to_be_bytes());
        frame.extend(method);
        frame.push(0xCE);
        self.shared.clients.lock().unwrap().retain(|client| client.send(frame.clone()).is_ok());
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        shared.connections.fetch_add(1, Ordering::SeqCst);
        let mut cuts = shared.cuts.subscribe();
        let shared = shared.clone();
        tokio::spawn(async move {
            tokio::select! {
                _ = cuts.changed() => {}
                () = carry(client, &shared) => {}
            }
        });
    }
}

async fn carry(client: TcpStream, shared: &Shared) {
    let Ok(broker) = TcpStream::connect(&shared.broker).await else { return };
    let ((from_client, to_client), (from_broker, to_broker)) = (client.into_split(), broker.into_split());
    let (frames, queue) = mpsc::unbounded_channel();
    shared.clients.lock().unwrap().push(frames.clone());
    tokio::select! {
        () = carry_up(from_client, to_broker, shared) => {}
        () = read_frames(from_broker, frames) => {}
        () = write_frames(queue, to_client, shared) => {}
    }
}

async fn flowing(stalled: &watch::Sender<bool>) {
    stalled.subscribe().wait_for(|stalled| !stalled).await.unwrap();
}

async fn carry_up(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, shared: &Shared) {
    let mut buffer = vec![0; 65_536];
    loop {
        let Ok(bytes @ 1..) = from.read(&mut buffer).await else { return };
        let mut rest = &buffer[..bytes];
        while !rest.is_empty() {
            flowing(&shared.up_stalled).await;
            let allowance = shared.allowance.load(Ordering::SeqCst);
            let (now, later) = rest.split_at(rest.len().min(usize::try_from(allowance).unwrap()));
            if now.is_empty() {
                shared.up_stalled.send_replace(true);
            } else if to.write_all(now).await.is_err() {
                return;
            }
            shared.allowance.fetch_sub(now.len() as u64, Ordering::SeqCst);
            rest = later;
        }
    }
}

async fn read_frames(mut from: OwnedReadHalf, frames: Frames) {
    loop {
        let mut frame = vec![0; 7];
        if from.read_exact(&mut frame).await.is_err() {
            return;
        }
        let size = u32::from_be_bytes(frame[3..7].try_into().unwrap()) as usize;
        frame.resize(7 + size + 1, 0);
        if from.read_exact(&mut frame[7..]).await.is_err() || frames.send(frame).is_err() {
            return;
        }
    }
}

async fn write_frames(mut queue: mpsc::UnboundedReceiver<Vec<u8>>, mut to: OwnedWriteHalf, shared: &Shared) {
    while let Some(frame) = queue.recv().await {
        let swallowed = *shared.swallowed.lock().unwrap();
        if swallowed.is_some_and(|kind| is_method(&frame, kind)) {
            shared.swallow_count.fetch_add(1, Ordering::SeqCst);
            continue;
        }
        if is_method(&frame, CONSUME_OK) {
            let tag = frame[11..frame.len() - 1].to_vec();
            *shared.subscription.lock().unwrap() = Some(([frame[1], frame[2]], tag));
        }
        flowing(&shared.down_stalled).await;
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

fn is_method(frame: &[u8], (class, method): Kind) -> bool {
    frame[0] == 1 && frame[7..9] == class.to_be_bytes() && frame[9..11] == method.to_be_bytes()
}
