//! The permit: what an admission is, and what its end gives back.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Shared, Site};
use crate::core::breaker::Ticket;
use crate::metrics::ProbeResult;

/// Leave to send one request. Dropping it is "not counted".
#[derive(Debug)]
pub struct Permit {
    pub(super) site: Arc<Site>,
    pub(super) ticket: Ticket,
    /// Set if something has to be given back.
    home: Option<Arc<Home>>,
    pub(super) counted: bool,
    sent: bool,
    charged: bool,
    pub(super) recorded: bool,
    pub(super) waited: u64,
}

impl Permit {
    pub(super) fn new(site: Arc<Site>, ticket: Ticket, home: Option<Arc<Home>>) -> Permit {
        Permit { site, ticket, home, counted: true, sent: false, charged: true, recorded: false, waited: 0 }
    }

    /// Notes that from now on something may have reached the upstream.
    pub fn sending(&mut self) {
        self.sent = true;
    }

    /// Gives the budget's unit back at the end: the request was bad or denied after all.
    pub fn uncharge(&mut self) {
        self.charged = false;
    }

    /// How long it waited for its turn, in microseconds.
    pub fn waited(&self) -> u64 {
        self.waited
    }

    /// True if this request decides about a half-open circuit.
    pub fn is_probe(&self) -> bool {
        self.ticket.token.is_some()
    }

    /// The proof of admission, to be carried elsewhere. Probe and slot stay with it; the place is given back
    /// at once, since nobody would ever do that later.
    pub fn into_ticket(mut self) -> Ticket {
        let ticket = self.ticket;
        self.ticket = Ticket { placed: ticket.placed, ..Ticket::plain(ticket.admitted_at) };
        Ticket { placed: false, ..ticket }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let Some(home) = self.home.take() else { return };
        let shared = &home.0;
        if self.is_probe() && !self.recorded {
            shared.metrics.probes[ProbeResult::Lost].inc();
        }
        let policies = shared.policies.load();
        let key = &self.site.key.key;
        let policy = policies.effective(key, self.site.key.section.as_ref());
        let mut shard = shared.table.lock(key);
        if let Some(entry) = shard.find(key) {
            entry.breaker.release(policy, shared.clock.now(), &self.ticket, self.sent, self.charged);
            entry.wake_head();
        }
    }
}

/// A way from a permit back to the shared state. There are several: a reference count that all threads
/// change with every request costs more than the decision.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Home(pub Arc<Shared>);

/// As many ways as threads that decide, on most machines.
pub(super) const HOMES: usize = 16;

thread_local! {
    /// The number of this thread, for its way back.
    static THREAD: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
}

/// The number of this thread.
pub(super) fn thread() -> usize {
    THREAD.with(|thread| *thread)
}
