//! What a decision has to tell: the row to store, the event, the log line, the counters.
//!
//! A change is put together under the domain's lock, so that it is whole, and carried out after it.

use std::sync::atomic::Ordering;

use tokio::sync::broadcast;

use super::table::Entry;
use super::{Gate, Site};
use crate::clock::rfc3339;
use crate::core::breaker::Transition;
use crate::core::key::DomainKey;
use crate::core::layers::Policies;
use crate::core::outcome::Cause;
use crate::core::row::{Event, EventKind, Opener, Row};
use crate::core::time::{Micros, SECOND, Span};
use crate::metrics::{ProbeResult, Reason};

/// Refusals of one domain are logged at once, then summed up at most this often.
const REFUSAL_LOG_EVERY: u64 = 60 * SECOND;

/// A change that is yet to be published.
pub(super) struct Change {
    pub row: Row,
    pub kind: EventKind,
    pub by: String,
    pub detail: String,
    /// Refusals that no log line has told of yet.
    pub refused: u64,
}

impl Gate {
    /// Notes a transition in the entry and makes what is to be told of it.
    pub(super) fn changed(
        &self,
        key: &DomainKey,
        entry: &mut Entry,
        policies: &Policies,
        now: Micros,
        transition: Transition,
    ) -> Change {
        let history = entry.history.get_or_insert_default();
        let because = history.last_status.map_or_else(String::new, |cause| cause.to_string());
        let host = history.last_host.clone().unwrap_or_default();
        let mut opened = |until: Micros, by: Opener, verb: &str| {
            history.opened_at = now;
            history.opened_by = Some(by);
            history.trip_count += 1;
            let length = Span(until.saturating_sub(now));
            format!("{verb} for {length} after {because} from {host}")
        };
        let (kind, detail) = match transition {
            Transition::Tripped(until, by) => (EventKind::Trip, opened(until, by, "open")),
            Transition::Reopened(until) => (EventKind::Reopen, opened(until, Opener::Auto, "probe failed: open")),
            Transition::Closed => (EventKind::Close, "the probe succeeded".to_owned()),
        };
        if kind != EventKind::Close {
            for waiter in &entry.line {
                waiter.wake.notify_one();
            }
        }
        let refused = entry.take_refused();
        let row = self.row(key, entry, policies);
        Change { row, kind, by: "auto".to_owned(), detail, refused }
    }

    /// The row of an entry, in wall time, newer than every row before it.
    pub(super) fn row(&self, key: &DomainKey, entry: &Entry, policies: &Policies) -> Row {
        let clock = &self.0.clock;
        let history = entry.history.as_deref().cloned().unwrap_or_default();
        let circuit = entry.breaker.circuit;
        Row {
            domain: key.clone(),
            version: self.next_version(),
            opened_at: clock.to_wall(history.opened_at),
            opened_until: clock.to_wall(circuit.opened_until),
            opened_for: circuit.opened_for,
            closed_at: clock.to_wall(circuit.closed_at),
            strikes: circuit.strikes,
            opened_by: history.opened_by,
            last_status: history.last_status,
            last_host: history.last_host,
            trip_count: history.trip_count,
            overrides: policies.override_of(key).cloned(),
        }
    }

    pub(super) fn next_version(&self) -> u64 {
        self.0.versions.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Counts, logs, stores and publishes a change.
    pub(super) fn publish(&self, change: Change) {
        let shared = &self.0;
        let Change { row, kind, by, detail, refused } = change;
        log_refusals(&row.domain, refused);
        match kind {
            EventKind::Trip | EventKind::Reopen => shared.metrics.trips.inc(),
            _ => {}
        }
        match kind {
            EventKind::Reopen => shared.metrics.probes[ProbeResult::Error].inc(),
            EventKind::Close if by == "auto" => shared.metrics.probes[ProbeResult::Success].inc(),
            _ => {}
        }
        let until = (row.opened_until != 0).then(|| rfc3339(row.opened_until));
        tracing::info!(
            event = kind.name(),
            domain = %row.domain,
            by,
            until,
            trip_count = row.trip_count,
            "{}: {detail}",
            row.domain
        );
        let domain = row.domain.clone();
        shared.store.save(row);
        self.tell(kind, Some(domain), by, detail);
    }

    /// Logs every refusal that no line has told of yet: at the end of the process.
    pub fn log_refusals(&self) {
        for mut shard in self.0.table.each() {
            for (domain, entry) in shard.iter_mut() {
                log_refusals(domain, entry.take_refused());
            }
        }
    }

    /// A probe was let through.
    pub(super) fn probing(&self, site: &Site) {
        tracing::info!(event = "probe", domain = %site.key.key, host = %site.host, "{}: one probe decides", site.key.key);
        self.tell(EventKind::Probe, Some(site.key.key.clone()), "auto".to_owned(), format!("through {}", site.host));
    }

    /// Adds an event to the audit trail and to the live stream.
    pub fn tell(&self, kind: EventKind, domain: Option<DomainKey>, by: String, detail: String) {
        let shared = &self.0;
        let at = shared.clock.to_wall(shared.clock.now());
        let last = shared.last_event.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(at.max(last + 1)));
        let id = at.max(last.unwrap_or(0) + 1);
        let event = Event { id, at, kind, domain, by, detail };
        shared.store.append(event.clone());
        // nobody may be listening
        let _ = shared.events.send(event);
    }

    /// The live stream of events.
    pub fn subscribe(&self) -> broadcast::Receiver<Event> {
        self.0.events.subscribe()
    }

    /// Looks up what a refusal tells about the domain, and logs refusals: the first at once, the others
    /// summed up.
    pub(super) fn note_refusal(&self, site: &Site, reason: Reason, now: Micros) -> (Option<Opener>, Option<Cause>) {
        let mut shard = self.0.table.lock(&site.key.key);
        let Some(entry) = shard.find(&site.key.key) else { return (None, None) };
        let history = entry.history.get_or_insert_default();
        history.refused += 1;
        let told = (history.opened_by, history.last_status);
        if history.refusal_logged != 0 && now.saturating_sub(history.refusal_logged) < REFUSAL_LOG_EVERY {
            return told;
        }
        let count = std::mem::take(&mut history.refused);
        history.refusal_logged = now;
        drop(shard);
        tracing::info!(
            event = "refuse",
            domain = %site.key.key,
            reason = reason.label(),
            count,
            "{}: refusing ({})",
            site.key.key,
            reason.label()
        );
        told
    }
}

fn log_refusals(domain: &DomainKey, count: u64) {
    if count > 0 {
        tracing::info!(event = "refuse", %domain, count, "{domain}: {count} more refused");
    }
}
