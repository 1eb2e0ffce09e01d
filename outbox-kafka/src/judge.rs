//! What librdkafka's codes mean for a message.

use outbox_core::PublishError;
use rdkafka::types::RDKafkaErrorCode::{self, *};

use crate::trouble::Trouble;

/// How publishing one message ended.
pub(crate) type Verdict = Result<(), PublishError>;

/// What a code says of the message it came with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// It can never be stored.
    Rejected,
    /// It was not stored, or nobody knows, and that is between it and its topic.
    Failed,
    /// Nobody can be reached, or lets this producer in.
    Unavailable,
    /// librdkafka gave it up; whether the broker is to blame is not known yet.
    TimedOut,
    /// The broker refused it together with others, any of which may be the reason.
    TooLargeTogether,
}

pub(crate) fn meaning(code: RDKafkaErrorCode) -> Meaning {
    match code {
        MessageSizeTooLarge | MessageBatchTooLarge => Meaning::TooLargeTogether,
        InvalidMessageSize | InvalidRecord | InvalidTopic | InvalidArgument | PolicyViolation => {
            Meaning::Rejected
        }
        MessageTimedOut | OperationTimedOut | TimedOutQueue => Meaning::TimedOut,
        BrokerTransportFailure
        | AllBrokersDown
        | NetworkException
        | Resolve
        | SSL
        | Authentication
        | SaslAuthenticationFailed
        | UnsupportedSASLMechanism
        | IllegalSASLState
        | ClusterAuthorizationFailed
        | UnsupportedFeature
        | UnsupportedVersion
        | CriticalSystemResource
        | BrokerDestroy
        | QueueFull
        | PurgeQueue
        | PurgeInflight
        | Fatal
        | Fenced
        | ProducerFenced
        | InvalidProducerEpoch
        | ThrottlingQuotaExceeded => Meaning::Unavailable,
        _ => Meaning::Failed,
    }
}

pub(crate) fn rejected(code: RDKafkaErrorCode, topic: &str) -> PublishError {
    PublishError::rejected(format!("topic {topic:?} can never take this message: {code}; {}", remedy(code)))
}

pub(crate) fn failed(code: RDKafkaErrorCode, topic: &str) -> PublishError {
    PublishError::failed(format!("not stored in topic {topic:?}: {code}; {}", remedy(code)))
}

/// A broker answers, but not for this message.
pub(crate) fn timed_out(topic: &str) -> PublishError {
    PublishError::failed(format!(
        "not confirmed in time by topic {topic:?}, though Kafka answers: a partition may lack its leader or \
         enough replicas in sync; it may have been stored all the same, so it may arrive twice"
    ))
}

pub(crate) fn unavailable(code: RDKafkaErrorCode) -> Trouble {
    match code {
        PurgeQueue => Trouble::purged(),
        PurgeInflight => Trouble::purged().and_sent(),
        QueueFull => Trouble::queue_full(),
        _ => Trouble::reported(code).and_sent(),
    }
}

fn remedy(code: RDKafkaErrorCode) -> &'static str {
    match code {
        MessageSizeTooLarge | MessageBatchTooLarge | InvalidMessageSize => {
            "send less, or raise max.message.bytes of the topic"
        }
        UnknownTopic | UnknownTopicOrPartition | UnknownPartition => "create it, or correct the route",
        TopicAuthorizationFailed => "allow this user to write to it",
        InvalidRecord => "a compacted topic takes no record without a key",
        NotEnoughReplicas | NotEnoughReplicasAfterAppend => "trying again helps once replicas are back",
        _ => "trying again may help",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_nobody_thought_of_is_charged_so_that_it_cannot_go_on_for_ever() {
        assert_eq!(meaning(Unknown), Meaning::Failed);
        assert_eq!(meaning(UnsupportedCompressionType), Meaning::Failed);
    }

    #[test]
    fn what_hits_everybody_is_charged_to_nobody() {
        for code in [AllBrokersDown, BrokerTransportFailure, Authentication, Fatal, PurgeInflight, QueueFull]
        {
            assert_eq!(meaning(code), Meaning::Unavailable, "{code}");
        }
    }

    #[test]
    fn what_concerns_a_topic_is_failed() {
        for code in [UnknownTopic, UnknownTopicOrPartition, TopicAuthorizationFailed, NotEnoughReplicas] {
            assert_eq!(meaning(code), Meaning::Failed, "{code}");
        }
    }
}
