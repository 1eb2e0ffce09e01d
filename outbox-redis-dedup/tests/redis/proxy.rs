//! A proxy in front of a server, with a switch.
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Lets everything through.
    Open,
    /// Cuts what is connected and refuses new connections, as a host whose process is gone.
    Refusing,
    /// Keeps connections, takes new ones, and answers nothing: a cut cable, a stopped process.
    Silent,
    /// Keeps the connections there are and answers nothing on them, but serves new ones: a fail-over without
    /// a goodbye.
    Moved,
}

pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    way: watch::Sender<Way>,
    server: Arc<Mutex<String>>,
    task: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(server: String) -> Self {
        let (way, seen) = watch::channel(Way::Open);
        let socket = bind("127.0.0.1:0".parse().unwrap());
        let address = socket.local_addr().unwrap();
        let server = Arc::new(Mutex::new(server));
        let task = tokio::spawn(run(socket, server.clone(), seen));
        Self { address, way, server, task }
    }

    /// New connections go elsewhere.
    pub(crate) fn lead_to(&self, server: String) {
        *self.server.lock().unwrap() = server;
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    pub(crate) fn set(&self, way: Way) {
        self.way.send(way).unwrap();
    }

    /// Cuts what is connected; new connections go through.
    pub(crate) fn cut(&self) {
        self.set(Way::Open);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A bound socket that does not listen keeps its port and refuses connections.
fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_reuseaddr(true).unwrap();
    socket.bind(address).unwrap();
    socket
}

async fn run(mut socket: TcpSocket, server: Arc<Mutex<String>>, mut way: watch::Receiver<Way>) {
    loop {
        let address = socket.local_addr().unwrap();
        way.wait_for(|way| *way != Way::Refusing).await.unwrap();
        let listener = socket.listen(64).unwrap();
        let mut switch = way.clone();
        tokio::select! {
            _ = switch.wait_for(|way| *way == Way::Refusing) => {}
            () = accept(&listener, &server, &way) => {}
        }
        drop(listener);
        socket = bind(address);
    }
}

async fn accept(listener: &TcpListener, server: &Mutex<String>, way: &watch::Receiver<Way>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        tokio::spawn(serve(client, server.lock().unwrap().clone(), way.clone()));
    }
}

/// Open and refusing end a connection, silent and moved hold it without an answer.
async fn serve(mut client: TcpStream, server: String, mut way: watch::Receiver<Way>) -> io::Result<()> {
    if *way.borrow_and_update() != Way::Silent {
        let mut upstream = TcpStream::connect(server).await?;
        tokio::select! {
            end = copy_bidirectional(&mut client, &mut upstream) => { end?; return Ok(()); }
            _ = way.changed() => {}
        }
    }
    let _ = way.wait_for(|way| matches!(way, Way::Open | Way::Refusing)).await;
    Ok(())
}
