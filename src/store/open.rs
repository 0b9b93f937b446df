//! Opening the file: looked at first, written to only when it is known to be ours and whole.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, MAIN_DB, OpenFlags};

use super::{Loaded, StoreError, migrate, table};

/// How long one statement waits for another process's lock. The writer tries again by itself, so this only
/// has to bridge an ordinary transaction.
const BUSY: Duration = Duration::from_millis(250);

/// With [`BUSY`] and [`PAUSE`], so many attempts take about two seconds.
const ATTEMPTS: u32 = 7;
const PAUSE: Duration = Duration::from_millis(40);

/// Keeps what a crash or a big batch made of the write-ahead log from staying on disk for ever.
const MOST_WAL_BYTES: i64 = 4 << 20;

/// Makes the data directory, for this user alone, and checks that a file can be written in it.
///
/// A directory that is there keeps its mode.
///
/// # Errors
/// When it can't be made, is no directory, or no file can be written in it.
pub fn prepare_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let trial = path.join(format!(".write-check-{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&trial)?;
    let written = file.write_all(b"fusebox");
    std::fs::remove_file(&trial)?;
    written
}

/// A store without a file: the same tables, gone with the process.
pub(super) fn open_memory() -> Result<(Connection, Loaded), StoreError> {
    let failed = |source| StoreError::Sqlite { path: ":memory:".into(), source };
    let mut disk = Connection::open_in_memory().map_err(failed)?;
    migrate::migrate(&mut disk).map_err(failed)?;
    Ok((disk, Loaded::default()))
}

/// Opens or creates the file and reads it. Waits at most about two seconds for another process's lock.
///
/// The whole opening is tried again and not one statement, because SQLite reports some conflicts (the
/// switch to WAL among them) at once, whatever the timeout.
pub(super) fn open_file(path: &Path) -> Result<(Connection, Loaded), StoreError> {
    create(path).map_err(|source| StoreError::Create { path: path.into(), source })?;
    let mut attempt = 1;
    loop {
        match open_existing(path) {
            Err(StoreError::Locked { .. }) if attempt < ATTEMPTS => {
                attempt += 1;
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

/// Creates an empty file that only this user may read: it tells which sites were fetched. SQLite gives the
/// same mode to the files that it puts beside it.
///
/// A file that is there is not even opened: closing it again would drop the locks that SQLite holds on it
/// in this process.
fn create(path: &Path) -> io::Result<()> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        result => result.map(drop),
    }
}

fn open_existing(path: &Path) -> Result<(Connection, Loaded), StoreError> {
    let failed = |error| explain(path, error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut disk = Connection::open_with_flags(path, flags).map_err(failed)?;
    disk.busy_timeout(BUSY).map_err(failed)?;
    // Until the file is known to be good, closing it must not fold its log into it.
    disk.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(failed)?;
    inspect(&disk, path)?;
    disk.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).map_err(failed)?;
    disk.pragma_update(None, "synchronous", "FULL").map_err(failed)?;
    disk.pragma_update_and_check(None, "journal_size_limit", MOST_WAL_BYTES, |_| Ok(())).map_err(failed)?;
    migrate::migrate(&mut disk).map_err(failed)?;
    let rows = table::rows(&disk).map_err(failed)?;
    let last_event_id = table::last_event_id(&disk).map_err(failed)?;
    disk.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false).map_err(failed)?;
    Ok((disk, Loaded { rows, last_event_id }))
}

/// Refuses what we could not write into or must not write into.
fn inspect(disk: &Connection, path: &Path) -> Result<(), StoreError> {
    let failed = |error| explain(path, error);
    let path = path.to_path_buf();
    let verdict: String = disk.pragma_query_value(None, "quick_check", |row| row.get(0)).map_err(failed)?;
    if verdict != "ok" {
        return Err(StoreError::Damaged { path, detail: verdict.replace('\n', " ") });
    }
    match migrate::kind(disk).map_err(failed)? {
        migrate::Kind::Ours => {}
        migrate::Kind::Newer(found) => return Err(StoreError::Newer { path, found, known: migrate::CURRENT }),
        migrate::Kind::Foreign => return Err(StoreError::Foreign { path }),
    }
    // SQLite opens a file for reading alone, without a word, where it may not write.
    if disk.is_readonly(MAIN_DB).map_err(failed)? {
        return Err(StoreError::ReadOnly { path });
    }
    Ok(())
}

fn explain(path: &Path, source: rusqlite::Error) -> StoreError {
    let path = path.to_path_buf();
    match source.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => StoreError::Locked { path },
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            StoreError::Damaged { path, detail: source.to_string() }
        }
        Some(ErrorCode::ReadOnly) => StoreError::ReadOnly { path },
        _ => StoreError::Sqlite { path, source },
    }
}
