use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::watch;

use crate::skew::clean_up_after;
use crate::wait::within;

const LIMIT: Duration = Duration::from_secs(30);

/// The variable in which a process finds its settings.
pub const SETUP: &str = "OUTBOX_TEST_SETUP";

/// A relay, a consumer or a listener in another process. It is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdin: ChildStdin,
    said: watch::Receiver<Vec<String>>,
}

impl Process {
    /// Starts `program`, which a test finds in `env!("CARGO_BIN_EXE_relay-process")` and the like, and waits until
    /// it runs.
    pub async fn start(program: &str, setup: &impl Serialize) -> Result<Self> {
        Self::spawn(Command::new(program), setup).await
    }

    /// As [`start`](Self::start), for a command that has been prepared.
    pub async fn spawn(mut command: Command, setup: &impl Serialize) -> Result<Self> {
        command.env(SETUP, serde_json::to_string(setup)?).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let stdin = child.stdin.take().context("stdin")?;
        let said = listen(child.stdout.take().context("stdout")?, None);
        listen(child.stderr.take().context("stderr")?, child.id());
        let process = Self { child, stdin, said };
        process.says("ready").await?;
        Ok(process)
    }

    /// Waits for a line that starts so, also one that it has said before.
    pub async fn says(&self, start: &str) -> Result<String> {
        self.says_after(0, start).await
    }

    async fn says_after(&self, skip: usize, start: &str) -> Result<String> {
        let mut said = self.said.clone();
        let find = |lines: &[String]| lines.iter().skip(skip).find(|line| line.starts_with(start)).cloned();
        let heard = said.wait_for(|lines| find(lines).is_some());
        let lines = within(&format!("the process says {start:?}"), LIMIT, heard).await?;
        let lines = lines.with_context(|| format!("the process ended before it said {start:?}"))?;
        Ok(find(&lines).unwrap_or_default())
    }

    /// Sends a command and waits for the answer to it.
    pub async fn ask(&mut self, command: &str) -> Result<String> {
        let said = self.said.borrow().len();
        self.tell(command).await?;
        self.says_after(said, command).await
    }

    /// Sends a command.
    pub async fn tell(&mut self, command: &str) -> Result<()> {
        self.stdin.write_all(format!("{command}\n").as_bytes()).await?;
        Ok(self.stdin.flush().await?)
    }

    /// Kills it as `kill -9` does: it gets no chance to do anything.
    pub async fn kill(mut self) -> Result<()> {
        let pid = self.child.id();
        self.child.start_kill()?;
        let status = self.child.wait().await?;
        pid.into_iter().for_each(clean_up_after);
        ensure!(status.code().is_none(), "the process had ended before it was killed: {status}");
        Ok(())
    }

    /// Stops it in the middle of whatever it does: it keeps all it knows, and no time passes for it.
    pub async fn freeze(&self) -> Result<()> {
        self.signal("STOP").await
    }

    /// Lets it run again.
    pub async fn thaw(&self) -> Result<()> {
        self.signal("CONT").await
    }

    async fn signal(&self, name: &str) -> Result<()> {
        let pid = self.child.id().context("the process has ended")?;
        let status = Command::new("sh").args(["-c", &format!("kill -{name} {pid}")]).status().await?;
        ensure!(status.success(), "kill -{name} {pid}: {status}");
        Ok(())
    }

    /// Shuts it down; fails when it leaves claims or deliveries behind.
    pub async fn stop(self) -> Result<()> {
        let left = self.stop_within(Duration::from_secs(20)).await?;
        ensure!(left == 0, "the process left {left} claims or deliveries behind");
        Ok(())
    }

    /// Shuts it down within a bound; answers how many claims or deliveries it left behind.
    pub async fn stop_within(mut self, bound: Duration) -> Result<usize> {
        self.tell(&format!("shutdown {}", bound.as_millis())).await?;
        let line = self.says("shutdown").await?;
        let status = within("the end of the process", LIMIT, self.child.wait()).await??;
        if !status.success() {
            bail!("the process ended with {status}");
        }
        Ok(line.trim_start_matches("shutdown ").parse()?)
    }
}

/// Collects lines until the other side ends; those of process `echo` also go to this test's output.
fn listen(from: impl AsyncRead + Unpin + Send + 'static, echo: Option<u32>) -> watch::Receiver<Vec<String>> {
    let (sender, receiver) = watch::channel(Vec::new());
    tokio::spawn(async move {
        let mut lines = BufReader::new(from).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            match echo {
                Some(pid) => eprintln!("[{pid}] {line}"),
                None => sender.send_modify(|said| said.push(line)),
            }
        }
    });
    receiver
}
