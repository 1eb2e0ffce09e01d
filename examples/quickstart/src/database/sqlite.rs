use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
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
    let options = SqliteConnectOptions::new().filename(&path).journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePool::connect_lazy_with(options);
    let place = format!("SQLite file {}", path.display());
    let clean_up = {
        let pool = pool.clone();
        async move {
            pool.close().await;
            remove(&path)
        }
    };
    Database::open(SqlShop::open(pool), place, clean_up).await
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
