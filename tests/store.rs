//! What the store keeps: rows, overrides and events, over a restart.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fusebox::core::key::DomainKey;
use fusebox::core::outcome::{Cause, Failure};
use fusebox::core::row::{Event, EventKind, Opener, Row};
use fusebox::core::time::{Micros, SECOND};
use fusebox::store::{EventQuery, KEEP_ROWS, Location, Store, StoreError, StoreState, is_stale, prepare_dir};

const LONG: Duration = Duration::from_secs(20);
const NOW: Micros = 1_790_000_000 * SECOND;

fn key(text: &str) -> DomainKey {
    DomainKey::from_stored(text)
}

fn row(domain: &str, version: u64) -> Row {
    Row { version, opened_at: NOW, ..Row::new(key(domain)) }
}

fn event(id: u64, domain: Option<&str>) -> Event {
    let (by, detail) = ("auto".to_owned(), format!("event {id}"));
    Event { id, at: id, kind: EventKind::Trip, domain: domain.map(key), by, detail }
}

fn all(limit: usize) -> EventQuery {
    EventQuery { domain: None, before: None, limit }
}

fn ids(events: &[Event]) -> Vec<u64> {
    events.iter().map(|event| event.id).collect()
}

fn file() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("fusebox.db");
    (dir, path)
}

fn open(path: &Path) -> (Store, Vec<Row>, u64) {
    let (store, loaded) = Store::open(Location::File(path)).expect("a store");
    (store, loaded.rows, loaded.last_event_id)
}

