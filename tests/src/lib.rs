//! The harness of the end-to-end tests: real PostgreSQL, real RabbitMQ, real processes that are killed, and a
//! checker of what the framework promises.
//!
//! A test opens a [`Scenario`], which owns a schema, an exchange and a queue and drops them whatever happens.
//! It commits and rolls back through it, runs relays in this process or in others, breaks things, and at the
//! end lets [`Scenario::verify`] compare what was committed, what the queue got, and every step of every row.

mod audit;
mod broker;
mod deliveries;
mod drain;
mod fault;
mod ledger;
mod orders;
mod place;
mod process;
mod promises;
mod proxy;
mod psql;
mod relay;
mod scenario;
mod services;
mod skew;
mod tables;
mod wait;

pub use audit::Step;
pub use broker::Broker;
pub use deliveries::{Delivered, Deliveries};
pub use drain::Drain;
pub use fault::{Fault, FaultPoint, FaultyPublisher, FaultyStore};
pub use ledger::Ledger;
pub use orders::{ids, messages, orders};
pub use place::{Place, random_name};
pub use process::RelayProcess;
pub use promises::Evidence;
pub use proxy::{Direction, Proxy};
pub use psql::psql;
pub use relay::{LocalRelay, RelaySetup};
pub use scenario::{Scenario, scenario};
pub use services::{amqp_url, pg_url, required, services_ctl};
pub use skew::with_clock_off;
pub use tables::{OutboxRow, Tables};
pub use wait::{until, within};
