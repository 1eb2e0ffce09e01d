//! How a receipt travels through a broker, for adapters: as a message of its own, which any language can write.
//!
//! The body is JSON, and the contract is its version 1:
//!
//! ```json
//! {"version": 1, "msg_id": "019b…", "group": "points", "claim_no": 3, "verdict": "handled"}
//! {"version": 1, "msg_id": "019b…", "group": "points", "claim_no": 3, "verdict": "rejected", "reason": "…"}
//! ```
//!
//! | field | |
//! |---|---|
//! | `version` | 1; further fields do not change it |
//! | `msg_id` | of the message that was handled: its header `outbox-msg-id` |
//! | `group` | the consumer group, as the producer's policy names it |
//! | `claim_no` | the number in the message's header `outbox-claim-no`, or its digits as a string; it fences a rejection; 0 if missing |
//! | `verdict` | `handled`: the group's effect has happened; `rejected`: it never will |
//! | `reason` | of a rejection, for people; may be missing |
//!
//! A receipt may be sent any number of times and in any order. Send it when the effect is durable, and
//! acknowledge the message only when the broker has confirmed the receipt.

mod apply;
mod format;
mod send;

pub use apply::{Fate, apply};
pub use format::{BIZ_TYPE, message, read};
pub use send::send;
