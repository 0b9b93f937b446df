//! The durable store: SQLite, on a thread of its own.
//!
//! ```text
//!  requests ── save · remove · append ──> queue ──> writer thread ──> fusebox.db
//!  (never wait)                           newest per domain           one transaction for all that waits
//! ```
//!
//! **Purpose.** What must outlive the process (who is open until when, overrides, the audit trail) is
//! kept, and keeping it never costs a request anything. Memory decides; the disk follows within
//! milliseconds, and where it can't, the store says so in [`Store::state`] and goes on trying.
//!
//! **What is promised.** A change is on disk (`synchronous = FULL`) once [`Store::flush`] has returned true;
//! without a flush that is a matter of one transaction. After trouble, the file equals memory as soon as
//! it can be written again, at the latest one pause of half a second later.
//!
//! **Two processes on one file** are safe. Each writes whole rows and the last writer of a row wins; what
//! the other wrote is seen at the next start. Event ids are made unique by moving the later one up.
//!
//! **Backups** may be taken at any time: `VACUUM INTO`, `.backup`; they only read.

mod migrate;
mod open;
mod pending;
mod shared;
mod table;
mod writer;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

pub use self::open::prepare_dir;
use self::pending::Change;
use self::shared::{Ask, Shared};
use self::writer::Writer;
use crate::core::key::DomainKey;
use crate::core::row::{Event, Row};
use crate::core::time::{Micros, Span};

/// How long the row of a domain without overrides is kept after its last opening.
pub const KEEP_ROWS: Span = Span::seconds(30 * 86_400);

/// Where the store keeps things.
#[derive(Clone, Copy, Debug)]
pub enum Location<'a> {
    /// In this file, in a directory that exists (see [`prepare_dir`]).
    File(&'a Path),
    /// Nowhere: what is kept ends with the process.
    Memory,
}

/// What the file held when it was opened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Loaded {
    /// Every row, sorted by domain; see [`is_stale`].
    pub rows: Vec<Row>,
    /// The greatest id of an event, 0 without events. New ids are to be greater.
    pub last_event_id: u64,
}

/// Why a file can't be used. Every message names it and says what to do. The file is as it was.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum StoreError {
    #[error("cannot create {}: {source}: make its directory writable, or choose another one", path.display())]
    Create { path: PathBuf, source: io::Error },
    #[error("{} may only be read: make it and its directory writable, or choose another directory", path.display())]
    ReadOnly { path: PathBuf },
    #[error("{} is locked by another program: end that program, or choose another directory", path.display())]
    Locked { path: PathBuf },
    #[error(
        "{} is damaged ({detail}) and was left as it is: move it away to start afresh, or put a backup in its place",
        path.display()
    )]
    Damaged { path: PathBuf, detail: String },
    #[error("{} is the database of another program and was left as it is: choose another directory", path.display())]
    Foreign { path: PathBuf },
    #[error(
        "{} was written by a later version of Fusebox (schema {found}, this one knows {known}) and was left as it is: \
         update Fusebox, or choose another directory",
        path.display()
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("cannot use {}: {source}: check the directory and the disk, or choose another directory", path.display())]
    Sqlite { path: PathBuf, source: rusqlite::Error },
    #[error("cannot start the store's thread: {0}")]
    Thread(io::Error),
    #[error("the store's thread has ended: restart Fusebox")]
    Ended,
}

/// How the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// Writing works.
    Ok,
    /// There is no file: nothing outlives the process.
    Memory,
    /// The last attempt failed, for this reason. Everything is kept in memory and tried again.
    Degraded(String),
}

/// Which events are wanted.
#[derive(Clone, Debug)]
pub struct EventQuery {
    /// Those of this domain only.
    pub domain: Option<DomainKey>,
    /// Those with a smaller id only: the last id of the page before.
    pub before: Option<u64>,
    /// At most this many.
    pub limit: usize,
}

impl EventQuery {
    fn matches(&self, event: &Event) -> bool {
        self.before.is_none_or(|before| event.id < before)
            && self.domain.as_ref().is_none_or(|domain| event.domain.as_ref() == Some(domain))
    }
}

/// True if the store drops this row by itself: closed or due for a probe, without overrides, and last
/// opened more than [`KEEP_ROWS`] ago. For the caller, to leave it out of what was [`Loaded`].
pub fn is_stale(row: &Row, now: Micros) -> bool {
    row.overrides.is_none() && row.opened_at < now.saturating_sub(KEEP_ROWS.micros()) && row.opened_until <= now
}

