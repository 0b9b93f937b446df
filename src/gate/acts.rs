//! What people do to domains, and what they see of them: open, close, override, delete, list, look up.

use std::sync::{Arc, PoisonError};

use super::effects::Change;
use super::table::{Entry, ROW_LIFE, Room};
use super::{Gate, Site};
use crate::core::breaker::Refusal;
use crate::core::circuit::State;
use crate::core::key::{DomainKey, Resolved};
use crate::core::layers::Policies;
use crate::core::outcome::Cause;
use crate::core::policy::{Mode, Policy, PolicyPatch, PolicySources};
use crate::core::row::{EventKind, Opener};
use crate::core::time::{Micros, Span};
use crate::metrics::Scrape;
use crate::store::StoreState;

/// Why a manual act could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ActError {
    /// More domains than may be tracked, all of them open.
    #[error("the table is full of open circuits: raise limits.max_tracked_domains")]
    TableFull,
    /// `key` decides how rows are named, so it can't change under them.
    #[error("`key` can only be set in the configuration file")]
    KeyIsFixed,
}

/// One domain as people see it. Times are wall time.
#[derive(Clone, Debug)]
pub struct RowView {
    /// The key.
    pub domain: DomainKey,
    /// Its state now.
    pub state: State,
    /// When the circuit was last opened; 0 = never.
    pub opened_at: Micros,
    /// When the opening ends or ended; 0 = closed.
    pub opened_until: Micros,
    /// Who opened it last.
    pub opened_by: Option<Opener>,
    /// The last answer that counted.
    pub last_status: Option<Cause>,
    /// The host that gave it.
    pub last_host: Option<String>,
    /// Automatic openings so far.
    pub trip_count: u64,
    /// Errors in the window now.
    pub errors_in_window: usize,
    /// What applies.
    pub policy: Policy,
    /// Where each value came from.
    pub sources: PolicySources,
}

impl Gate {
    /// Opens a circuit by hand for `length` (none: the policy's `open_for`), or restarts its clock.
    pub fn open(&self, key: &Resolved, length: Option<Span>, by: &str) -> Result<RowView, ActError> {
        self.act(key, by, EventKind::Open, |entry, policy, now| {
            let length = length.unwrap_or(policy.open_for);
            entry.breaker.open(now, length.micros());
            let history = entry.history.get_or_insert_default();
            history.opened_at = now;
            history.opened_by = Some(Opener::Manual);
            for waiter in &entry.line {
                waiter.wake.notify_one();
            }
            format!("open for {length}")
        })
    }

    /// Closes a circuit by hand and forgets errors and budget. `trip_count` stays.
    pub fn close(&self, key: &Resolved, by: &str) -> Result<RowView, ActError> {
        self.act(key, by, EventKind::Close, |entry, _, now| {
            entry.breaker.close_by_hand(now);
            entry.wake_head();
            "closed by hand".to_owned()
        })
    }

    fn act(
        &self,
        key: &Resolved,
        by: &str,
        kind: EventKind,
        change: impl FnOnce(&mut Entry, &Policy, Micros) -> String,
    ) -> Result<RowView, ActError> {
        let shared = &self.0;
        let _one_at_a_time = shared.acts.lock().unwrap_or_else(PoisonError::into_inner);
        let policies = shared.policies.load();
        let mut shard = shared.table.lock(&key.key);
        let now = shared.clock.now();
        let (entry, room) = shard.find_or_insert(&key.key, key.section.as_ref(), &policies, now);
        if room == Room::Evicted {
            shared.metrics.lossy_evictions.inc();
        }
        let entry = entry.ok_or(ActError::TableFull)?;
        let policy = policies.effective(&key.key, key.section.as_ref());
        let detail = change(entry, policy, now);
        let refused = entry.take_refused();
        let row = self.row(&key.key, entry, &policies);
        let view = self.view(&key.key, entry, &policies, now);
        drop(shard);
        self.publish(Change { row, kind, by: by.to_owned(), detail, refused });
        Ok(view)
    }

