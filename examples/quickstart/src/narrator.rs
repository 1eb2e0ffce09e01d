use std::cell::Cell;
use std::fmt::Display;
use std::io::{Write, stdout};
use std::time::{Duration, Instant};

/// Tells what happens, with the time since the start.
pub struct Narrator {
    started: Instant,
    spoke: Cell<Instant>,
}

impl Narrator {
    pub fn new() -> Self {
        Self { started: Instant::now(), spoke: Cell::new(Instant::now()) }
    }

    /// A new chapter.
    pub fn act(&self, title: &str) {
        self.print(format_args!("\n{title}"));
    }

    /// A line with its time.
    pub fn say(&self, line: impl Display) {
        self.spoke.set(Instant::now());
        self.print(format_args!("{:6.2} s  {line}", self.started.elapsed().as_secs_f64()));
    }

    /// A line that is only said when it has been quiet for a second.
    pub fn mention(&self, line: impl FnOnce() -> String) {
        if self.spoke.get().elapsed() > Duration::from_secs(1) {
            self.say(line());
        }
    }

    /// A line as it is. Unlike `println!` it takes no harm from a reader that has gone, as in `| head`.
    pub fn print(&self, line: impl Display) {
        _ = writeln!(stdout(), "{line}");
    }
}
