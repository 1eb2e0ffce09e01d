use std::time::{Duration, Instant};

/// Measures time, and the processor time of this process where the system tells it.
pub(crate) struct Stopwatch {
    started: Instant,
    cpu: Option<Duration>,
}

/// One measurement.
#[derive(Debug, Clone)]
pub(crate) struct Sample {
    pub(crate) messages: usize,
    pub(crate) elapsed: Duration,
    /// Processor time that this process spent.
    pub(crate) cpu: Option<Duration>,
    /// What else was measured.
    pub(crate) figures: Vec<Figure>,
}

/// A number with a name.
#[derive(Debug, Clone)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
}

impl Figure {
    pub(crate) fn new(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), value }
    }
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { started: Instant::now(), cpu: cpu() }
    }

    pub(crate) fn stop(&self, messages: usize) -> Sample {
        let elapsed = self.started.elapsed();
        let cpu = cpu().zip(self.cpu).map(|(now, then)| now.saturating_sub(then));
        Sample { messages, elapsed, cpu, figures: Vec::new() }
    }
}

impl Sample {
    /// Messages per second.
    pub(crate) fn rate(&self) -> f64 {
        self.messages as f64 / self.elapsed.as_secs_f64()
    }

    /// Microseconds of processor time per message.
    pub(crate) fn cpu_micros(&self) -> Option<f64> {
        self.cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / self.messages as f64)
    }
}

/// Linux counts in hundredths of a second, whatever the kernel's own tick.
const TICK: Duration = Duration::from_millis(10);

fn cpu() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let mut after_name = stat.rsplit(')').next()?.split_whitespace().skip(11);
    let user: u32 = after_name.next()?.parse().ok()?;
    let system: u32 = after_name.next()?.parse().ok()?;
    Some(TICK * (user + system))
}
