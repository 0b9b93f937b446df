//! What waits to be written: at most one change a domain, and a bounded line of events.

use std::collections::{HashMap, VecDeque};

use crate::core::key::DomainKey;
use crate::core::row::{Event, Row};
use crate::core::time::Micros;

/// Events beyond this many push the oldest out: a disk that is away for long must not cost all memory.
pub(super) const MOST_EVENTS: usize = 10_000;

/// So many domains per generation are remembered in [`Versions`].
const GENERATION: usize = 8_192;

/// What is to become of a domain's row.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    Save(Box<Row>),
    Remove,
}

/// Everything that one transaction will write.
#[derive(Debug, Default)]
pub(super) struct Pending {
    pub rows: HashMap<DomainKey, Change>,
    pub events: VecDeque<Event>,
    /// Old rows are to be pruned as of this time.
    pub prune: Option<Micros>,
}

impl Pending {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.events.is_empty() && self.prune.is_none()
    }

    /// Adds an event; returns how many old ones that pushed out.
    pub fn push(&mut self, event: Event) -> u64 {
        self.events.push_back(event);
        self.trim()
    }

    /// Takes in what came later; returns how many events that pushed out.
    pub fn absorb(&mut self, later: Pending) -> u64 {
        if self.is_empty() {
            *self = later;
            return 0;
        }
        self.rows.extend(later.rows);
        self.events.extend(later.events);
        self.prune = later.prune.or(self.prune);
        self.trim()
    }

    fn trim(&mut self) -> u64 {
        let excess = self.events.len().saturating_sub(MOST_EVENTS);
        self.events.drain(..excess);
        excess as u64
    }
}

/// The newest version seen of each domain, so that a change which lost a race between two requests is
/// ignored even when the newer one is on disk already.
///
/// Such races last microseconds, so only the domains that changed lately are kept: two generations.
/// The file's own `version` column can't serve: another process that shares the file counts for itself.
#[derive(Debug, Default)]
pub(super) struct Versions {
    young: HashMap<DomainKey, u64>,
    old: HashMap<DomainKey, u64>,
}

impl Versions {
    /// True if `version` is not older than what was seen of `domain`; it is then remembered.
    pub fn admit(&mut self, domain: &DomainKey, version: u64) -> bool {
        if self.young.get(domain).or_else(|| self.old.get(domain)).is_some_and(|seen| version < *seen) {
            return false;
        }
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(domain.clone(), version);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::row::EventKind;

    fn event(id: u64) -> Event {
        let (by, detail) = ("auto".to_owned(), String::new());
        Event { id, at: id, kind: EventKind::Trip, domain: None, by, detail }
    }

    #[test]
    fn older_versions_are_refused_for_as_long_as_a_race_can_last() {
        let mut versions = Versions::default();
        let key = |n: usize| DomainKey::from_stored(&format!("d{n}.test"));
        assert!(versions.admit(&key(0), 5));
        assert!(!versions.admit(&key(0), 4));
        assert!(versions.admit(&key(0), 5), "the same one again is harmless");
        for n in 1..=GENERATION {
            assert!(versions.admit(&key(n), 1));
        }
        assert!(!versions.admit(&key(0), 4), "remembered across one generation");
        for n in 0..10 * GENERATION {
            versions.admit(&key(n), 9);
        }
        assert!(versions.young.len() + versions.old.len() <= 2 * GENERATION);
    }

    #[test]
    fn too_many_events_push_the_oldest_out_and_say_so() {
        let mut pending = Pending::default();
        let dropped: u64 = (0..MOST_EVENTS as u64 + 3).map(|id| pending.push(event(id))).sum();
        assert_eq!((dropped, pending.events.len()), (3, MOST_EVENTS));
        let mut later = Pending::default();
        later.push(event(77_777));
        assert_eq!(pending.absorb(later), 1);
        assert_eq!(pending.events.front().map(|e| e.id), Some(4));
        assert_eq!(pending.events.back().map(|e| e.id), Some(77_777));
    }

    #[test]
    fn the_later_change_of_a_domain_wins() {
        let key = DomainKey::from_stored("a.test");
        let (mut first, mut second) = (Pending::default(), Pending::default());
        first.rows.insert(key.clone(), Change::Save(Box::new(Row::new(key.clone()))));
        second.rows.insert(key.clone(), Change::Remove);
        assert_eq!(first.absorb(second), 0);
        assert_eq!(first.rows.get(&key), Some(&Change::Remove));
    }
}
