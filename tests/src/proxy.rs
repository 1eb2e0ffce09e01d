use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

const CHUNK: usize = 16 * 1024;

/// A TCP proxy on this machine that can lose connections in all the ways a network can.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    server: String,
    state: watch::Sender<State>,
    task: AbortHandle,
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    refusing: bool,
    cuts: u64,
    to_server_stalled: bool,
    to_client_stalled: bool,
    /// A connection on which this was asked hears nothing more.
    unanswered: Option<&'static str>,
}

impl State {
    fn passes(&self, direction: Direction) -> bool {
        !match direction {
            Direction::ToServer => self.to_server_stalled,
            Direction::ToClient => self.to_client_stalled,
        }
    }

    fn loses_answer_to(&self, bytes: &[u8]) -> bool {
        let contains = |text: &str| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        self.unanswered.is_some_and(contains)
    }
}

impl Proxy {
    /// A proxy before the server of `url`, which must name host and port.
    pub async fn before(url: &str) -> Result<Self> {
        let server = authority(url)?.to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (state, watch) = watch::channel(State::default());
        let task = tokio::spawn(serve(listener, server.clone(), watch)).abort_handle();
        Ok(Self { address, server, state, task })
    }

    /// `url` by way of this proxy.
    pub fn url(&self, url: &str) -> String {
        url.replacen(&self.server, &self.address.to_string(), 1)
    }

    /// Ends all connections; new ones are served.
    pub fn cut(&self) {
        self.state.send_modify(|state| state.cuts += 1);
    }

    /// Ends all connections and refuses new ones.
    pub fn refuse(&self) {
        self.state.send_modify(|state| {
            state.cuts += 1;
            state.refusing = true;
        });
    }

    /// From now on nothing passes in this direction, and nobody is told: with one direction the connection
    /// is half open, with both the other side has vanished.
    pub fn stall(&self, direction: Direction) {
        self.state.send_modify(|state| match direction {
            Direction::ToServer => state.to_server_stalled = true,
            Direction::ToClient => state.to_client_stalled = true,
        });
    }

    /// The server gets this question, and the answer is lost: from then on the connection that asked is stalled
    /// towards the client.
    pub fn lose_answer_to(&self, question: &'static str) {
        self.state.send_modify(|state| state.unanswered = Some(question));
    }

