//! What the store does when the disk, another program or a crash is against it.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fusebox::core::key::DomainKey;
use fusebox::core::row::{Event, EventKind, Row};
use fusebox::store::{EventQuery, Location, Store, StoreError, StoreState};
use rusqlite::Connection;
use tokio::time::{Instant, sleep, timeout};

const LONG: Duration = Duration::from_secs(20);
const SOON: Duration = Duration::from_millis(5);

fn key(text: &str) -> DomainKey {
    DomainKey::from_stored(text)
}

fn row(domain: &str, version: u64) -> Row {
    Row { version, opened_at: 1, opened_until: version, ..Row::new(key(domain)) }
}

fn event(id: u64) -> Event {
    let (by, detail) = ("auto".to_owned(), String::new());
    Event { id, at: id, kind: EventKind::Trip, domain: None, by, detail }
}

fn all() -> EventQuery {
    EventQuery { domain: None, before: None, limit: usize::MAX }
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("fusebox.db");
    (dir, path)
}

fn open(path: &Path) -> (Store, Vec<Row>) {
    let (store, loaded) = Store::open(Location::File(path)).expect("a store");
    (store, loaded.rows)
}

fn refused(path: &Path) -> StoreError {
    let error = Store::open(Location::File(path)).expect_err("an error");
    assert!(error.to_string().contains(&path.display().to_string()), "names the file: {error}");
    error
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let polled = async {
        while !holds() {
            sleep(SOON).await;
        }
    };
    timeout(LONG, polled).await.unwrap_or_else(|_| panic!("in vain: {what}"));
}

#[tokio::test]
async fn a_lock_held_by_another_costs_requests_nothing_and_loses_nothing() {
    let (_dir, path) = file();
    let (store, _) = open(&path);
    store.append(event(1));
    assert!(store.flush(LONG).await);
    let other = Connection::open(&path).expect("a connection");
    other.execute_batch("BEGIN EXCLUSIVE").expect("the lock");

    let start = Instant::now();
    let mut slowest = Duration::ZERO;
    let mut n = 0;
    while n < 1_000 || start.elapsed() < Duration::from_secs(3) {
        let before = Instant::now();
        store.save(row(&format!("{}.test", n % 250), n));
        store.append(event(2 + n));
        slowest = slowest.max(before.elapsed());
        n += 1;
        sleep(Duration::from_millis(1)).await;
    }
    // Generous, for a busy machine; a wait for the lock would be 250 ms at the least.
    assert!(slowest < Duration::from_millis(100), "{slowest:?}");
    assert!(matches!(store.state(), StoreState::Degraded(reason) if reason.contains("locked")));
    assert!(store.writes_failed() > 0);
    let seen = timeout(LONG, store.events(all())).await.expect("in time").expect("events");
    assert_eq!(seen.len() as u64, n + 1, "those on disk and those that wait");
    assert!(!store.flush(Duration::from_millis(50)).await);

    other.execute_batch("ROLLBACK").expect("released");
    assert!(store.flush(Duration::from_secs(2)).await, "on disk within two seconds");
    assert_eq!((store.state(), store.events_dropped()), (StoreState::Ok, 0));
    let (_, rows) = open(&path);
    assert_eq!(rows.len(), 250);
    assert!(rows.iter().all(|row| row.version >= n - 250), "the newest of each");
    assert_eq!(store.events(all()).await.expect("events"), seen);
}

#[tokio::test]
async fn where_even_reading_fails_the_events_that_wait_are_shown() {
    let (_dir, path) = file();
    let (store, _) = open(&path);
    store.append(event(1));
    assert!(store.flush(LONG).await);
    let other = Connection::open(&path).expect("a connection");
    other.execute_batch("ALTER TABLE event RENAME TO hidden").expect("renamed");
    store.append(event(2));
    assert_eq!(store.events(all()).await.expect("events"), [event(2)]);
    assert!(matches!(store.state(), StoreState::Degraded(_)));
    other.execute_batch("ALTER TABLE hidden RENAME TO event").expect("renamed back");
    assert!(store.flush(LONG).await);
    assert_eq!(store.state(), StoreState::Ok);
    assert_eq!(store.events(all()).await.expect("events"), [event(2), event(1)]);
}

#[tokio::test]
async fn too_many_events_during_an_outage_are_counted() {
    let (_dir, path) = file();
    let (store, _) = open(&path);
    let other = Connection::open(&path).expect("a connection");
    other.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
    (1..=25_000).for_each(|id| store.append(event(id)));
    until("the surplus is dropped", || store.events_dropped() == 15_000).await;
    other.execute_batch("COMMIT").expect("released");
    assert!(store.flush(LONG).await);
    let found = store.events(all()).await.expect("events");
    assert_eq!((found.len(), found[0].id), (10_000, 25_000));
}

