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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Address {
        Address::parse(text).unwrap()
    }

    #[test]
    fn shown_without_the_password() {
        let address = parse("amqps://app:p%40ss@rabbit/shop?heartbeat=7");
        assert_eq!(address.to_string(), "amqps://app@rabbit:5671/shop");
        assert_eq!(format!("{address:?}"), address.to_string());
        assert!(address.is_tls());
        assert_eq!(address.uri(Duration::ZERO).authority.userinfo.password, "p@ss");
    }

    #[test]
    fn vhost_defaults_to_the_slash() {
        for text in ["amqp://h", "amqp://h/%2f"] {
            assert_eq!(parse(text).to_string(), "amqp://guest@h:5672/%2f");
        }
    }

    #[test]
    fn ipv6_hosts_are_kept() {
        let address = parse("amqp://u:p@[::1]:5673/v");
        assert_eq!((address.host(), address.port()), ("::1", 5673));
        assert_eq!(address.to_string(), "amqp://u@[::1]:5673/v");
        assert_eq!(parse("amqp://[fe80::2]").host(), "fe80::2");
    }

    #[test]
    fn heartbeat_of_the_uri_wins_and_is_never_off() {
        let seconds = |text: &str, heartbeat| parse(text).uri(heartbeat).query.heartbeat;
        assert_eq!(seconds("amqp://h", Duration::from_secs(10)), Some(10));
        assert_eq!(seconds("amqp://h?heartbeat=3", Duration::from_secs(10)), Some(3));
        assert_eq!(seconds("amqp://h", Duration::from_millis(10)), Some(1));
        assert_eq!(seconds("amqp://h", Duration::MAX), Some(u16::MAX));
    }

    #[test]
    fn errors_never_quote_the_uri() {
        for (text, reason) in [
            ("app:s3cret@rabbit", InvalidAmqpConfig::NotAUri),
            ("http://app:s3cret@rabbit", InvalidAmqpConfig::NotAUri),
            ("amqp://app:s3cret@rabbit:port", InvalidAmqpConfig::NotAUri),
            ("amqp://app:s3c/ret@rabbit/v", InvalidAmqpConfig::NotEncoded),
            ("amqp://app:1#s3cret@rabbit/v", InvalidAmqpConfig::NotEncoded),
            ("amqp://app:1?s3cret@rabbit/v", InvalidAmqpConfig::NotEncoded),
        ] {
            let error = Address::parse(text).unwrap_err();
            assert_eq!(error, reason, "{text}");
            assert!(!error.to_string().contains("s3c"), "{error}");
        }
    }
}
