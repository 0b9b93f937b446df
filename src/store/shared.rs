//! What handles and writer share: the queue and the numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};

use super::pending::{Change, Pending, Versions};
use super::{EventQuery, StoreState};
use crate::core::key::DomainKey;
use crate::core::row::Event;

/// A question for events.
pub(super) struct Ask {
    pub query: EventQuery,
    pub reply: oneshot::Sender<Vec<Event>>,
}

/// Held for moments only: no disk, no allocation of any size.
#[derive(Default)]
pub(super) struct Queue {
    pub pending: Pending,
    pub asks: Vec<Ask>,
    /// Changes accepted so far.
    pub accepted: u64,
    /// The last handle is gone.
    pub closing: bool,
    /// The writer sleeps without a time limit. Only then does a change have to wake it.
    pub writer_idle: bool,
    versions: Versions,
    ended: bool,
}

pub(super) struct Shared {
    pub wake: Condvar,
    /// The value of [`Queue::accepted`] up to which all is written.
    pub written: watch::Sender<u64>,
    queue: Mutex<Queue>,
    state: Mutex<StoreState>,
    writes_ok: AtomicU64,
    writes_failed: AtomicU64,
    events_dropped: AtomicU64,
}

impl Shared {
    pub fn new(state: StoreState) -> Shared {
        Shared {
            wake: Condvar::new(),
            written: watch::Sender::new(0),
            queue: Mutex::default(),
            state: Mutex::new(state),
            writes_ok: AtomicU64::new(0),
            writes_failed: AtomicU64::new(0),
            events_dropped: AtomicU64::new(0),
        }
    }

    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a change of a row, unless a newer one was seen.
    pub fn change(&self, domain: DomainKey, version: u64, change: Change) {
        self.enqueue(|queue| {
            let newest = queue.versions.admit(&domain, version);
            if newest {
                queue.pending.rows.insert(domain, change);
            }
            newest
        });
    }

    /// Lets `add` queue something; true means that it did.
    pub fn enqueue(&self, add: impl FnOnce(&mut Queue) -> bool) {
        let mut queue = self.queue();
        if !add(&mut queue) {
            return;
        }
        queue.accepted += 1;
        let wake = queue.writer_idle;
        drop(queue);
        if wake {
            self.wake.notify_one();
        }
    }

    /// Queues a question; false when nobody is there to answer it.
    pub fn ask(&self, ask: Ask) -> bool {
        let mut queue = self.queue();
        if queue.ended {
            return false;
        }
        queue.asks.push(ask);
        drop(queue);
        self.wake.notify_one();
        true
    }

    /// Tells the writer that no handle is left.
    pub fn close(&self) {
        self.queue().closing = true;
        self.wake.notify_one();
    }

    /// The writer is gone: whoever waits for an answer learns it.
    pub fn end(&self) {
        let mut queue = self.queue();
        queue.ended = true;
        queue.asks.clear();
    }

    pub fn state(&self) -> StoreState {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the state and returns the one before.
    pub fn set_state(&self, state: StoreState) -> StoreState {
        std::mem::replace(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner), state)
    }

    pub fn count_written(&self, up_to: u64) {
        self.writes_ok.fetch_add(1, Relaxed);
        self.written.send_replace(up_to);
    }

    pub fn count_failed(&self) {
        self.writes_failed.fetch_add(1, Relaxed);
    }

    pub fn count_dropped(&self, events: u64) {
        self.events_dropped.fetch_add(events, Relaxed);
    }

    /// Transactions that succeeded, that failed, and events that were lost.
    pub fn counts(&self) -> (u64, u64, u64) {
        (self.writes_ok.load(Relaxed), self.writes_failed.load(Relaxed), self.events_dropped.load(Relaxed))
    }
}
