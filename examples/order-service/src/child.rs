//! The services as processes of their own, which the demo can kill.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, stdin};
use tokio::process::{Child, ChildStdout, Command};

use crate::place::Place;

/// Says to the parent that the service is at work.
pub const READY: &str = "ready";

/// Ends when the parent has closed the other side, or a person has pressed Ctrl-C.
pub async fn told_to_stop() {
    let mut lines = BufReader::new(stdin()).lines();
    let closed = async { while let Ok(Some(_)) = lines.next_line().await {} };
    tokio::select! {
        () = closed => {}
        _ = tokio::signal::ctrl_c() => {}
    }
}

/// A running service. It is killed when this is dropped.
pub struct Service {
    name: &'static str,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Service {
    /// Starts this program again, as one of the services, and waits until it is at work.
    pub async fn start(name: &'static str, orders: Option<u32>, place: &Place) -> Result<Self> {
        let program = std::env::current_exe().context("where is this program?")?;
        let mut child = Command::new(program)
            .arg(name)
            .args(orders.map(|orders| format!("--orders={orders}")))
            .env("OUTBOX_PG_URL", &place.pg_url)
            .env("OUTBOX_AMQP_URL", &place.amqp_url)
            .env("OUTBOX_REDIS_URL", &place.redis_url)
            .env("ORDER_SERVICE_RUN", &place.run)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start the process `{name}`"))?;
        let stdout = child.stdout.take().context("no output to read")?;
        let mut service = Self { name, child, lines: BufReader::new(stdout).lines() };
        service.says(READY).await?;
        Ok(service)
    }

    /// Waits for a line.
    async fn says(&mut self, line: &str) -> Result<()> {
        while let Some(said) = self.lines.next_line().await? {
            if said == line {
                return Ok(());
            }
        }
        anyhow::bail!("the process `{}` ended before it said {line:?}", self.name)
    }

    /// As `kill -9`: it gets no chance to do anything.
    pub async fn kill(mut self) -> Result<()> {
        Ok(self.child.kill().await?)
    }

    /// Lets it finish what it has begun.
    pub async fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let status = self.child.wait().await?;
        ensure!(status.success(), "the process `{}` ended with {status}", self.name);
        Ok(())
    }
}
