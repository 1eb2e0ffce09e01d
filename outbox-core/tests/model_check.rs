//! Every state that one message, two relays, a broker and consumer groups can get into, over the real
//! transition function: crash at any step, leases that end at any step, confirmations lost, receipts early,
//! late, lost and twice, people who requeue. `--nocapture` shows how many.
#![allow(clippy::panic, clippy::print_stdout)]

mod model;

use model::{Consumer, Counterexample, Explored, Flaw, Model, Whole, explore};

const MODEL: Model = Model {
    relays: 2,
    groups: 1,
    decided_at_enqueue: true,
    consumer: Consumer::Inbox,
    rejects: false,
    faults: true,
    flaw: None,
};

/// Explores all of it; no promise is broken.
fn proven(model: Model) {
    match explore(Whole::new(model)) {
        Ok(Explored { states, steps }) => println!("{states} states, {steps} steps: {model:?}"),
        Err(counterexample) => panic!("{counterexample:?}"),
    }
}

/// The flaw is found, by the promise that it breaks.
fn found(flaw: Flaw, model: Model, promise: &str) {
    match explore(Whole::new(Model { flaw: Some(flaw), ..model })) {
        Ok(Explored { states, .. }) => panic!("{flaw:?} is not found in {states} states"),
        Err(Counterexample { promise: broken, trace }) => {
            println!("{flaw:?} breaks {broken:?} by {trace:?}");
            assert_eq!(broken, promise, "{trace:?}");
        }
    }
}

#[test]
fn nobody_must_acknowledge() {
    proven(Model { groups: 0, ..MODEL });
}

#[test]
fn one_group_with_inbox() {
    proven(MODEL);
}

#[test]
fn one_group_with_inbox_that_may_reject() {
    proven(Model { rejects: true, relays: 1, ..MODEL });
}

#[test]
fn one_group_with_dedup_store() {
    proven(Model { consumer: Consumer::Dedup, ..MODEL });
}

#[test]
fn one_group_that_the_relay_decides_on() {
    proven(Model { decided_at_enqueue: false, ..MODEL });
}

#[test]
fn two_groups_with_inbox_and_one_relay() {
    proven(Model { groups: 2, relays: 1, ..MODEL });
}

#[test]
fn without_faults_it_is_published_once() {
    proven(Model { groups: 2, faults: false, ..MODEL });
}

#[test]
fn marking_sent_before_publishing_is_found() {
    found(Flaw::MarksSentBeforePublishing, MODEL, "sent means that the broker stored it");
}

#[test]
fn settling_whatever_the_status_is_found() {
    found(Flaw::SettlesWhateverTheStatus, MODEL, "a stale outcome changes nothing");
}

#[test]
fn settling_without_token_is_found() {
    found(Flaw::SettlesWithoutToken, MODEL, "a stale outcome changes nothing");
}

#[test]
fn claiming_despite_a_lease_is_found() {
    found(Flaw::ClaimsDespiteLease, MODEL, "nobody claims a row while somebody's lease on it lives");
}

#[test]
fn a_claim_that_a_crash_leaves_for_ever_is_found() {
    found(Flaw::ForgetsItsClaim, MODEL, "the message is never lost");
}

#[test]
fn a_retry_that_never_comes_is_found() {
    found(Flaw::GivesUpSilently, MODEL, "the message is never lost");
}

#[test]
fn a_marker_before_the_handler_is_found() {
    let promise = "completed means that every required group's effect happened";
    found(Flaw::MarksBeforeHandling, Model { consumer: Consumer::Dedup, ..MODEL }, promise);
}

#[test]
fn acknowledging_what_is_in_progress_is_found() {
    let promise = "completed means that every required group's effect happened";
    found(Flaw::AcknowledgesWhatIsInProgress, Model { consumer: Consumer::Dedup, ..MODEL }, promise);
}

#[test]
fn a_receipt_before_the_effect_is_found() {
    let promise = "completed means that every required group's effect happened";
    found(Flaw::SendsReceiptFirst, MODEL, promise);
}

#[test]
fn a_receipt_that_counts_twice_is_found() {
    let two = Model { groups: 2, relays: 1, ..MODEL };
    found(Flaw::CountsReceiptsTwice, two, "completed means all receipts are in");
}

#[test]
fn an_unfenced_rejection_is_found() {
    found(Flaw::RejectsUnfenced, Model { rejects: true, ..MODEL }, "a stale outcome changes nothing");
}