#[tokio::test]
async fn dropped_while_the_file_is_locked_the_thread_still_ends() {
    let (_dir, path) = file();
    let (store, _) = open(&path);
    let other = Connection::open(&path).expect("a connection");
    other.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
    store.save(row("a.test", 1));
    until("degraded", || store.state() != StoreState::Ok).await;
    drop(store);
    other.execute_batch("COMMIT").expect("released");
    drop(other);
    // The last connection to close takes the log away.
    let log = path.with_extension("db-wal");
    until("the log is gone", || !log.exists()).await;
}

#[test]
fn a_file_that_is_locked_at_the_start_is_an_error_after_about_two_seconds() {
    let (_dir, path) = file();
    let other = Connection::open(&path).expect("a connection");
    other.execute_batch("BEGIN EXCLUSIVE; CREATE TABLE t (x)").expect("the lock");
    let start = Instant::now();
    assert!(matches!(refused(&path), StoreError::Locked { .. }));
    let waited = start.elapsed();
    assert!(waited > Duration::from_secs(1) && waited < Duration::from_secs(8), "{waited:?}");
}

#[tokio::test]
async fn a_write_lock_at_the_start_does_not_keep_the_rows_from_being_read() {
    let (_dir, path) = file();
    let (store, _) = open(&path);
    store.save(row("a.test", 1));
    assert!(store.flush(LONG).await);
    let other = Connection::open(&path).expect("a connection");
    other.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
    assert_eq!(open(&path).1, [row("a.test", 1)]);
}

#[test]
fn stores_that_start_together_on_a_new_file_all_get_it() {
    // Often, because what can go wrong takes microseconds.
    for _ in 0..20 {
        let (_dir, path) = file();
        let starts: Vec<_> = (0..4)
            .map(|_| {
                let path = path.clone();
                std::thread::spawn(move || Store::open(Location::File(&path)).map(|_| ()))
            })
            .collect();
        for start in starts {
            start.join().expect("no panic").expect("a store");
        }
    }
}

#[tokio::test]
async fn backups_work_under_load() {
    let (dir, path) = file();
    let (store, _) = open(&path);
    let writing = store.clone();
    let load = tokio::spawn(async move {
        for n in 0.. {
            writing.save(row(&format!("{}.test", n % 500), n));
            writing.append(event(1 + n));
            sleep(Duration::from_micros(200)).await;
        }
    });
    until("some transactions", || store.writes_ok() > 5).await;
    let (vacuumed, copied) = (dir.path().join("vacuumed.db"), dir.path().join("copied.db"));
    let (source, targets) = (path.clone(), [vacuumed.clone(), copied.clone()]);
    let backups = tokio::task::spawn_blocking(move || {
        let other = Connection::open(&source).expect("a connection");
        other.busy_timeout(LONG).expect("a timeout");
        other.execute("VACUUM INTO ?1", [targets[0].to_str()]).expect("a vacuum");
        back_up(&other, &targets[1]);
    });
    backups.await.expect("backups");
    let written = store.writes_ok();
    until("it writes on", || store.writes_ok() > written).await;
    assert_eq!((store.state(), store.writes_failed()), (StoreState::Ok, 0));
    load.abort();
    for backup in [vacuumed, copied] {
        let (store, rows) = open(&backup);
        assert!(!rows.is_empty() && !store.events(all()).await.expect("events").is_empty());
    }
}

/// The online backup API, as `.backup` uses it: a few pages at a time, with the source free in between.
fn back_up(source: &Connection, target: &Path) {
    use rusqlite::ffi;
    let target = Connection::open(target).expect("a target");
    // SAFETY: both handles are open, and stay so until the backup is finished below.
    let result = unsafe {
        let backup = ffi::sqlite3_backup_init(target.handle(), c"main".as_ptr(), source.handle(), c"main".as_ptr());
        assert!(!backup.is_null());
        while matches!(ffi::sqlite3_backup_step(backup, 64), ffi::SQLITE_OK | ffi::SQLITE_BUSY | ffi::SQLITE_LOCKED) {
            std::thread::yield_now();
        }
        ffi::sqlite3_backup_finish(backup)
    };
    assert_eq!(result, ffi::SQLITE_OK);
}

