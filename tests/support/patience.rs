//! Deadlines: how long a test waits for something, and for how long it looks on.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long anything may take that happens at once on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The time, for deadlines.
#[expect(clippy::disallowed_methods, reason = "tests look on from outside: they have no clock to inject")]
pub fn now() -> Instant {
    Instant::now()
}

/// Looks until there is something to see.
///
/// # Panics
///
/// After [`PATIENCE`].
#[track_caller]
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = now() + PATIENCE;
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(now() < deadline, "in vain: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Looks until it is so.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    eventually(what, || holds().then_some(()));
}

/// Looks for `span` and fails if it is ever not so.
#[track_caller]
pub fn throughout(what: &str, span: Duration, mut holds: impl FnMut() -> bool) {
    let end = now() + span;
    while now() < end {
        assert!(holds(), "not throughout: {what}");
        std::thread::sleep(LOOK_EVERY);
    }
}

/// A door that is opened once: origins wait in front of it, so that a test decides when they go on.
#[derive(Clone, Debug, Default)]
pub struct Latch(Arc<(Mutex<bool>, Condvar)>);

impl Latch {
    pub fn new() -> Latch {
        Latch::default()
    }

    pub fn open(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    pub fn is_open(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits, at most for [`PATIENCE`]: a test that has failed leaves no thread behind for ever.
    pub fn wait(&self) {
        let open = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.0.1.wait_timeout_while(open, PATIENCE, |open| !*open);
    }
}
