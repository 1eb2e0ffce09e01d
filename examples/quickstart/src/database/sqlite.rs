use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use outbox::sqlx::SqliteStore;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool};

use super::Database;
use crate::shop::SqlShop;

/// The path in `sqlite:PATH` or `sqlite://PATH`.
pub fn path(url: &str) -> Result<PathBuf> {
    let path = url.trim_start_matches("sqlite:").trim_start_matches("//");
    if path.is_empty() || path.starts_with(':') || path.contains('?') {
        bail!("--database-url must name a file, as in sqlite:quickstart.db, without options");
    }
    Ok(PathBuf::from(path))
}

/// A shop in a new file.
pub async fn open(path: PathBuf) -> Result<Database> {
    create(&path)?;
    let shop = set_up(&path).await.inspect_err(|_| drop(remove(&path)))?;
    let pool = shop.pool.clone();
    Ok(Database {
        shop: Box::new(shop),
        place: format!("SQLite file {}", path.display()),
        clean_up: Box::pin(async move {
            pool.close().await;
            remove(&path)
        }),
    })
}

/// Only a new file: nobody's tables are in it.
fn create(path: &Path) -> Result<()> {
    File::create_new(path).map(drop).with_context(|| {
        format!(
            "cannot create {}; name a new file in a folder that you may write to: --database-url sqlite:PATH",
            path.display()
        )
    })
}

async fn set_up(path: &Path) -> Result<SqlShop<sqlx::Sqlite, SqliteStore>> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(5));
    let pool = SqlitePool::connect_with(options).await?;
    let outbox = SqliteStore::new(pool.clone());
    outbox.migrate().await?;
    sqlx::query("CREATE TABLE orders (id TEXT PRIMARY KEY, cents INTEGER NOT NULL)").execute(&pool).await?;
    Ok(SqlShop { pool, outbox: Arc::new(outbox) })
}

fn remove(path: &Path) -> Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(error)
                    .with_context(|| format!("could not remove {}", Path::new(&file).display()));
            }
            _ => {}
        }
    }
    Ok(())
}
