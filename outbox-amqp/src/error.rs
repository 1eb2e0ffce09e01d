/// What is wrong with a configuration. The URI is never quoted: it holds a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidAmqpConfig {
    /// Not an AMQP URI.
    #[error("the AMQP URI is not of the form amqp://user:password@host:5672/vhost (or amqps://…:5671/…)")]
    NotAUri,
    /// There is an `@` behind the host: part of a password or name was not encoded.
    #[error("the AMQP URI has an @ behind the host; percent-encode / ? # and @ in user, password and vhost")]
    NotEncoded,
}
