//! The schema's versions. `PRAGMA user_version` counts the steps that a file has been through.

use rusqlite::{Connection, TransactionBehavior};

/// What turns version *n* into version *n + 1*. A step that was released is never edited: add one.
const STEPS: &[&str] = &[include_str!("schema.sql")];

/// Says in the file's header whose it is (`Fuse` in ASCII), so that another program's database is not written into.
const APPLICATION_ID: i64 = 0x4675_7365;

/// The version that this program writes.
pub(super) const CURRENT: i64 = STEPS.len() as i64;

/// What a file is to this program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Empty, or a version of ours that [`migrate`] can bring up to date.
    Ours,
    /// Written by a later version of this program.
    Newer(i64),
    /// Another program's database.
    Foreign,
}

/// Looks at the file without changing it, and at one moment of it: another process may be making it ours.
pub(super) fn kind(disk: &Connection) -> rusqlite::Result<Kind> {
    let disk = disk.unchecked_transaction()?;
    let application: i64 = disk.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let tables: i64 = disk.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if application != APPLICATION_ID && (application != 0 || tables > 0) {
        return Ok(Kind::Foreign);
    }
    let version = version(&disk)?;
    Ok(if version > CURRENT { Kind::Newer(version) } else { Kind::Ours })
}

/// Applies the steps that are missing, all or none.
///
/// The version is read again under the write lock: two processes may start on one new file.
pub(super) fn migrate(disk: &mut Connection) -> rusqlite::Result<()> {
    if version(disk)? >= CURRENT {
        return Ok(());
    }
    let tx = disk.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let done = usize::try_from(version(&tx)?).unwrap_or(0);
    for step in STEPS.iter().skip(done) {
        tx.execute_batch(step)?;
    }
    if done < STEPS.len() {
        tx.pragma_update(None, "application_id", APPLICATION_ID)?;
        tx.pragma_update(None, "user_version", CURRENT)?;
    }
    tx.commit()
}

fn version(disk: &Connection) -> rusqlite::Result<i64> {
    disk.pragma_query_value(None, "user_version", |row| row.get(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_becomes_ours_and_migrating_twice_changes_nothing() {
        let mut disk = Connection::open_in_memory().expect("memory");
        assert_eq!(kind(&disk), Ok(Kind::Ours));
        for _ in 0..2 {
            migrate(&mut disk).expect("migrated");
            assert_eq!((version(&disk), kind(&disk)), (Ok(CURRENT), Ok(Kind::Ours)));
        }
        disk.pragma_update(None, "user_version", CURRENT + 1).expect("a later version");
        assert_eq!(kind(&disk), Ok(Kind::Newer(CURRENT + 1)));
    }

    #[test]
    fn another_programs_database_is_told_apart() {
        let disk = Connection::open_in_memory().expect("memory");
        disk.execute_batch("CREATE TABLE theirs (x)").expect("a table");
        assert_eq!(kind(&disk), Ok(Kind::Foreign));
    }
}
