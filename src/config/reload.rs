//! Notices that the configuration file has changed.
//!
//! Editors and deployment tools do not write into a file, they put another in its place: by renaming, or
//! (Kubernetes config maps) by turning a symbolic link several steps away. So directories are watched, the
//! one where the file is named and the one where it really is, and what counts is whether the content
//! differs from what was last seen.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::mpsc;

/// How long the directory must be quiet: a file that is being written is not read halfway.
const QUIET: Duration = Duration::from_millis(100);

/// How many events may delay the look at a directory that is never quiet.
const MOST_EVENTS: usize = 1_000;

/// Why a file can't be watched. The proxy works without: SIGHUP reloads too.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The system offers no watch, or none for this directory.
    #[error("can't watch {path}: {source}")]
    Watch {
        /// The directory.
        path: PathBuf,
        /// What the system said.
        source: notify::Error,
    },
    /// No thread for it.
    #[error("can't start the thread that watches the configuration: {0}")]
    Thread(std::io::Error),
}

/// Sends a signal after every change of what `file` (absolute) holds, its disappearance included. Signals
/// that nobody took yet are one. The watch ends when the receiver is dropped and something happens.
///
/// # Errors
///
/// If the directory can't be watched.
pub fn changes(file: &Path) -> Result<mpsc::Receiver<()>, WatchError> {
    let (event, events) = channel();
    let unwatched = |source| WatchError::Watch { path: directory(file).to_owned(), source };
    let watcher = notify::recommended_watcher(move |happened: notify::Result<notify::Event>| {
        // Our own reading is an event as well; an error may hide a change.
        if happened.is_ok_and(|event| event.kind.is_access()) {
            return;
        }
        let _ = event.send(());
    });
    let mut watch = Watch { watcher: watcher.map_err(unwatched)?, file: file.to_owned(), real_directory: None };
    watch.watcher.watch(directory(file), RecursiveMode::NonRecursive).map_err(unwatched)?;
    let seen = watch.look();
    let (changed, changes) = mpsc::channel(1);
    let thread = std::thread::Builder::new().name("config-watch".to_owned());
    thread.spawn(move || watch.run(seen, &events, &changed)).map_err(WatchError::Thread)?;
    Ok(changes)
}

struct Watch {
    watcher: RecommendedWatcher,
    file: PathBuf,
    /// Where the file really is, if that is another directory.
    real_directory: Option<PathBuf>,
}

impl Watch {
    fn run(mut self, mut seen: Option<u64>, events: &Receiver<()>, changed: &mpsc::Sender<()>) {
        while events.recv().is_ok() && !changed.is_closed() {
            let mut further = 0;
            while further < MOST_EVENTS {
                match events.recv_timeout(QUIET) {
                    Ok(()) => further += 1,
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
                }
            }
            let now = self.look();
            if now != seen {
                seen = now;
                // Full is as good as sent: the receiver has yet to read the file.
                let _ = changed.try_send(());
            }
        }
    }

    /// The content's hash, if there is content; and keeps the watch on the directory where it really is.
    fn look(&mut self) -> Option<u64> {
        let real = std::fs::canonicalize(&self.file).ok().map(|real| directory(&real).to_owned());
        let real = real.filter(|real| std::fs::canonicalize(directory(&self.file)).ok().as_ref() != Some(real));
        if real != self.real_directory {
            if let Some(old) = self.real_directory.take() {
                // It may be gone already, and its watch with it.
                let _ = self.watcher.unwatch(&old);
            }
            // Second best: the named directory is watched in any case.
            let watched = |real: &PathBuf| self.watcher.watch(real, RecursiveMode::NonRecursive).is_ok();
            self.real_directory = real.filter(watched);
        }
        let content = std::fs::read(&self.file).ok()?;
        let mut hasher = DefaultHasher::new();
        content.hash(&mut hasher);
        Some(hasher.finish())
    }
}

fn directory(file: &Path) -> &Path {
    file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn signal(changes: &mut mpsc::Receiver<()>) -> bool {
        tokio::time::timeout(Duration::from_secs(10), changes.recv()).await.is_ok_and(|signal| signal.is_some())
    }

    #[tokio::test]
    async fn writes_renames_and_removals_are_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("config.toml");
        std::fs::write(&file, "a = 1").expect("written");
        let mut changes = changes(&file).expect("a watch");

        std::fs::write(&file, "a = 2").expect("written");
        assert!(signal(&mut changes).await, "written in place");
        let other = dir.path().join("new");
        std::fs::write(&other, "a = 3").expect("written");
        std::fs::rename(&other, &file).expect("renamed");
        assert!(signal(&mut changes).await, "renamed over");
        std::fs::remove_file(&file).expect("removed");
        assert!(signal(&mut changes).await, "removed");
        std::fs::write(&file, "a = 3").expect("written");
        assert!(signal(&mut changes).await, "back again");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn a_swapped_link_is_noticed_and_so_is_the_file_behind_it() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().expect("a directory");
        for version in ["1", "2"] {
            std::fs::create_dir(dir.path().join(version)).expect("made");
            std::fs::write(dir.path().join(version).join("config.toml"), version).expect("written");
        }
        symlink("1", dir.path().join("..data")).expect("linked");
        let file = dir.path().join("config.toml");
        symlink("..data/config.toml", &file).expect("linked");
        let mut changes = changes(&file).expect("a watch");

        symlink("2", dir.path().join("..tmp")).expect("linked");
        std::fs::rename(dir.path().join("..tmp"), dir.path().join("..data")).expect("renamed");
        assert!(signal(&mut changes).await, "swapped");
        std::fs::write(dir.path().join("2/config.toml"), "3").expect("written");
        assert!(signal(&mut changes).await, "written behind the link");
    }

    #[tokio::test]
    async fn what_changes_nothing_is_no_change() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("config.toml");
        std::fs::write(&file, "a = 1").expect("written");
        let mut changes = changes(&file).expect("a watch");
        std::fs::write(dir.path().join("fusebox.db"), "x").expect("written");
        std::fs::write(&file, "a = 1").expect("written");
        assert!(tokio::time::timeout(QUIET * 5, changes.recv()).await.is_err());
    }

    #[test]
    fn what_can_t_be_watched_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(changes(&dir.path().join("gone/config.toml")).is_err());
    }
}