#[tokio::test]
async fn rows_and_overrides_come_back_as_they_were() {
    let (_dir, path) = file();
    let (store, rows, last) = open(&path);
    assert_eq!((rows, last, store.state()), (vec![], 0, StoreState::Ok));
    let full = Row {
        domain: key("[2001:db8::1]:8080"),
        version: 7,
        opened_at: NOW,
        opened_until: u64::MAX >> 1,
        opened_for: 3_600 * SECOND,
        closed_at: NOW - 1,
        strikes: u32::MAX,
        opened_by: Some(Opener::RetryAfter),
        last_status: Some(Cause::Status(429)),
        last_host: Some("a.b".into()),
        trip_count: 3,
        overrides: serde_json::from_str(r#"{"max_errors":5,"errors":["5xx","tls"],"requests_per_10s":"none"}"#).ok(),
    };
    assert!(full.overrides.is_some());
    let failed = Row { last_status: Some(Cause::Failure(Failure::Timeout)), ..row("group:medium", 1) };
    for row in [&full, &failed] {
        store.save(row.clone());
    }
    store.save(row("gone.test", 1));
    store.remove(key("gone.test"), 2);
    assert!(store.flush(LONG).await);
    assert!(store.writes_ok() >= 1);
    drop(store);
    let (_store, rows, _) = open(&path);
    assert_eq!(rows, [full, failed]);
}

#[tokio::test]
async fn the_newest_version_wins_however_late_the_older_one_is() {
    let (_dir, path) = file();
    let (store, ..) = open(&path);
    for version in [2, 5, 3] {
        store.save(row("a.test", version));
    }
    store.remove(key("a.test"), 4);
    assert!(store.flush(LONG).await);
    store.save(row("a.test", 4));
    store.save(row("b.test", 6));
    store.remove(key("b.test"), 7);
    store.save(row("b.test", 6));
    assert!(store.flush(LONG).await);
    let (_store, rows, _) = open(&path);
    assert_eq!(rows, [row("a.test", 5)]);
}

#[tokio::test]
async fn versions_of_a_process_before_do_not_count() {
    let (_dir, path) = file();
    let (store, ..) = open(&path);
    store.save(row("a.test", 1_000));
    assert!(store.flush(LONG).await);
    drop(store);
    let (store, ..) = open(&path);
    store.save(row("a.test", 1));
    assert!(store.flush(LONG).await);
    assert_eq!(open(&path).1, [row("a.test", 1)]);
}

#[tokio::test]
async fn an_override_that_cannot_be_read_is_skipped_and_stays() {
    let (_dir, path) = file();
    let (store, ..) = open(&path);
    store.save(row("a.test", 1));
    assert!(store.flush(LONG).await);
    let other = rusqlite::Connection::open(&path).expect("a connection");
    other.execute("UPDATE breaker SET overrides = '{\"max_eror\":1}'", []).expect("an update");
    let (store, rows, _) = open(&path);
    assert_eq!(rows, [row("a.test", 1)]);
    store.prune(NOW + 10 * KEEP_ROWS.micros());
    assert!(store.flush(LONG).await);
    assert_eq!(open(&path).1.len(), 1);
}

#[tokio::test]
async fn events_are_paged_newest_first_and_by_domain() {
    let (_dir, path) = file();
    let (store, ..) = open(&path);
    for id in 1..=10 {
        store.append(event(id, Some(if id % 2 == 0 { "even.test" } else { "odd.test" })));
    }
    store.append(event(11, None));
    assert!(store.flush(LONG).await);
    drop(store);
    let (store, _, last) = open(&path);
    assert_eq!(last, 11);
    let found = store.events(all(3)).await.expect("events");
    assert_eq!(found, [event(11, None), event(10, Some("even.test")), event(9, Some("odd.test"))]);
    let page = |before, limit| EventQuery { domain: Some(key("even.test")), before, limit };
    let found = store.events(page(Some(8), 2)).await.expect("events");
    assert_eq!(ids(&found), [6, 4]);
    let found = store.events(page(Some(4), 2)).await.expect("events");
    assert_eq!(ids(&found), [2]);
    assert_eq!(store.events(page(Some(2), 2)).await.expect("events"), []);
    store.append(event(12, Some("even.test")));
    let found = store.events(page(None, usize::MAX)).await.expect("events");
    assert_eq!(ids(&found), [12, 10, 8, 6, 4, 2], "what was just appended is there");
}

#[tokio::test]
async fn no_more_than_ten_thousand_events_are_kept() {
    let (_dir, path) = file();
    let (store, ..) = open(&path);
    for start in [1, 6_001] {
        for id in start..start + 6_000 {
            store.append(event(id, None));
        }
        assert!(store.flush(LONG).await);
    }
    let found = store.events(all(usize::MAX)).await.expect("events");
    assert_eq!((found.len(), found[0].id, found[9_999].id), (10_000, 12_000, 2_001));
    assert_eq!(store.events_dropped(), 0, "retention is no loss");
}

#[tokio::test]
async fn rows_that_nobody_needs_are_pruned_and_the_rule_is_the_same_in_memory() {
    let (_dir, path) = file();
    let now = NOW;
    let old = now - KEEP_ROWS.micros() - 1;
    let overridden = serde_json::from_str(r#"{"max_errors":5}"#).ok();
    let rows = [
        Row { opened_at: old, opened_until: now, ..row("closed-long-ago.test", 1) },
        Row { opened_at: 0, ..row("never-opened.test", 1) },
        Row { opened_at: old, opened_until: now + 1, ..row("still-open.test", 1) },
        Row { opened_at: old + 1, ..row("young.test", 1) },
        Row { opened_at: old, overrides: overridden, ..row("overridden.test", 1) },
    ];
    let (store, ..) = open(&path);
    rows.iter().for_each(|row| store.save(row.clone()));
    store.prune(now);
    assert!(store.flush(LONG).await);
    let mut kept: Vec<Row> = rows.iter().filter(|row| !is_stale(row, now)).cloned().collect();
    kept.sort_by(|a, b| a.domain.cmp(&b.domain));
    assert_eq!(kept.len(), 3);
    assert_eq!(open(&path).1, kept);
    let later = now + 2 * KEEP_ROWS.micros();
    store.append(Event { at: later, ..event(1, None) });
    assert!(store.flush(LONG).await);
    assert_eq!(open(&path).1.len(), 1, "pruned by the time that an event tells");
}

#[tokio::test]
async fn two_stores_share_one_file() {
    let (_dir, path) = file();
    let ((one, ..), (two, ..)) = (open(&path), open(&path));
    for n in 0..200 {
        one.save(row(&format!("one{n}.test"), n));
        two.save(row(&format!("two{n}.test"), n));
        one.append(event(1 + n, Some("one.test")));
        two.append(event(1 + n, Some("two.test")));
    }
    one.save(row("both.test", 500));
    assert!(one.flush(LONG).await && two.flush(LONG).await);
    two.save(row("both.test", 400));
    assert!(two.flush(LONG).await);
    assert_eq!((one.state(), two.state()), (StoreState::Ok, StoreState::Ok));
    let found = one.events(all(1_000)).await.expect("events");
    assert_eq!(found.len(), 400);
    assert!(found.windows(2).all(|pair| pair[0].id > pair[1].id), "unique and in order");
    let (_, rows, last) = open(&path);
    assert_eq!((rows.len(), last), (401, found[0].id));
    assert_eq!(rows.iter().find(|row| row.domain == key("both.test")).map(|row| row.version), Some(400));
}

#[tokio::test]
async fn memory_is_a_store_like_any_other() {
    let (store, loaded) = Store::open(Location::Memory).expect("a store");
    assert_eq!((loaded.rows.len(), store.state()), (0, StoreState::Memory));
    store.save(row("a.test", 1));
    store.append(event(1, None));
    assert!(store.flush(LONG).await);
    assert_eq!(ids(&store.events(all(9)).await.expect("events")), [1]);
    assert_eq!(store.state(), StoreState::Memory);
}

#[tokio::test]
async fn the_last_handle_takes_what_waits_along() {
    let (_dir, path) = file();
    let (store, ..) = open(&path);
    let clone = store.clone();
    drop(store);
    (0..100).for_each(|n| clone.save(row(&format!("{n}.test"), n)));
    drop(clone);
    let written = async {
        while open(&path).1.len() < 100 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, written).await.expect("all rows");
}

#[test]
fn the_file_and_its_directory_are_for_this_user_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("state/fusebox");
    prepare_dir(&data).expect("made");
    prepare_dir(&data).expect("there already");
    assert_eq!(std::fs::read_dir(&data).expect("a listing").count(), 0, "nothing is left behind");
    let path = data.join("fusebox.db");
    let _store = open(&path);
    let mode = |path: &Path| std::fs::metadata(path).expect("metadata").permissions().mode() & 0o777;
    assert_eq!((mode(&data), mode(&path), mode(&data.join("fusebox.db-wal"))), (0o700, 0o600, 0o600));
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "").expect("a file");
    for path in [file.clone(), file.join("below")] {
        assert!(prepare_dir(&path).is_err(), "{}", path.display());
    }
    for path in [file.join("fusebox.db"), dir.path().join("missing/fusebox.db")] {
        let error = Store::open(Location::File(&path)).expect_err("an error");
        assert!(matches!(error, StoreError::Create { .. }), "{error}");
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    let closed = dir.path().join("closed");
    std::fs::create_dir(&closed).expect("a directory");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o500)).expect("a mode");
    // To root the mode means nothing: then both must work.
    let allowed = std::fs::write(closed.join("trial"), "").is_ok();
    assert_eq!(prepare_dir(&closed).is_ok(), allowed);
    assert_eq!(Store::open(Location::File(&closed.join("fusebox.db"))).is_ok(), allowed);
}
