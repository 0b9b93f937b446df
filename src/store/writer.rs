//! The thread that owns the connection.
//!
//! It takes all that waits in one go, writes it in one transaction, and keeps it when that fails: what
//! failed and what came since are one batch at the next attempt. So a disk that is away costs memory for
//! the domains that changed, never time on a request, and once it is back one transaction catches up.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use rusqlite::Connection;

use super::pending::Pending;
use super::shared::{Ask, Shared};
use super::{EventQuery, StoreState, table};
use crate::core::row::Event;
use crate::core::time::{Micros, Span};

/// The pauses after failed attempts: doubling, between these.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Old rows are pruned when the events show that so much time has passed.
const PRUNE_EVERY: Span = Span::seconds(86_400);

/// What the thread has to do next.
enum Work {
    Answer(Vec<Ask>),
    Write,
    End,
}

pub(super) struct Writer {
    shared: Arc<Shared>,
    disk: Connection,
    /// For the log: which file it is.
    place: String,
    /// The state while nothing is wrong: `Ok` or `Memory`.
    sound: StoreState,
    /// Taken from the queue and not yet written.
    batch: Pending,
    /// The queue's count of changes when it was last taken from.
    taken: u64,
    /// The length of the last pause; zero while writing works.
    pause: Duration,
    /// What is left of it.
    rest: Duration,
    pruned_at: Micros,
}

impl Writer {
    pub fn new(shared: Arc<Shared>, disk: Connection, place: String, sound: StoreState) -> Writer {
        let (pause, rest) = (Duration::ZERO, Duration::ZERO);
        Writer { shared, disk, place, sound, batch: Pending::default(), taken: 0, pause, rest, pruned_at: 0 }
    }

    /// Works until the last handle is gone, then tries once more to write what is left.
    pub fn run(mut self) {
        loop {
            match self.next() {
                Work::Answer(asks) => self.answer(asks),
                Work::Write => self.write(),
                Work::End => break,
            }
        }
        self.take();
        if !self.batch.is_empty() {
            self.write();
        }
    }

    /// Waits for something to do.
    ///
    /// A pause is slept in slices, each counted in full however it ended: questions that keep coming can
    /// shorten a pause but never put the next attempt off.
    fn next(&mut self) -> Work {
        let shared = Arc::clone(&self.shared);
        let mut queue = shared.queue();
        loop {
            if !queue.asks.is_empty() {
                return Work::Answer(std::mem::take(&mut queue.asks));
            }
            if queue.closing {
                return Work::End;
            }
            if !self.rest.is_zero() {
                self.rest = self.rest.saturating_sub(FIRST_PAUSE);
                let waited = shared.wake.wait_timeout(queue, FIRST_PAUSE);
                queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            } else if queue.pending.is_empty() && self.batch.is_empty() {
                queue.writer_idle = true;
                queue = shared.wake.wait(queue).unwrap_or_else(PoisonError::into_inner);
                queue.writer_idle = false;
            } else {
                return Work::Write;
            }
        }
    }

    /// Takes over all that waits in the queue; the queue is held for a moment only.
    fn take(&mut self) {
        let pending = {
            let mut queue = self.shared.queue();
            self.taken = queue.accepted;
            std::mem::take(&mut queue.pending)
        };
        let newest = pending.events.iter().map(|event| event.at).max();
        let dropped = self.batch.absorb(pending);
        self.shared.count_dropped(dropped);
        if let Some(now) = newest.filter(|now| now.saturating_sub(self.pruned_at) >= PRUNE_EVERY.micros()) {
            self.batch.prune.get_or_insert(now);
        }
    }

    fn write(&mut self) {
        self.take();
        match table::write(&mut self.disk, &self.batch) {
            Ok(()) => {
                let batch = std::mem::take(&mut self.batch);
                self.pruned_at = batch.prune.unwrap_or(self.pruned_at);
                (self.pause, self.rest) = (Duration::ZERO, Duration::ZERO);
                self.recovered();
                self.shared.count_written(self.taken);
            }
            Err(error) => {
                self.shared.count_failed();
                self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                self.rest = self.pause;
                self.degraded(&format!("writing failed: {error}"));
            }
        }
    }

    fn answer(&mut self, asks: Vec<Ask>) {
        self.take();
        for ask in asks {
            let events = self.events(&ask.query);
            // The asker may have gone: nothing is lost.
            let _ = ask.reply.send(events);
        }
    }

    /// What is on disk and what is on its way there, newest first.
    fn events(&mut self, query: &EventQuery) -> Vec<Event> {
        let mut found: Vec<Event> = self.batch.events.iter().filter(|event| query.matches(event)).cloned().collect();
        match table::events(&self.disk, query) {
            Ok(stored) => {
                found.extend(stored);
                if self.batch.is_empty() {
                    self.recovered();
                }
            }
            Err(error) => self.degraded(&format!("reading failed, showing only what is not yet written: {error}")),
        }
        found.sort_by_key(|event| std::cmp::Reverse(event.id));
        // A commit that was reported as failed may have reached the disk.
        found.dedup();
        found.truncate(query.limit);
        found
    }

    fn degraded(&self, reason: &str) {
        let before = self.shared.set_state(StoreState::Degraded(reason.to_owned()));
        if before == self.sound {
            tracing::warn!(
                path = self.place,
                reason,
                "the store is in trouble; state is kept in memory until it is back"
            );
        }
    }

    fn recovered(&self) {
        if self.shared.set_state(self.sound.clone()) != self.sound {
            tracing::info!(path = self.place, "the store is back; everything is written");
        }
    }
}

impl Drop for Writer {
    /// Nobody may wait for a thread that is gone, however it went.
    fn drop(&mut self) {
        self.shared.end();
        if std::thread::panicking() {
            self.degraded("the writer thread has ended; nothing more is written");
        }
    }
}
