//! Runs the services as two processes, kills each of them at its work, and compares the books.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use outbox::Status;
use tokio::time::sleep;

use crate::books::{Auditor, Books};
use crate::child::Service;
use crate::place::Place;
use crate::{clean_up, orders};

/// How long nothing may happen.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tells the story in a place of its own, and clears it away.
pub async fn run(place: &Place, orders: u32, keep: bool) -> Result<ExitCode> {
    let place = Place { run: format!("{}_{}", place.run, std::process::id()), ..place.clone() };
    let told = tokio::select! {
        told = tell(&place, orders) => told.map(|kept| ExitCode::from(u8::from(!kept))),
        _ = tokio::signal::ctrl_c() => Ok(ExitCode::from(130)),
    };
    if keep {
        println!("Kept: everything whose name begins with {}", place.run);
        return told;
    }
    let cleaned_up = clean_up::clean_up(&place).await;
    told.and_then(|code| cleaned_up.map(|()| code))
}

/// Whether every promise was kept.
async fn tell(place: &Place, orders: u32) -> Result<bool> {
    let started = Instant::now();
    let say = |line: &str| println!("{:6.2} s  {line}", started.elapsed().as_secs_f64());
    let some = i64::from(orders) / 5;

    orders::set_up(place).await?;
    let consumers = Service::start("consumers", None, place).await?;
    let auditor = Auditor::new(place).await?;
    say("inventory and points wait for messages");
    let order_service = Service::start("orders", Some(orders), place).await?;
    say("the order service takes orders");

    until(&auditor, |books| books.deducted.once >= some).await?;
    consumers.kill().await?;
    say("both consumers killed at their work");
    until(&auditor, |books| books.orders >= 2 * some).await?;
    let consumers = Service::start("consumers", None, place).await?;
    say("consumers started again");

    until(&auditor, |books| books.orders >= 3 * some).await?;
    order_service.kill().await?;
    say("order service killed at its work: what it had not taken yet is not ordered");
    let order_service = Service::start("orders", Some(0), place).await?;
    say("order service started again: takes no orders, delivers what is there");

    let books = until(&auditor, Books::are_closed).await?;
    say("every message has come to its end");
    order_service.stop().await?;
    consumers.stop().await?;
    Ok(compare(&books))
}

fn compare(books: &Books) -> bool {
    println!("\n{books}");
    let broken = books.broken_promises();
    match broken.is_empty() {
        true => println!("Every order had its effects; those with an inbox happened exactly once."),
        false => println!("FAILED: {}.", broken.join("; ")),
    }
    broken.is_empty()
}

async fn until(auditor: &Auditor, done: impl Fn(&Books) -> bool) -> Result<Books> {
    let (mut before, mut moved) = (String::new(), Instant::now());
    loop {
        let books = auditor.books().await?;
        if done(&books) {
            return Ok(books);
        }
        let now = books.to_string();
        if now != before {
            (before, moved) = (now, Instant::now());
        } else if moved.elapsed() > PATIENCE {
            bail!(
                "nothing has happened for {PATIENCE:?}; pending: {}\n{books}",
                books.messages.count(Status::Pending)
            );
        }
        sleep(Duration::from_millis(100)).await;
    }
}
