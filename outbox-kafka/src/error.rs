/// What is wrong with a configuration. Values are never quoted: they may be passwords.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKafkaConfig {
    /// No server was named.
    #[error("no Kafka server is named; give host:port, several separated by commas")]
    NoServers,
    /// librdkafka does not know the property, or not with this value.
    #[error("librdkafka does not take the property {name:?}: {reason}")]
    Property {
        /// The property's name.
        name: String,
        /// What librdkafka says.
        reason: String,
    },
    /// With this value the property would break what the publisher promises.
    #[error("the property {name:?} cannot be set so: {why}")]
    Promise {
        /// The property's name.
        name: String,
        /// What it would break, or what to use in its place.
        why: &'static str,
    },
}
