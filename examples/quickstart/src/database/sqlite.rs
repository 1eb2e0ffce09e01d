use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool};

use super::Database;
use crate::shop::SqlShop;

/// The path of `sqlite:PATH` or `sqlite://PATH`, given what follows the colon.
pub fn path(text: &str) -> Result<PathBuf> {
    let path = text.strip_prefix("//").unwrap_or(text);
    if path.is_empty() || path.starts_with(':') || path.contains('?') {
        bail!("--database-url must name a file, as in sqlite:quickstart.db, without options");
    }
    Ok(PathBuf::from(path))
}

/// A shop in a new file.
pub async fn open(path: PathBuf) -> Result<Database> {
    create(&path)?;
    let options = SqliteConnectOptions::new().filename(&path).journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePool::connect_lazy_with(options);
    let location = format!("SQLite file {}", path.display());
    let clean_up = {
        let pool = pool.clone();
        async move {
            pool.close().await;
            remove(&path)
        }
    };
    Database::open(SqlShop::open(pool), location, clean_up).await
}

/// Only a new file: nobody's tables are in it.
fn create(path: &Path) -> Result<()> {
    File::create_new(path).map(drop).map_err(|error| {
        let path = path.display();
        anyhow!(
            "cannot create {path}: {error}; give --database-url sqlite:PATH a new file where you may write"
        )
    })
}

fn remove(path: &Path) -> Result<()> {
    for suffix in ["", "-wal", "-shm"] {
        let mut file = path.as_os_str().to_owned();
        file.push(suffix);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => bail!("cannot remove {file:?}: {error}"),
            _ => {}
        }
    }
    Ok(())
}