    /// Changes the overrides of a domain with `edit`, which sees the present ones.
    pub fn set_override(
        &self,
        key: &Resolved,
        edit: impl FnOnce(&mut PolicyPatch),
        by: &str,
    ) -> Result<RowView, ActError> {
        let shared = &self.0;
        let one_at_a_time = shared.acts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut policies = Policies::clone(&shared.policies.load());
        let mut patch = policies.override_of(&key.key).cloned().unwrap_or_default();
        edit(&mut patch);
        if patch.key.is_some() {
            return Err(ActError::KeyIsFixed);
        }
        let detail = match serde_json::to_string(&patch) {
            Ok(text) if !patch.is_empty() => format!("overrides are now {text}"),
            _ => "no overrides any more".to_owned(),
        };
        policies.set_override(&key.key, Some(patch));
        shared.policies.store(Arc::new(policies));
        drop(one_at_a_time);
        self.act(key, by, EventKind::Override, |entry, _, _| {
            // a waiter may have waited for what is allowed now
            entry.wake_head();
            detail
        })
    }

    /// Back to the configured policy, closed, the row gone. True if there was one.
    pub fn delete(&self, key: &Resolved, by: &str) -> bool {
        let shared = &self.0;
        let _one_at_a_time = shared.acts.lock().unwrap_or_else(PoisonError::into_inner);
        let mut policies = Policies::clone(&shared.policies.load());
        let overridden = policies.override_of(&key.key).is_some();
        policies.set_override(&key.key, None);
        shared.policies.store(Arc::new(policies));
        let mut shard = shared.table.lock(&key.key);
        let now = shared.clock.now();
        let had_row = match shard.find(&key.key) {
            None => overridden,
            Some(entry) => {
                let had_row = overridden || entry.history.is_some();
                entry.breaker.close_by_hand(now);
                entry.history = None;
                entry.wake_head();
                had_row
            }
        };
        let version = self.next_version();
        drop(shard);
        shared.store.remove(key.key.clone(), version);
        if had_row {
            tracing::info!(event = "delete", domain = %key.key, by, "{}: row deleted", key.key);
            self.tell(EventKind::Delete, Some(key.key.clone()), by.to_owned(), "row deleted".to_owned());
        }
        had_row
    }

    /// Puts the layers of a new configuration in place. State and overrides are kept.
    pub fn reload(&self, mut policies: Policies, max_tracked: usize, max_waiting: usize) {
        let shared = &self.0;
        let _one_at_a_time = shared.acts.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, patch) in shared.policies.load().overrides() {
            policies.set_override(key, Some(patch.clone()));
        }
        let policies = Arc::new(policies);
        shared.policies.store(policies.clone());
        for mut shard in shared.table.each() {
            shard.take_up(&policies);
        }
        shared.table.set_capacity(max_tracked);
        shared.max_waiting.store(max_waiting, std::sync::atomic::Ordering::Relaxed);
        shared.generation.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// Every row, sorted by name.
    pub fn rows(&self) -> Vec<RowView> {
        let shared = &self.0;
        let policies = shared.policies.load();
        let now = shared.clock.now();
        let mut rows = Vec::new();
        for shard in shared.table.each() {
            rows.extend(
                shard
                    .iter()
                    .filter(|(key, entry)| self.is_row(key, entry, &policies, now))
                    .map(|(key, entry)| self.view(key, entry, &policies, now)),
            );
        }
        // an override may stand alone, its entry forgotten
        for key in policies.overrides().keys() {
            if shared.table.lock(key).find(key).is_none() {
                rows.push(self.view(key, &self.absent(key, &policies), &policies, now));
            }
        }
        rows.sort_by(|a, b| a.domain.cmp(&b.domain));
        rows
    }

    /// The row of one domain, if it has one.
    pub fn row_of(&self, key: &Resolved) -> Option<RowView> {
        let shared = &self.0;
        let policies = shared.policies.load();
        let now = shared.clock.now();
        let mut shard = shared.table.lock(&key.key);
        match shard.find(&key.key) {
            Some(entry) if self.is_row(&key.key, entry, &policies, now) => {
                Some(self.view(&key.key, entry, &policies, now))
            }
            _ if policies.override_of(&key.key).is_some() => {
                drop(shard);
                Some(self.view(&key.key, &self.absent(&key.key, &policies), &policies, now))
            }
            _ => None,
        }
    }

