//! The sharded table of domains: who is in it, and who may be forgotten.
//!
//! A domain that would answer every question as a fresh one does is not in the table. Nothing sweeps:
//! each insertion looks at two entries beside it and drops those that are fresh, so the table's size
//! follows rate × time and not the number of names ever seen.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;

use super::line::Waiter;
use crate::core::breaker::Breaker;
use crate::core::circuit::State;
use crate::core::key::DomainKey;
use crate::core::layers::Policies;
use crate::core::outcome::Cause;
use crate::core::policy::Policy;
use crate::core::row::Opener;
use crate::core::time::{Micros, SECOND};

const SHARDS: usize = 64;
/// How many entries are compared to find the one to evict.
const SAMPLE: usize = 32;
/// How long a row is shown after its last opening: 30 days.
pub const ROW_LIFE: u64 = 30 * 86_400 * SECOND;

/// What people want to know about a domain beyond what decides.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub opened_at: Micros,
    pub opened_by: Option<Opener>,
    pub last_status: Option<Cause>,
    pub last_host: Option<String>,
    pub trip_count: u64,
    /// Refusals since the last log line about them.
    pub refused: u64,
    pub refusal_logged: Micros,
}

/// One domain.
#[derive(Debug, Default)]
pub struct Entry {
    pub breaker: Breaker,
    pub section: Option<DomainKey>,
    pub history: Option<Box<History>>,
    /// Requests that wait for their turn, in order.
    pub line: VecDeque<Arc<Waiter>>,
}

impl Entry {
    pub fn policy<'a>(&self, key: &DomainKey, policies: &'a Policies) -> &'a Arc<Policy> {
        policies.effective(key, self.section.as_ref())
    }

    /// Lets the head of the line look again.
    pub fn wake_head(&self) {
        if let Some(head) = self.line.front() {
            head.wake.notify_one();
        }
    }

    /// Refusals since the last log line about them, which are told of now.
    pub fn take_refused(&mut self) -> u64 {
        self.history.as_mut().map_or(0, |history| std::mem::take(&mut history.refused))
    }

    /// True if the domain was opened in the last 30 days, or is open now.
    fn has_row(&self, now: Micros) -> bool {
        let opened = self.history.as_ref().map_or(0, |history| history.opened_at);
        self.breaker.circuit.opened_until > now || (opened != 0 && now.saturating_sub(opened) < ROW_LIFE)
    }

    fn is_forgettable(&self, policy: &Policy, now: Micros) -> bool {
        self.line.is_empty() && !self.has_row(now) && self.breaker.is_fresh(policy, now)
    }

    /// In which order entries go when the table is full; `None` never goes. What counts errors goes before
    /// what is owed to a budget. A circuit that waits for a probe goes last: nobody has asked for that domain
    /// since, and its row is in the store.
    fn eviction_rank(&self, policy: &Policy, now: Micros) -> Option<(u8, u64)> {
        let state = self.breaker.state(policy, now);
        if matches!(state, State::Open(_)) || !self.line.is_empty() || self.breaker.in_flight() > 0 {
            return None;
        }
        let class = match self.breaker.errors_in_window(policy, now) {
            _ if state == State::HalfOpen => 4,
            _ if self.has_row(now) => 3,
            _ if self.breaker.debt_until() > now => 2,
            0 => 0,
            _ => 1,
        };
        Some((class, self.breaker.debt_until()))
    }
}

type Entries = IndexMap<DomainKey, Entry, foldhash::fast::RandomState>;

/// One lock's worth of domains.
#[derive(Debug)]
pub struct Shard {
    entries: Entries,
    cursor: usize,
    capacity: usize,
}

/// What an insertion did to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// Nothing that mattered.
    Free,
    /// An entry that still mattered was dropped.
    Evicted,
    /// The table is full of what must be kept.
    Full,
}

impl Shard {
    pub fn find(&mut self, key: &DomainKey) -> Option<&mut Entry> {
        self.entries.get_mut(key)
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&DomainKey, &mut Entry)> {
        self.entries.iter_mut()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&DomainKey, &Entry)> {
        self.entries.iter()
    }

