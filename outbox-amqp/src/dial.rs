use std::future::Future;
use std::io;
use std::time::Duration;

use lapin::tcp::AsyncTcpStream;
use lapin::{Connection, ConnectionProperties};
use tokio::time::timeout;

use crate::address::Address;
use crate::config::AmqpConfig;
use crate::lifeline::Lifeline;
use crate::link::Link;
use crate::trouble::Trouble;

/// Connects, logs in and declares the topology.
pub(crate) async fn dial(address: &Address, config: &AmqpConfig) -> Result<Link, Trouble> {
    let lifeline = Lifeline::default();
    let guard = lifeline.guard();
    let limit = config.connect_timeout;
    let connection = in_time(limit, connect(address, config, lifeline.clone()))
        .await
        .map_err(|error| Trouble::connecting(address, error))?;
    let link = Link::new(connection, lifeline);
    declare(&link, config).await?;
    guard.keep();
    tracing::info!(%address, "connected to RabbitMQ");
    Ok(link)
}

async fn connect(
    address: &Address,
    config: &AmqpConfig,
    lifeline: Lifeline,
) -> Result<Connection, lapin::Error> {
    let target = (address.host().to_owned(), address.port());
    let tls = address.is_tls().then(|| config.tls.clone());
    let limit = config.connect_timeout;
    Connection::connector(
        address.uri(config.heartbeat),
        lapin::runtime::default_runtime()?,
        async move |_, runtime| {
            in_time(limit, async {
                let stream =
                    AsyncTcpStream::connect(&runtime, runtime.to_socket_addrs(target.clone())).await?;
                if let AsyncTcpStream::Plain(socket) = &stream {
                    lifeline.hold(socket.get_ref())?;
                }
                match &tls {
                    Some(tls) => Ok(stream.into_tls(&target.0, tls.as_ref()).await?),
                    None => Ok(stream),
                }
            })
            .await
        },
        ConnectionProperties::default().with_connection_name(config.connection_name.as_str().into()),
    )
    .await
}

async fn declare(link: &Link, config: &AmqpConfig) -> Result<(), Trouble> {
    if config.topology.is_empty() {
        return Ok(());
    }
    let declaring = async {
        let channel = link.open_channel().await?;
        config.topology.declare(&channel).await
    };
    match timeout(config.connect_timeout, declaring).await {
        Ok(declared) => declared.map_err(Trouble::declaring),
        Err(_) => Err(Trouble::not_declared_in_time()),
    }
}

async fn in_time<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, lapin::Error>>,
) -> Result<T, lapin::Error> {
    let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no answer within {limit:?}"));
    timeout(limit, work).await.unwrap_or_else(|_| Err(late().into()))
}