#[tokio::test]
async fn a_damaged_file_is_an_error_and_stays_as_it_is() {
    let (dir, path) = file();
    let (store, _) = open(&path);
    (0..500).for_each(|n| store.save(row(&format!("{n}.test"), n)));
    assert!(store.flush(LONG).await);
    let whole = dir.path().join("whole.db");
    let other = Connection::open(&path).expect("a connection");
    other.execute("VACUUM INTO ?1", [whole.to_str()]).expect("a copy");
    let whole = std::fs::read(whole).expect("bytes");
    assert!(whole.len() > 5 * 4_096);
    let mut scribbled = whole.clone();
    scribbled[4_096 * 2..4_096 * 4].fill(0xa5);
    let cases = [b"no database at all, but some text".repeat(200), whole[..4_096 * 2 + 100].to_vec(), scribbled];
    for (n, bytes) in cases.into_iter().enumerate() {
        let damaged = dir.path().join(format!("damaged{n}.db"));
        std::fs::write(&damaged, &bytes).expect("a file");
        let error = refused(&damaged);
        assert!(matches!(error, StoreError::Damaged { .. }), "{n}: {error}");
        assert!(error.to_string().contains("move it away"), "says what to do: {error}");
        assert!(std::fs::read(&damaged).expect("bytes") == bytes, "{n}: untouched");
    }
}

#[test]
fn a_later_schema_and_another_programs_database_are_left_alone() {
    let (dir, path) = file();
    drop(open(&path));
    let later = Connection::open(&path).expect("a connection");
    later.pragma_update(None, "user_version", 99).expect("a version");
    let error = refused(&path);
    assert!(matches!(error, StoreError::Newer { found: 99, .. }) && error.to_string().contains("later version"));

    let theirs = dir.path().join("theirs.db");
    Connection::open(&theirs).and_then(|db| db.execute_batch("CREATE TABLE t (x)")).expect("a database");
    let bytes = std::fs::read(&theirs).expect("bytes");
    assert!(matches!(refused(&theirs), StoreError::Foreign { .. }));
    assert!(std::fs::read(&theirs).expect("bytes") == bytes);
}

/// Runs [`child`] in a process of its own.
fn spawn_child(path: &Path, mode: &str) -> (Child, impl Iterator<Item = String>) {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "child", "--ignored", "--nocapture"])
        .envs([("STORE_CHILD_FILE", path.as_os_str()), ("STORE_CHILD_MODE", mode.as_ref())])
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let lines = BufReader::new(child.stdout.take().expect("its output")).lines().map_while(Result::ok);
    (child, lines)
}

/// Saves rows and says so, until it is killed.
#[tokio::test]
#[ignore = "the child of the tests below"]
async fn child() {
    let Some(path) = std::env::var_os("STORE_CHILD_FILE") else { return };
    let flushes = std::env::var("STORE_CHILD_MODE").is_ok_and(|mode| mode == "flush");
    let (store, _) = open(Path::new(&path));
    for n in 0.. {
        store.save(row(&format!("{n}.test"), n));
        if !flushes {
            println!("\nsaved {n}");
            return std::future::pending().await;
        }
        assert!(store.flush(LONG).await);
        println!("\nsaved {n}");
    }
}

#[test]
fn what_was_flushed_outlives_kill_9() {
    let (_dir, path) = file();
    let (mut child, lines) = spawn_child(&path, "flush");
    let last = lines.filter(|line| line.starts_with("saved ")).nth(20);
    child.kill().expect("killed");
    child.wait().expect("dead");
    assert_eq!(last.as_deref(), Some("saved 20"));
    let (_store, rows) = open(&path);
    for n in 0..=20 {
        assert!(rows.contains(&row(&format!("{n}.test"), n)), "{n}");
    }
}

#[tokio::test]
async fn what_was_saved_reaches_the_disk_without_being_asked_for() {
    let (_dir, path) = file();
    let (mut child, mut lines) = spawn_child(&path, "save");
    assert!(lines.any(|line| line == "saved 0"));
    let other = Connection::open(&path).expect("a connection");
    let rows = || other.query_row("SELECT count(*) FROM breaker", [], |line| line.get::<_, i64>(0));
    let said = Instant::now();
    until("the row is there", || rows() == Ok(1)).await;
    // One transaction on a busy machine; five milliseconds are the rule on an idle one.
    assert!(said.elapsed() < Duration::from_secs(2), "{:?}", said.elapsed());
    child.kill().expect("killed");
    child.wait().expect("dead");
    assert_eq!(open(&path).1, [row("0.test", 0)]);
}
