use std::io;
use std::net::Ipv4Addr;

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A way to a server that can be cut: connections break, new ones are dropped.
pub struct Proxy {
    pub port: u16,
    open: watch::Sender<bool>,
}

impl Proxy {
    /// Listens on a free port of this host.
    pub async fn to(host: String, port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let own_port = listener.local_addr()?.port();
        let open = watch::Sender::new(true);
        tokio::spawn(serve(listener, (host, port), open.subscribe()));
        Ok(Self { port: own_port, open })
    }

    pub fn cut(&self) {
        self.open.send_replace(false);
    }

    pub fn mend(&self) {
        self.open.send_replace(true);
    }
}

async fn serve(listener: TcpListener, server: (String, u16), open: watch::Receiver<bool>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(forward(client, server.clone(), open.clone()));
    }
}

async fn forward(mut client: TcpStream, server: (String, u16), mut open: watch::Receiver<bool>) {
    let forwarding = async {
        let mut server = TcpStream::connect(server).await?;
        copy_bidirectional(&mut client, &mut server).await
    };
    tokio::select! {
        biased;
        _ = open.wait_for(|open| !open) => {}
        _ = forwarding => {}
    }
}
