//! An order service whose messages arrive, whatever dies: `cargo run -p quickstart`.
//!
//! What to copy is in [`shop`], an order and its message in one transaction, and in [`relay`], which delivers
//! beside the service. [`tell`] breaks things; the rest counts, and fails the program if anything was lost or
//! was delivered that should not be.

#![allow(unreachable_pub, reason = "a program has no public interface")]

mod args;
mod broker;
mod database;
mod deliveries;
mod gate;
mod narrator;
mod relay;
mod report;
mod shop;
mod stage;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::Parser;
use tokio::time::sleep;

use args::Args;
use database::Database;
use gate::Moment;
use narrator::Narrator;
use relay::MortalRelay;
use stage::Stage;

async fn tell(stage: &mut Stage, orders: usize) -> Result<()> {
    let quarter = orders / 4;

    stage.narrator.act("Everything works");
    let relay = stage.start_relay();
    stage.place_orders(orders - 3 * quarter).await?;
    stage.until_delivered().await?;

    stage.narrator.act("The broker goes away and comes back");
    stage.broker.go_away();
    stage.place_orders(quarter).await?;
    relay.until_it_notices().await?;
    stage.narrator.say("the relay has noticed and waits");
    sleep(Duration::from_secs(1)).await;
    stage.say_what_waits().await?;
    stage.broker.come_back();
    stage.narrator.say("the broker is back");
    stage.until_delivered().await?;

    stage.narrator.act("The relay dies with messages that it has claimed and not yet published");
    let relay = kill_and_replace(stage, relay, Moment::BeforePublish, quarter).await?;

    stage.narrator.act("The relay dies with messages that the broker has and the database does not know of");
    let relay = kill_and_replace(stage, relay, Moment::AfterPublish, quarter).await?;
    stage.narrator.say("those came twice, as they must: the consumer knows them by their msg_id");

    relay.shut_down().await;
    Ok(())
}

async fn kill_and_replace(
    stage: &mut Stage,
    relay: MortalRelay,
    moment: Moment,
    orders: usize,
) -> Result<MortalRelay> {
    relay.stop_at(moment);
    stage.place_orders(orders).await?;
    let held = relay.kill().await?;
    stage.narrator.say(format_args!("relay killed with {held} messages in its hands"));
    stage.say_what_is_claimed().await?;

    let relay = stage.start_relay();
    stage.narrator.say("another relay started");
    stage.until_delivered().await?;
    Ok(relay)
}

/// Tells the story and compares the books; whether every promise was kept.
async fn perform(stage: &mut Stage, orders: usize) -> Result<bool> {
    let told = tell(stage, orders).await;
    stage.narrator.act("The books");
    let report = match stage.report().await {
        Ok(report) => report,
        Err(error) => return Err(told.err().unwrap_or(error)),
    };
    let mut broken = report.broken_promises();
    broken.extend(told.err().map(|error| format!("the story ended early: {error:#}")));
    let verdict = match broken.is_empty() {
        true => "Nothing was lost, and nothing was delivered that should not be.".to_owned(),
        false => format!("FAILED: {}.", broken.join("; ")),
    };
    stage.narrator.print(format_args!("{report}\n{verdict}"));
    Ok(broken.is_empty())
}

async fn run(args: &Args) -> Result<ExitCode> {
    // Ctrl-C is noticed from here on, and obeyed once there is something to clean up.
    let interrupted = tokio::spawn(tokio::signal::ctrl_c());
    let run = args::run_name();
    let broker = broker::open(args.amqp_url.as_deref(), &run).await?;
    let Database { shop, location, clean_up } = database::open(args.database_url.as_deref(), &run).await?;

    let narrator = Narrator::new();
    narrator.print(format_args!("Database: {location}\nBroker: {}", broker.name()));
    let mut stage = Stage::new(shop, broker, narrator);
    let ended = tokio::select! {
        kept = perform(&mut stage, args.orders as usize) => kept.map(|kept| ExitCode::from(u8::from(!kept))),
        _ = interrupted => {
            stage.narrator.say("interrupted");
            Ok(ExitCode::from(130))
        }
    };
    if args.keep {
        stage.narrator.print(format_args!("Kept: {location}, tables orders and biz_outbox"));
        return ended;
    }
    let cleaned_up = clean_up.await;
    ended.and_then(|code| cleaned_up.map(|()| code))
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    if args.verbose {
        args::log();
    }
    run(&args).await.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::from(2)
    })
}
