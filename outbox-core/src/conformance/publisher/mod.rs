//! The suite for [`Publisher`].

#[allow(missing_docs, reason = "the names say it")]
pub mod cases;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

use super::run::{guarded, runtime};
use crate::publisher::Publisher;

/// A message as a consumer of the broker gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The body.
    pub payload: Vec<u8>,
    /// All headers, those of [`wire`](crate::wire) among them.
    pub headers: BTreeMap<String, String>,
    /// The MIME type, wherever the broker keeps it.
    pub content_type: String,
}

/// A publisher under test, with a consumer behind it. Its constructor, the second argument of
/// [`publisher_suite!`](crate::publisher_suite), is an `async fn() -> Self` and makes a destination that no
/// other test uses.
pub trait PublisherFixture: Send + Sync + 'static {
    /// The publisher.
    type Publisher: Publisher;

    /// The publisher.
    fn publisher(&self) -> Arc<Self::Publisher>;
    /// A biz type whose messages [`receive`](Self::receive) gets.
    fn biz_type(&self) -> String;
    /// A biz type that leads nowhere; `None` where the broker makes a place for everything.
    fn unroutable(&self) -> Option<String>;
    /// A payload's size, in bytes, that is never acceptable; `None` where there is no such limit.
    fn too_large(&self) -> Option<usize>;
    /// The next message that came; `None` when none comes within a time that is long enough to be sure.
    fn receive(&self) -> impl Future<Output = Option<Received>> + Send;
    /// Takes the broker away from the publisher; `false` where the fixture cannot.
    fn go_away(&self) -> impl Future<Output = bool> + Send;
    /// Gives it back.
    fn come_back(&self) -> impl Future<Output = ()> + Send;
    /// Removes what the fixture made; nothing by default.
    fn cleanup(self) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        async {}
    }
}

/// Runs one case on a fixture of its own.
pub fn run_case<F: PublisherFixture>(make: impl AsyncFnOnce() -> F, case: impl AsyncFnOnce(&F)) {
    runtime().block_on(async {
        let fixture = Arc::new(make().await);
        let fixture_of_case = Arc::clone(&fixture);
        let cleanup = async { Arc::into_inner(fixture).expect("the case has ended").cleanup().await };
        guarded(async move { case(&fixture_of_case).await }, cleanup).await;
    });
}

/// One test per case for a [`Publisher`](crate::Publisher): the name of the module they go to, and the
/// constructor of a [`PublisherFixture`](crate::conformance::PublisherFixture).
#[macro_export]
macro_rules! publisher_suite {
    ($(#[$attribute:meta])* $name:ident, $make:expr $(,)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::__conformance_cases! {
                [$(#[$attribute])*], run_publisher_case, $make,
                publisher: [
                    confirmed_is_received_once_with_all_fields,
                    unicode_and_odd_texts_arrive,
                    empty_payload_arrives,
                    big_payload_arrives,
                    empty_batch_is_answered,
                    batch_is_answered_in_order_and_received,
                    large_batch_is_received_whole,
                    concurrent_publishes_are_received_once_each,
                    unroutable_is_failed,
                    too_large_is_rejected,
                    bad_messages_harm_no_batch_mate,
                    gone_broker_is_unavailable_and_comes_back,
                    everything_confirmed_before_close_is_received,
                ]
            }
        }
    };
}
