use std::fmt;
use std::time::Duration;

use lapin::tcp::{OwnedIdentity, OwnedTLSConfig};
use outbox_core::{Message, Pattern, Router};

use crate::address::Address;
use crate::error::InvalidAmqpConfig;
use crate::route::Route;
use crate::topology::Topology;

/// How to reach RabbitMQ and where messages go.
///
/// ```
/// use std::time::Duration;
/// use outbox_amqp::{AmqpConfig, Exchange, Route, Topology};
///
/// let config = AmqpConfig::new("amqp://app:secret@rabbit-1/shop")?
///     .with_host("amqp://app:secret@rabbit-2/shop")?
///     .with_exchange("events")
///     .with_route("mail.#", Route::to("mail"))
///     .with_confirm_timeout(Duration::from_secs(10))
///     .with_topology(
///         Topology::default()
///             .with_exchange(Exchange::topic("events"))
///             .with_queue("inventory")
///             .with_binding("events", "order.#", "inventory"),
///     );
/// # Ok::<(), outbox_amqp::InvalidAmqpConfig>(())
/// ```
#[derive(Clone)]
pub struct AmqpConfig {
    pub(crate) addresses: Vec<Address>,
    pub(crate) router: Router<Route>,
    pub(crate) topology: Topology,
    pub(crate) tls: OwnedTLSConfig,
    pub(crate) confirm_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) connection_name: String,
    pub(crate) channels: usize,
}

impl AmqpConfig {
    /// A broker by its URI, `amqp://user:password@host:port/vhost`, or `amqps://` for TLS. Encode special
    /// characters: the vhost `/` is `%2f`, which is also the default.
    ///
    /// # Errors
    /// [`InvalidAmqpConfig`] when `uri` is not such a URI.
    pub fn new(uri: impl AsRef<str>) -> Result<Self, InvalidAmqpConfig> {
        Ok(Self {
            addresses: vec![Address::parse(uri.as_ref())?],
            router: Router::default(),
            topology: Topology::default(),
            tls: OwnedTLSConfig::default(),
            confirm_timeout: Duration::from_secs(20),
            connect_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(10),
            connection_name: "outbox".into(),
            channels: 8,
        })
    }

    /// Another node of the same cluster; nodes are tried in turn, from the last one that worked.
    ///
    /// # Errors
    /// [`InvalidAmqpConfig`] when `uri` is not an AMQP URI.
    pub fn with_host(mut self, uri: impl AsRef<str>) -> Result<Self, InvalidAmqpConfig> {
        self.addresses.push(Address::parse(uri.as_ref())?);
        Ok(self)
    }

    /// The exchange of messages that no rule matches, with the `biz_type` as the routing key. Without it, it
    /// is RabbitMQ's default exchange: each message goes to the queue named like its `biz_type`.
    #[must_use]
    pub fn with_exchange(mut self, name: impl Into<String>) -> Self {
        self.router.set_default(Route::to(name));
        self
    }

    /// Where messages go whose `biz_type` matches; the first rule that matches counts.
    #[must_use]
    pub fn with_route(mut self, pattern: impl Into<Pattern>, route: Route) -> Self {
        self.router.add_rule(pattern.into(), route);
        self
    }

    /// Routes by a function, in place of exchange and rules. It must not block.
    #[must_use]
    pub fn with_router(mut self, router: impl Fn(&Message) -> Route + Send + Sync + 'static) -> Self {
        self.router.set_function(router);
        self
    }

    /// Exchanges, queues and bindings to declare whenever a connection is opened; none by default.
    #[must_use]
    pub fn with_topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// The time for one call of `publish` or `publish_batch`, connecting included; 20 s by default, a day at
    /// most. Keep it well under half of the relay's lease: a few seconds more are spent on asking whether the
    /// broker still answers.
    #[must_use]
    pub fn with_confirm_timeout(mut self, timeout: Duration) -> Self {
        self.confirm_timeout = timeout.min(Duration::from_secs(86_400));
        self
    }

    /// The time to connect and log in to one host; 5 s by default.
    #[must_use]
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// A connection that is silent for twice this long counts as lost; 10 s by default, whole seconds, at
    /// least one. `?heartbeat=` in the URI and a shorter one of the broker win.
    #[must_use]
    pub fn with_heartbeat(mut self, interval: Duration) -> Self {
        self.heartbeat = interval;
        self
    }

    /// The name that RabbitMQ shows for the connection; `outbox` by default.
    #[must_use]
    pub fn with_connection_name(mut self, name: impl Into<String>) -> Self {
        self.connection_name = name.into();
        self
    }

    /// How many calls may be on their way at the same time, each on a channel of its own; 8 by default, from 1
    /// to 1,000. More than that wait for their turn.
    #[must_use]
    pub fn with_channels(mut self, channels: usize) -> Self {
        self.channels = channels.clamp(1, 1_000);
        self
    }

    /// Certificates in PEM to trust for `amqps://`, besides the well-known public ones.
    #[must_use]
    pub fn with_root_certificates(mut self, pem: impl Into<String>) -> Self {
        self.tls.cert_chain = Some(pem.into());
        self
    }

    /// The certificate and private key, both in PEM, to show to the broker on `amqps://`.
    #[must_use]
    pub fn with_client_certificate(mut self, pem: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.tls.identity = Some(OwnedIdentity::PKCS8 { pem: pem.into(), key: key.into() });
        self
    }
}

/// Shows neither passwords nor keys.
impl fmt::Debug for AmqpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AmqpConfig")
            .field("addresses", &self.addresses)
            .field("router", &self.router)
            .field("topology", &self.topology)
            .field("root_certificates", &self.tls.cert_chain.is_some())
            .field("client_certificate", &self.tls.identity.is_some())
            .field("confirm_timeout", &self.confirm_timeout)
            .field("connect_timeout", &self.connect_timeout)
            .field("heartbeat", &self.heartbeat)
            .field("connection_name", &self.connection_name)
            .field("channels", &self.channels)
            .finish()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_secret() {
        let config = AmqpConfig::new("amqp://app:s3cret@a")
            .and_then(|config| config.with_host("amqp://app:s3cret@b"))
            .unwrap()
            .with_client_certificate("s3cret", "s3cret");
        let shown = format!("{config:?}");
        assert!(!shown.contains("s3cret") && shown.contains("amqp://app@b:5672"), "{shown}");
    }

    #[test]
    fn a_call_ends_well_within_half_of_a_lease_by_default() {
        let config = AmqpConfig::new("amqp://a").unwrap();
        assert!(config.confirm_timeout + 2 * Duration::from_secs(3) < Duration::from_secs(30));
        assert_eq!(config.with_channels(0).channels, 1);
    }
}
