//! The harness of the end-to-end tests: real PostgreSQL, RabbitMQ and Redis, real processes that are killed, and a
//! checker of what the framework promises.
//!
//! A test opens a [`Scenario`], which owns a schema, an exchange and a queue and drops them whatever happens.
//! It commits and rolls back through it, runs relays in this process or in others, breaks things, and at the
//! end lets [`Scenario::verify`] compare what was committed, what the queue got, and every step of every row.
//!
//! A [`RoundTrip`] adds consumer groups, whose effects are rows, and the receipts' way back.

mod audit;
mod broker;
mod commands;
mod deliveries;
mod drain;
mod effects;
mod fault;
mod faulty_consumer;
mod ledger;
mod orders;
mod place;
mod process;
mod promises;
mod proxy;
mod psql;
mod redis;
mod relay;
mod round_trip;
mod scenario;
mod services;
mod skew;
mod subscriber;
mod tables;
mod wait;
mod worker;

pub use audit::Step;
pub use broker::{Broker, dead_letters};
pub use commands::commands;
pub use deliveries::{Delivered, Deliveries};
pub use drain::Drain;
pub use effects::{Effects, Trace};
pub use fault::{Fault, FaultPoint, FaultyPublisher, FaultyStore};
pub use ledger::Ledger;
pub use orders::{ids, messages, orders};
pub use place::{Place, random_name};
pub use process::{Process, SETUP};
pub use promises::Evidence;
pub use proxy::{Direction, Proxy};
pub use psql::psql;
pub use redis::Redis;
pub use relay::{LocalRelay, RelaySetup};
pub use round_trip::{RoundTrip, round_trip, stop};
pub use scenario::{Scenario, scenario};
pub use services::{amqp_url, pg_url, redis_url, required, services_ctl};
pub use skew::with_clock_off;
pub use subscriber::{ConsumerSetup, ListenerSetup, Memory, Receipts, Subscriber};
pub use tables::{OutboxRow, Tables};
pub use wait::{until, within};
pub use worker::Conduct;
