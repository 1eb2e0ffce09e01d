//! The suite for [`OutboxStore`] with [`Enqueue`].

#[allow(missing_docs, reason = "the names say it")]
pub(super) mod cases;
pub mod random;
mod scene;

use std::future::Future;
use std::ops::DerefMut;
use std::sync::Arc;

pub use scene::Scene;

use super::run::{guarded, runtime};
use crate::clock::{ManualClock, Timestamp};
use crate::message::{Limits, Message};
use crate::policy::Policies;
use crate::store::{Enqueue, OutboxStore, StoreError};

/// How a case wants its store.
#[derive(Debug, Clone)]
pub struct Setup {
    /// The only clock that the store may ask.
    pub clock: ManualClock,
    /// The policies whose required groups it snapshots at enqueue.
    pub policies: Policies,
    /// The limits it validates.
    pub limits: Limits,
}

/// A store under test, and what the suite cannot do through its traits. Its constructor, the second
/// argument of [`store_suite!`](crate::store_suite), is an `async fn(Setup) -> Self` and makes an empty
/// store that no other test sees.
///
/// The suite holds the store to the contracts of its traits, and to what they leave open:
/// - Rows get ascending ids in the order in which they are enqueued. `find` shows them by id, `claim` takes
///   and answers them by due time, then id.
/// - A claim whose lease has ended can still be renewed and settled while nobody else took the row.
/// - Texts are compared exactly: case, accents and spaces at the end count.
/// - An error of any length and content can be settled; the text may be shortened.
///
/// ```
/// use std::sync::Arc;
///
/// use outbox_core::conformance::{Setup, StoreFixture};
/// use outbox_core::memory::{MemoryStore, MemoryTx};
/// use outbox_core::{Enqueue, Message, StoreError, Timestamp};
///
/// struct Fixture {
///     store: Arc<MemoryStore>,
///     undecided: MemoryStore,
/// }
///
/// impl Fixture {
///     async fn new(setup: Setup) -> Self {
///         let undecided = MemoryStore::new().with_clock(setup.clock).with_limits(setup.limits);
///         let store = undecided.clone().with_policies(setup.policies);
///         Self { store: Arc::new(store), undecided }
///     }
/// }
///
/// impl StoreFixture for Fixture {
///     type Store = MemoryStore;
///     type Tx = Box<MemoryTx>;
///     const CONCURRENT_WRITERS: bool = true;
///
///     fn store(&self) -> Arc<MemoryStore> {
///         Arc::clone(&self.store)
///     }
///     fn other(&self) -> Arc<MemoryStore> {
///         Arc::clone(&self.store)
///     }
///     async fn begin(&self) -> Box<MemoryTx> {
///         Box::new(self.store.begin())
///     }
///     async fn commit(&self, mut tx: Box<MemoryTx>) -> Result<(), StoreError> {
///         tx.commit().await
///     }
///     async fn rollback(&self, mut tx: Box<MemoryTx>) {
///         tx.rollback();
///     }
///     async fn enqueue_outside(&self, message: &Message) -> Option<Result<(), StoreError>> {
///         let mut ended = self.store.begin();
///         ended.rollback();
///         Some(self.store.enqueue(&mut ended, std::slice::from_ref(message)).await)
///     }
///     async fn insert_undecided(&self, message: &Message, _now: Timestamp) {
///         let mut tx = self.store.begin();
///         self.undecided.enqueue(&mut tx, std::slice::from_ref(message)).await.unwrap();
///         tx.commit().await.unwrap();
///     }
/// }
///
/// outbox_core::store_suite!(memory, Fixture::new);
/// # fn main() {}
/// ```
pub trait StoreFixture: Send + Sync + 'static {
    /// The store.
    type Store: OutboxStore + Enqueue;
    /// The application's transaction, as an owned value: `sqlx::Transaction<'static, DB>`.
    type Tx: DerefMut<Target = <Self::Store as Enqueue>::Tx> + Send;

    /// Whether one transaction can write while another one that has written is open. SQLite: no.
    const CONCURRENT_WRITERS: bool;

    /// The store.
    fn store(&self) -> Arc<Self::Store>;
    /// Another handle on the same rows, with connections of its own.
    fn other(&self) -> Arc<Self::Store>;
    /// Begins a transaction.
    fn begin(&self) -> impl Future<Output = Self::Tx> + Send;
    /// Commits it. An error is taken for "not committed".
    fn commit(&self, tx: Self::Tx) -> impl Future<Output = Result<(), StoreError>> + Send;
    /// Rolls it back.
    fn rollback(&self, tx: Self::Tx) -> impl Future<Output = ()> + Send;
    /// Enqueues on a connection that is not in a transaction; `None` where the type of `Tx` rules that out.
    fn enqueue_outside(
        &self,
        message: &Message,
    ) -> impl Future<Output = Option<Result<(), StoreError>>> + Send;
    /// Writes and commits a row as a program does that knows the article's columns only: `created_at` and
    /// `next_retry_time` are `now`, who must acknowledge it is left open.
    fn insert_undecided(&self, message: &Message, now: Timestamp) -> impl Future<Output = ()> + Send;
    /// Removes what the fixture made; nothing by default.
    fn cleanup(self) -> impl Future<Output = ()> + Send
    where
        Self: Sized,
    {
        async {}
    }
}

