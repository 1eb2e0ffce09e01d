use anyhow::{Context, Result, bail};
use tokio::process::Command;

/// The value of a variable that the tests cannot do without.
pub fn required(variable: &str) -> Result<String> {
    std::env::var(variable).with_context(|| {
        format!("{variable} is not set: run scripts/test.sh, or scripts/services.sh up and what it prints")
    })
}

/// Where PostgreSQL is.
pub fn pg_url() -> Result<String> {
    required("OUTBOX_PG_URL")
}

/// Where RabbitMQ is.
pub fn amqp_url() -> Result<String> {
    required("OUTBOX_AMQP_URL")
}

/// Where Redis is.
pub fn redis_url() -> Result<String> {
    required("OUTBOX_REDIS_URL")
}

/// Stops, starts or kills a service with the command that `OUTBOX_SERVICES_CTL` names.
pub async fn services_ctl(verb: &str, service: &str) -> Result<()> {
    let command = required("OUTBOX_SERVICES_CTL")?;
    let output = Command::new(&command).args([verb, service]).kill_on_drop(true).output().await;
    let output = output.with_context(|| format!("cannot run {command}"))?;
    if !output.status.success() {
        bail!("{command} {verb} {service}: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(())
}