/// A handle to the store, cheap to clone. When the last one is dropped, the thread tries once more to
/// write what is left and ends; to be sure of that, [`flush`](Store::flush) first.
#[derive(Clone)]
pub struct Store {
    last: Arc<LastHandle>,
}

/// Shared by all handles and by nothing else, so that its end is the end of the last of them.
struct LastHandle(Arc<Shared>);

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("state", &self.state()).finish_non_exhaustive()
    }
}

impl Drop for LastHandle {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Store {
    /// Opens or creates the store and reads it. Blocks, for about two seconds at most when another
    /// program holds a lock.
    ///
    /// # Errors
    /// Whatever stands against using the file, which is then left as it is. The caller is expected to
    /// say so and to go on with [`Location::Memory`].
    pub fn open(location: Location<'_>) -> Result<(Store, Loaded), StoreError> {
        let (disk, loaded, place, sound) = match location {
            Location::File(path) => {
                let (disk, loaded) = open::open_file(path)?;
                (disk, loaded, path.display().to_string(), StoreState::Ok)
            }
            Location::Memory => {
                let (disk, loaded) = open::open_memory()?;
                (disk, loaded, "memory".to_owned(), StoreState::Memory)
            }
        };
        let shared = Arc::new(Shared::new(sound.clone()));
        let writer = Writer::new(Arc::clone(&shared), disk, place, sound);
        std::thread::Builder::new().name("store".into()).spawn(move || writer.run()).map_err(StoreError::Thread)?;
        Ok((Store { last: Arc::new(LastHandle(shared)) }, loaded))
    }

    /// Keeps a row. Returns at once; of several changes to one domain only the newest is written, and one
    /// with a lower version than was seen before is ignored.
    ///
    /// Versions must rise per process, not per domain: a domain that was removed and comes back has to
    /// have a higher one than before.
    pub fn save(&self, row: Row) {
        self.shared().change(row.domain.clone(), row.version, Change::Save(Box::new(row)));
    }

    /// Forgets a domain's row. Returns at once; `version` is compared as in [`save`](Store::save).
    pub fn remove(&self, domain: DomainKey, version: u64) {
        self.shared().change(domain, version, Change::Remove);
    }

    /// Adds to the audit trail. Returns at once. The newest 10 000 events are kept; should as many wait for
    /// a disk that is away, the oldest are lost and [`events_dropped`](Store::events_dropped) counts them.
    pub fn append(&self, event: Event) {
        self.shared().enqueue(|queue| {
            let dropped = queue.pending.push(event);
            self.shared().count_dropped(dropped);
            true
        });
    }

    /// Deletes stale rows (see [`is_stale`]) as of the wall time `now`. Returns at once. To be called after
    /// opening; later the store does it by itself, once a day of the events' time.
    pub fn prune(&self, now: Micros) {
        self.shared().enqueue(|queue| {
            queue.pending.prune = Some(now);
            true
        });
    }

    /// Events, newest first, with all that were appended before the call, whether or not they could be
    /// written. If the file can't be read, those that are not yet written; [`state`](Store::state) says so.
    ///
    /// # Errors
    /// [`StoreError::Ended`] when the store's thread has died.
    pub async fn events(&self, query: EventQuery) -> Result<Vec<Event>, StoreError> {
        let (reply, answer) = oneshot::channel();
        if !self.shared().ask(Ask { query, reply }) {
            return Err(StoreError::Ended);
        }
        answer.await.map_err(|_| StoreError::Ended)
    }

    /// Waits until everything that was handed over before the call is on disk. False if that took longer
    /// than `timeout`.
    pub async fn flush(&self, timeout: Duration) -> bool {
        let target = self.shared().queue().accepted;
        let mut written = self.shared().written.subscribe();
        let reached = written.wait_for(|written| *written >= target);
        matches!(tokio::time::timeout(timeout, reached).await, Ok(Ok(_)))
    }

    /// How the store is.
    pub fn state(&self) -> StoreState {
        self.shared().state()
    }

    /// Transactions that were written.
    pub fn writes_ok(&self) -> u64 {
        self.shared().counts().0
    }

    /// Transactions that failed; each is tried again.
    pub fn writes_failed(&self) -> u64 {
        self.shared().counts().1
    }

    /// Events that were lost because too many waited.
    pub fn events_dropped(&self) -> u64 {
        self.shared().counts().2
    }

    fn shared(&self) -> &Shared {
        &self.last.0
    }
}
