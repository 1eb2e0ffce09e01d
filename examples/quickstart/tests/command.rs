//! The command as a stranger runs it.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder of the test's own to run in.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("quickstart-{test}-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quickstart"));
        command.args(args).current_dir(&self.0).output().unwrap()
    }

    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

/// The number at the end of the line that starts with `what`.
fn count(stdout: &str, what: &str) -> u64 {
    let rest = stdout.lines().find_map(|line| line.trim().strip_prefix(what));
    rest.unwrap_or_else(|| panic!("no {what} in\n{stdout}")).trim().parse().unwrap()
}

fn assert_every_promise_kept(output: &Output) {
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{stdout}\n{}", String::from_utf8_lossy(&output.stderr));
    for (what, expected) in [
        ("orders committed", 32),
        ("orders rolled back", 8),
        ("messages completed", 32),
        ("delivered", 32),
        ("lost", 0),
        ("rolled-back messages delivered", 0),
    ] {
        assert_eq!(count(&stdout, what), expected, "{what}\n{stdout}");
    }
    assert!(count(&stdout, "duplicates seen by the consumer") > 0, "{stdout}");
}

fn assert_refused(output: &Output, part: &str) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains(part) && stderr.trim_end().lines().count() == 1, "{stderr}");
}

#[test]
fn sqlite_and_memory_keep_every_promise_and_leave_nothing_behind() {
    let folder = Folder::new("story");
    assert_every_promise_kept(&folder.run(&["--orders", "40", "--database-url", "sqlite:shop.db"]));
    assert_eq!(folder.files(), Vec::<String>::new());
}

#[test]
fn sqlite_file_that_is_there_already_is_refused_and_left_as_it_was() {
    let folder = Folder::new("existing");
    fs::write(folder.0.join("mine.db"), "mine").unwrap();
    assert_refused(&folder.run(&["--database-url", "sqlite:mine.db"]), "a new file");
    assert_eq!(fs::read(folder.0.join("mine.db")).unwrap(), b"mine");
}

#[test]
fn urls_that_cannot_work_are_refused_in_one_line() {
    let folder = Folder::new("urls");
    for (url, part) in [
        ("mysql://app:secret@host/shop", "sqlite: or postgres://"),
        ("sqlite::memory:", "name a file"),
        ("sqlite:missing/shop.db", "a new file"),
    ] {
        let output = folder.run(&["--database-url", url]);
        assert_refused(&output, part);
        assert!(!String::from_utf8_lossy(&output.stderr).contains("secret"));
    }
}

#[cfg(not(feature = "services"))]
#[test]
fn services_without_their_feature_say_how_to_run() {
    let folder = Folder::new("feature");
    let how = "cargo run -p quickstart --features services -- ";
    assert_refused(&folder.run(&["--database-url", "postgres://localhost/shop"]), how);
    assert_refused(&folder.run(&["--amqp-url", "amqp://localhost"]), how);
}

#[cfg(feature = "services")]
#[test]
#[ignore = "needs PostgreSQL and RabbitMQ: run scripts/test.sh"]
fn postgres_and_rabbitmq_keep_every_promise() {
    let (database, broker) = (env("OUTBOX_PG_URL"), env("OUTBOX_AMQP_URL"));
    let folder = Folder::new("services");
    let output = folder.run(&["--orders", "40", "--database-url", &database, "--amqp-url", &broker]);
    assert_every_promise_kept(&output);
}

#[cfg(feature = "services")]
fn env(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("set {name}, or run scripts/test.sh"))
}