    /// Everything passes again, also what was held back.
    pub fn resume(&self) {
        self.state.send_modify(|state| *state = State { cuts: state.cuts, ..State::default() });
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The `host:port` of a URL.
fn authority(url: &str) -> Result<&str> {
    let (_, rest) = url.split_once("://").context("a URL has a scheme")?;
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    Ok(authority.rsplit_once('@').map_or(authority, |(_, host)| host))
}

/// Waits for a state; for ever, when the proxy is gone and its task is about to be.
async fn holds(state: &mut watch::Receiver<State>, what: impl FnMut(&State) -> bool) {
    if state.wait_for(what).await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Runs until its task is aborted, and takes all connections with it.
async fn serve(mut listener: TcpListener, server: String, mut state: watch::Receiver<State>) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = holds(&mut state, |state| state.refusing) => listener = refuse(listener, &mut state).await?,
            accepted = listener.accept() => {
                connections.spawn(connect(accepted?.0, server.clone(), state.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Keeps the port without listening on it, which the system answers with "connection refused".
async fn refuse(listener: TcpListener, state: &mut watch::Receiver<State>) -> Result<TcpListener> {
    let address = listener.local_addr()?;
    drop(listener);
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    holds(state, |state| !state.refusing).await;
    Ok(socket.listen(1024)?)
}

async fn connect(client: TcpStream, server: String, mut state: watch::Receiver<State>) -> Result<()> {
    let cuts = state.borrow_and_update().cuts;
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let lost = AtomicBool::new(false);
    let up = pump(from_client, to_server, state.clone(), |state, bytes| {
        lost.fetch_or(state.loses_answer_to(bytes), Ordering::SeqCst);
        state.passes(Direction::ToServer)
    });
    let down = pump(from_server, to_client, state.clone(), |state, _| {
        let answers = state.unanswered.is_none() || !lost.load(Ordering::SeqCst);
        answers && state.passes(Direction::ToClient)
    });
    // The cut comes first: a proxy that is cut and resumed at once must not pass on what it held back.
    tokio::select! {
        biased;
        () = holds(&mut state, |state| state.cuts != cuts) => {}
        ended = async { tokio::try_join!(up, down) } => { ended?; }
    }
    Ok(())
}

/// What was read before a stall, but not yet written, waits as well: after [`Proxy::stall`] returned nothing
/// passes.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut state: watch::Receiver<State>,
    passes: impl Fn(&State, &[u8]) -> bool,
) -> Result<()> {
    let mut buffer = vec![0; CHUNK];
    loop {
        holds(&mut state, |state| passes(state, &[])).await;
        let read = from.read(&mut buffer).await?;
        holds(&mut state, |state| passes(state, &buffer[..read])).await;
        if read == 0 {
            return Ok(to.shutdown().await?);
        }
        to.write_all(&buffer[..read]).await?;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const SOON: Duration = Duration::from_secs(5);
    const A_WHILE: Duration = Duration::from_millis(100);

    /// A server that sends back what it gets, and a proxy before it.
    async fn echo() -> Result<Proxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("echo://user:secret@{}/x", listener.local_addr()?);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        Proxy::before(&url).await
    }

    async fn open(proxy: &Proxy) -> Result<TcpStream> {
        Ok(TcpStream::connect(proxy.address).await?)
    }

    async fn answers(stream: &mut TcpStream, limit: Duration) -> Result<bool> {
        stream.write_all(b"?").await?;
        Ok(timeout(limit, stream.read_u8()).await.is_ok_and(|byte| byte.is_ok()))
    }

    #[tokio::test]
    async fn proxy_passes_and_cuts() -> Result<()> {
        let proxy = echo().await?;
        let mut stream = open(&proxy).await?;
        assert!(answers(&mut stream, SOON).await?);
        proxy.cut();
        assert!(timeout(SOON, stream.read_u8()).await?.is_err());
        assert!(answers(&mut open(&proxy).await?, SOON).await?);
        Ok(())
    }

    #[tokio::test]
    async fn proxy_refuses_until_resumed() -> Result<()> {
        let proxy = echo().await?;
        let mut stream = open(&proxy).await?;
        assert!(answers(&mut stream, SOON).await?);
        proxy.refuse();
        assert!(timeout(SOON, stream.read_u8()).await?.is_err());
        while open(&proxy).await.is_ok() {
            tokio::task::yield_now().await;
        }
        proxy.resume();
        while open(&proxy).await.is_err() {
            tokio::task::yield_now().await;
        }
        assert!(answers(&mut open(&proxy).await?, SOON).await?);
        Ok(())
    }

    #[tokio::test]
    async fn proxy_stalls_one_direction_and_keeps_the_bytes() -> Result<()> {
        for direction in [Direction::ToServer, Direction::ToClient] {
            let proxy = echo().await?;
            let mut stream = open(&proxy).await?;
            assert!(answers(&mut stream, SOON).await?);
            proxy.stall(direction);
            assert!(!answers(&mut stream, A_WHILE).await?, "{direction:?}");
            proxy.resume();
            assert_eq!(timeout(SOON, stream.read_u8()).await??, b'?');
        }
        Ok(())
    }

    #[tokio::test]
    async fn proxy_loses_the_answer_to_one_question_on_its_connection() -> Result<()> {
        let proxy = echo().await?;
        let (mut stream, mut other) = (open(&proxy).await?, open(&proxy).await?);
        assert!(answers(&mut stream, SOON).await? && answers(&mut other, SOON).await?);
        proxy.lose_answer_to("COMMIT");
        assert!(answers(&mut stream, SOON).await?);
        stream.write_all(b"COMMIT").await?;
        assert!(!answers(&mut stream, A_WHILE).await? && answers(&mut other, SOON).await?);
        proxy.resume();
        assert_eq!(timeout(SOON, stream.read_u8()).await??, b'C');
        Ok(())
    }

    #[tokio::test]
    async fn proxy_cut_and_resumed_at_once_passes_nothing_on() -> Result<()> {
        for _ in 0..20 {
            let proxy = echo().await?;
            let mut stream = open(&proxy).await?;
            assert!(answers(&mut stream, SOON).await?);
            proxy.lose_answer_to("?");
            stream.write_all(b"?").await?;
            tokio::time::sleep(Duration::from_millis(10)).await;
            proxy.cut();
            proxy.resume();
            assert!(timeout(SOON, stream.read_u8()).await?.is_err());
        }
        Ok(())
    }

    #[test]
    fn authority_is_host_and_port() -> Result<()> {
        assert_eq!(authority("amqp://guest:guest@127.0.0.1:5672/%2f")?, "127.0.0.1:5672");
        assert_eq!(authority("postgres://localhost:5432?x=1")?, "localhost:5432");
        Ok(())
    }
}
