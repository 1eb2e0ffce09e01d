use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// Runs SQL as any other program would: with the `psql` in PATH, in a session of its own.
pub async fn psql(url: &str, sql: &str) -> Result<String> {
    let output = Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align", "--set=ON_ERROR_STOP=1"])
        .args(["--dbname", url, "--command", sql])
        .kill_on_drop(true)
        .output()
        .await
        .context("psql is not in PATH: install the PostgreSQL client (Debian: postgresql-client)")?;
    if !output.status.success() {
        bail!("psql: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}
