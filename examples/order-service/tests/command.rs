//! The example as a user runs it.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::process::{Command, Output};

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_order-service")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The number behind a line's name.
fn count(table: &str, name: &str, column: usize) -> u64 {
    let line = table.lines().find_map(|line| line.trim().strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("no {name}:\n{table}"));
    line.split_whitespace().nth(column).unwrap().parse().unwrap()
}

#[test]
#[ignore = "needs PostgreSQL, RabbitMQ and Redis: run scripts/test.sh"]
fn every_order_has_its_effects_though_both_services_are_killed() {
    let output = run(&["--orders", "100"]);
    let (said, complained) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{said}\n{complained}");
    let orders = said.lines().filter(|line| line.trim().starts_with("orders")).nth(1).unwrap();
    let orders: u64 = orders.split_whitespace().last().unwrap().parse().unwrap();
    assert!(
        (48..=80).contains(&orders),
        "of 100, every fifth is rolled back, and one service was killed:\n{said}"
    );
    assert_eq!(count(&said, "inventory: deducted (inbox)", 1), orders, "{said}");
    assert_eq!(count(&said, "messages completed", 0), 2 * orders, "{said}");
}

#[test]
fn services_that_are_not_there_are_named() {
    let nowhere = ["--pg-url", "postgres://someone:secret@127.0.0.1:1/x"];
    let output = run(&nowhere);
    let complained = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{complained}");
    assert!(
        complained.contains("cannot connect to PostgreSQL") && !complained.contains("secret"),
        "{complained}"
    );
}