    /// The state of a domain and when it may be fetched next (wall time), changing nothing.
    pub fn look_up(&self, site: &Site) -> (State, Option<Micros>) {
        let shared = &self.0;
        let policies = shared.policies.load();
        let policy = policies.effective(&site.key.key, site.key.section.as_ref());
        let mut shard = shared.table.lock(&site.key.key);
        let now = shared.clock.now();
        let Some(entry) = shard.find(&site.key.key) else { return (State::Closed, None) };
        let state = entry.breaker.state(policy, now);
        let at = match entry.breaker.open_refusal(policy, now) {
            Some(Refusal::Open(until)) => until,
            _ => super::behind(entry, policy, now),
        };
        (state, (at > now && policy.mode == Mode::Enforce).then(|| shared.clock.to_wall(at)))
    }

    /// What `/metrics` shows of the table and the store.
    pub fn scrape(&self) -> Scrape {
        let shared = &self.0;
        let policies = shared.policies.load();
        let now = shared.clock.now();
        let mut states = Vec::new();
        for shard in shared.table.each() {
            for (key, entry) in shard.iter() {
                let state = entry.breaker.state(entry.policy(key, &policies), now);
                if state != State::Closed || policies.names(key) {
                    states.push((key.clone(), state));
                }
            }
        }
        states.sort_by_key(|(_, state)| matches!(state, State::Closed));
        Scrape {
            tracked: shared.table.len(),
            states,
            store_state: match shared.store.state() {
                StoreState::Ok => 1,
                StoreState::Memory => 0,
                StoreState::Degraded(_) => -1,
            },
            store_writes: [shared.store.writes_ok(), shared.store.writes_failed()],
        }
    }

    /// Writes every row that is not closed again, with the wall clock's present offset.
    pub fn store_again(&self) {
        let policies = self.0.policies.load();
        for shard in self.0.table.each() {
            for (key, entry) in shard.iter().filter(|(_, entry)| entry.breaker.circuit.opened_until != 0) {
                self.0.store.save(self.row(key, entry, &policies));
            }
        }
    }

    fn absent(&self, key: &DomainKey, policies: &Policies) -> Entry {
        let resolved = policies.keys.resolve_text(key.as_str()).ok();
        Entry { section: resolved.and_then(|resolved| resolved.section), ..Entry::default() }
    }

    fn is_row(&self, key: &DomainKey, entry: &Entry, policies: &Policies, now: Micros) -> bool {
        let opened = entry.history.as_ref().map_or(0, |history| history.opened_at);
        entry.breaker.state(entry.policy(key, policies), now) != State::Closed
            || (opened != 0 && now.saturating_sub(opened) < ROW_LIFE)
            || policies.override_of(key).is_some()
            || entry.breaker.errors_in_window(entry.policy(key, policies), now) > 0
    }

    fn view(&self, key: &DomainKey, entry: &Entry, policies: &Policies, now: Micros) -> RowView {
        let clock = &self.0.clock;
        let history = entry.history.as_deref().cloned().unwrap_or_default();
        let resolved = policies.keys.resolve_text(key.as_str());
        let (policy, sources) = match &resolved {
            Ok(resolved) => policies.describe(&Resolved { key: key.clone(), ..resolved.clone() }),
            Err(_) => (Policy::clone(entry.policy(key, policies)), PolicySources::default()),
        };
        let state = entry.breaker.state(&policy, now);
        let until = match state {
            State::Closed => 0,
            _ => entry.breaker.circuit.opened_until,
        };
        RowView {
            domain: key.clone(),
            state,
            opened_at: clock.to_wall(history.opened_at),
            opened_until: clock.to_wall(until),
            opened_by: history.opened_by,
            last_status: history.last_status,
            last_host: history.last_host,
            trip_count: history.trip_count,
            errors_in_window: entry.breaker.errors_in_window(&policy, now),
            policy,
            sources,
        }
    }
}