    /// After a reload: finds each entry's section again, and lets those who wait for what may be allowed now
    /// look again.
    pub fn take_up(&mut self, policies: &Policies) {
        for (key, entry) in &mut self.entries {
            entry.section = policies.keys.resolve_text(key.as_str()).ok().and_then(|resolved| resolved.section);
            entry.wake_head();
        }
    }

    /// The entry of `key`, made if need be. `None` with [`Room::Full`] where there is no room for it.
    pub fn find_or_insert(
        &mut self,
        key: &DomainKey,
        section: Option<&DomainKey>,
        policies: &Policies,
        now: Micros,
    ) -> (Option<&mut Entry>, Room) {
        let mut room = Room::Free;
        if !self.entries.contains_key(key) {
            self.tidy(policies, now);
            if self.entries.len() >= self.capacity {
                room = self.evict(policies, now);
                if room == Room::Full {
                    return (None, room);
                }
            }
        }
        let entry =
            self.entries.entry(key.clone()).or_insert_with(|| Entry { section: section.cloned(), ..Entry::default() });
        (Some(entry), room)
    }

    /// Looks at the next two entries and drops those that say nothing.
    fn tidy(&mut self, policies: &Policies, now: Micros) {
        for _ in 0..2.min(self.entries.len()) {
            self.cursor = if self.cursor >= self.entries.len() { 0 } else { self.cursor };
            let Some((key, entry)) = self.entries.get_index(self.cursor) else { return };
            if entry.is_forgettable(entry.policy(key, policies), now) {
                self.entries.swap_remove_index(self.cursor);
            } else {
                self.cursor += 1;
            }
        }
        if self.entries.len() * 4 < self.entries.capacity() {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    fn evict(&mut self, policies: &Policies, now: Micros) -> Room {
        let len = self.entries.len();
        let sampled = (0..SAMPLE.min(len)).map(|step| (self.cursor + step) % len);
        let victim = sampled
            .filter_map(|index| {
                let (key, entry) = self.entries.get_index(index)?;
                Some((entry.eviction_rank(entry.policy(key, policies), now)?, index))
            })
            .min();
        self.cursor = (self.cursor + SAMPLE) % len.max(1);
        let Some((_, index)) = victim else { return Room::Full };
        let forgotten = self.entries.swap_remove_index(index);
        let lossless = forgotten.is_some_and(|(key, entry)| entry.is_forgettable(entry.policy(&key, policies), now));
        if lossless { Room::Free } else { Room::Evicted }
    }
}

/// A shard on cache lines of its own: neighbours would slow each other down.
#[derive(Debug)]
#[repr(align(128))]
struct Apart(Mutex<Shard>);

/// All shards.
#[derive(Debug)]
pub struct Table {
    shards: Box<[Apart]>,
    hasher: foldhash::fast::RandomState,
}

impl Table {
    pub fn new(most: usize) -> Table {
        let capacity = most.div_ceil(SHARDS).max(1);
        let shard = || Apart(Mutex::new(Shard { entries: Entries::default(), cursor: 0, capacity }));
        Table { shards: (0..SHARDS).map(|_| shard()).collect(), hasher: Default::default() }
    }

    pub fn lock(&self, key: &DomainKey) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(key.as_str());
        lock(&self.shards[(hash >> 58) as usize % SHARDS])
    }

    /// Every shard in turn, each locked while it is looked at.
    pub fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.shards.iter().map(lock)
    }

    pub fn set_capacity(&self, most: usize) {
        for mut shard in self.each() {
            shard.capacity = most.div_ceil(SHARDS).max(1);
        }
    }

    pub fn len(&self) -> usize {
        self.each().map(|shard| shard.entries.len()).sum()
    }
}

fn lock(shard: &Apart) -> MutexGuard<'_, Shard> {
    // a panic elsewhere leaves plain numbers behind, and refusing fetches for it would be worse
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}
