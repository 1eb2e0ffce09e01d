use std::fmt;
use std::time::Duration;

use lapin::uri::{AMQPScheme, AMQPUri};

use crate::error::InvalidAmqpConfig;

/// Where a broker is and how to log in; shown without the password.
#[derive(Clone)]
pub(crate) struct Address(AMQPUri);

impl Address {
    /// Never quotes `text` in the error: it holds a password.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidAmqpConfig> {
        let (_, rest) = text.split_once("://").ok_or(InvalidAmqpConfig::NotAUri)?;
        let (authority, tail) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if tail.contains('@') {
            return Err(InvalidAmqpConfig::NotEncoded);
        }
        let mut uri: AMQPUri = text.parse().map_err(|_| InvalidAmqpConfig::NotAUri)?;
        if let Some(host) = ipv6(authority) {
            uri.authority.host = host.to_owned();
        }
        Ok(Self(uri))
    }

    pub(crate) fn host(&self) -> &str {
        &self.0.authority.host
    }

    pub(crate) fn port(&self) -> u16 {
        self.0.authority.port
    }

    pub(crate) fn user(&self) -> &str {
        &self.0.authority.userinfo.username
    }

    pub(crate) fn vhost(&self) -> &str {
        &self.0.vhost
    }

    pub(crate) fn is_tls(&self) -> bool {
        self.0.scheme == AMQPScheme::AMQPS
    }

    /// The URI for lapin; a heartbeat that the URI names itself wins.
    pub(crate) fn uri(&self, heartbeat: Duration) -> AMQPUri {
        let mut uri = self.0.clone();
        let seconds = u16::try_from(heartbeat.as_secs()).unwrap_or(u16::MAX).max(1);
        uri.query.heartbeat.get_or_insert(seconds);
        uri
    }
}

/// lapin's URI parser silently turns an IPv6 host into `localhost`.
fn ipv6(authority: &str) -> Option<&str> {
    let host = authority.rsplit('@').next()?;
    Some(host.strip_prefix('[')?.split_once(']')?.0)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host =
            if self.host().contains(':') { format!("[{}]", self.host()) } else { self.host().to_owned() };
        let vhost = self.vhost().replace('/', "%2f");
        write!(f, "{}://{}@{host}:{}/{vhost}", self.0.scheme, self.user(), self.port())
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
