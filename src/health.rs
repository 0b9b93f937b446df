//! How the process is: the phase of its life, and what is out of order without stopping it.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

/// The phases of a process's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Not yet ready for requests.
    Starting,
    /// Serving.
    Ready,
    /// Finishing what runs; nothing new is accepted.
    Draining,
}

impl Phase {
    /// The word in `/readyz`.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Ready => "ready",
            Phase::Draining => "draining",
        }
    }
}

/// Shared by the wiring, which sets it, and the admin port, which shows it.
#[derive(Debug, Default)]
pub struct Health {
    phase: AtomicU8,
    reload_error: Mutex<Option<String>>,
    no_persistence: Mutex<Option<String>>,
}

impl Health {
    /// The phase now.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Starting,
            1 => Phase::Ready,
            _ => Phase::Draining,
        }
    }

    /// Enters a phase.
    pub fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// Why the last reload changed nothing, if it failed.
    pub fn reload_error(&self) -> Option<String> {
        lock(&self.reload_error).clone()
    }

    /// Notes how the last reload went.
    pub fn reloaded(&self, error: Option<String>) {
        *lock(&self.reload_error) = error;
    }

    /// Why nothing outlives the process, if nothing does.
    pub fn no_persistence(&self) -> Option<String> {
        lock(&self.no_persistence).clone()
    }

    /// Notes that nothing will outlive the process.
    pub fn without_persistence(&self, why: String) {
        *lock(&self.no_persistence) = Some(why);
    }
}

fn lock(text: &Mutex<Option<String>>) -> std::sync::MutexGuard<'_, Option<String>> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}
