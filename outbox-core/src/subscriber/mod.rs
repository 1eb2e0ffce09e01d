//! What runs a broker's consumer, for adapters: a task with a handle, that is told to stop and by when, and lanes in
//! which messages wait for one another.

mod handle;
mod lanes;
mod stop;

pub use handle::{SubscriberHandle, SubscriberShutdown};
pub use lanes::Lanes;
pub use stop::{Stop, after, drop_tasks};