/// Runs one case on a fixture of its own.
pub fn run_case<F: StoreFixture>(make: impl AsyncFnOnce(Setup) -> F, case: impl AsyncFnOnce(&Scene<F>)) {
    runtime().block_on(run_on_new(make, case));
}

async fn run_on_new<F: StoreFixture>(make: impl AsyncFnOnce(Setup) -> F, case: impl AsyncFnOnce(&Scene<F>)) {
    let setup = scene::setup();
    let scene = Arc::new(Scene::new(make(setup.clone()).await, setup.clock));
    let scene_of_case = Arc::clone(&scene);
    let cleanup = async {
        let scene = Arc::into_inner(scene).expect("the case has ended");
        scene.into_fixture().cleanup().await;
    };
    guarded(async move { case(&scene_of_case).await }, cleanup).await;
}

/// One test per case for an [`OutboxStore`](crate::OutboxStore) with [`Enqueue`](crate::Enqueue): the name of
/// the module they go to, and the constructor of a [`StoreFixture`](crate::conformance::StoreFixture).
///
/// `OUTBOX_CONFORMANCE_CASES` (16) and `OUTBOX_CONFORMANCE_STEPS` (40) set how many random operation
/// sequences are compared with the model, and how long they are.
#[macro_export]
macro_rules! store_suite {
    ($(#[$attribute:meta])* $name:ident, $make:expr $(,)?) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $crate::__conformance_cases! {
                [$(#[$attribute])*], run_store_case, $make,
                enqueueing: [
                    committed_rows_are_visible,
                    rolled_back_rows_are_gone,
                    uncommitted_rows_are_invisible,
                    inserted_first_committed_last_is_not_skipped,
                    outside_a_transaction_is_refused,
                    duplicate_is_refused_with_its_batch,
                    duplicate_within_a_batch_is_refused,
                    duplicate_of_a_committing_transaction_is_refused,
                    duplicate_of_a_rolled_back_transaction_is_not_refused,
                    idempotent_leaves_out_what_is_there,
                    invalid_message_is_refused_before_anything_is_written,
                    deliver_after_is_honoured,
                    required_groups_are_snapshotted,
                    empty_calls_do_nothing,
                    large_batch_is_written_claimed_and_settled,
                ]
                storing: [
                    fields_round_trip,
                    longest_fields_are_taken,
                    ids_are_compared_exactly,
                ]
                claiming: [
                    longest_due_is_claimed_first,
                    limit_is_kept,
                    claimed_is_not_claimable_before_its_lease_ends,
                    expired_lease_is_claimed_under_a_new_token,
                    racing_handles_claim_disjointly,
                    only_the_holder_renews,
                    expired_claim_is_renewed_while_nobody_took_it,
                    suspects_are_claimed_only_when_asked_for,
                ]
                settling: [
                    confirmed_without_groups_is_completed,
                    confirmed_with_groups_is_sent,
                    groups_of_the_writer_go_before_those_of_the_relay,
                    retry_is_charged_and_waits,
                    retry_at_the_maximum_is_failed_and_never_claimed,
                    failed_is_final,
                    released_charges_nothing,
                    expired_claim_settles_while_nobody_took_it,
                    settlement_of_a_lost_claim_changes_nothing,
                    settlement_of_a_claim_that_never_was_changes_nothing,
                    settling_twice_counts_once,
                    mixed_batch_is_settled_row_by_row,
                    any_error_text_is_settled,
                ]
                receiving: [
                    last_required_receipt_completes,
                    early_receipts_complete_a_pending_row,
                    early_receipts_end_a_claim,
                    late_receipts_complete_a_failed_row,
                    receipt_counts_once,
                    receipts_of_one_batch_count_once_each,
                    receipt_of_a_group_that_is_not_required_completes_nothing,
                    receipt_for_an_unknown_message_is_no_error,
                    groups_racing_complete_every_row,
                    undecided_row_is_decided_at_confirm,
                    undecided_row_counts_receipts_that_came_before,
                    rejection_fails_the_row,
                    rejection_ends_a_claim,
                    rejection_of_another_claim_changes_nothing,
                    rejection_of_a_settled_fate_changes_nothing,
                    rejection_by_a_group_that_has_handled_it_changes_nothing,
                ]
                operating: [
                    requeue_starts_over,
                    requeue_is_fenced_by_claim_no,
                    requeue_of_what_has_not_failed_changes_nothing,
                    settlement_from_before_a_requeue_changes_nothing,
                    find_filters,
                    find_pages_in_order,
                    stats_count_by_status_and_find_the_longest_due,
                ]
                racing: [
                    settle_races_reclaim,
                    settle_races_settle,
                    confirm_races_last_receipt,
                    requeue_races_requeue,
                    enqueue_races_claim,
                    abandoned_calls_leave_rows_as_before_or_after,
                ]
            }

            #[test]
            $(#[$attribute])*
            fn random_operations_agree_with_the_model() {
                $crate::conformance::internal::random::random_operations_agree_with_the_model($make);
            }
        }
    };
}
