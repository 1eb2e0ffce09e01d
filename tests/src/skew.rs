use anyhow::{Context, Result, ensure};
use tokio::process::Command;

/// A command that runs `program` with its clock off by `offset`, such as `+1h`. Its monotonic clock goes right.
pub async fn with_clock_off(program: &str, offset: &str) -> Result<Command> {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library().await?).env("FAKETIME", offset);
    command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Ok(command)
}

/// A process that is killed cannot take back what libfaketime shares with its children.
pub(crate) fn clean_up_after(pid: u32) {
    for shared in [format!("/dev/shm/faketime_shm_{pid}"), format!("/dev/shm/sem.faketime_sem_{pid}")] {
        let _ = std::fs::remove_file(shared);
    }
}

/// The `faketime` command knows where its library is. It is not used itself, because it would be the one that
/// signals go to.
async fn library() -> Result<String> {
    let mut ask = Command::new("faketime");
    let output = ask.args(["-f", "+0", "sh", "-c", "echo $LD_PRELOAD"]).output().await;
    let output = output.context("faketime is not in PATH: install it (Debian: faketime)")?;
    ensure!(output.status.success(), "faketime: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
