//! The gate: may this request go, and what does its answer change?
//!
//! [`Gate::admit`] gives a [`Permit`] or says why not; [`Gate::record`] takes what came of it. A permit that
//! is dropped counts as nothing and gives back what it held, so no way out of a request can leave a probe
//! or a place taken.
//!
//! The table is sharded and shared by all workers. A closed domain without errors and budget costs one
//! lookup and no memory. What a decision changes is logged, counted, stored and published after the
//! lock is gone; none of that makes a request wait.

mod acts;
mod effects;
mod line;
mod permit;
mod table;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::{ArcSwap, Guard};
use tokio::sync::broadcast;

pub use acts::{ActError, RowView};
pub use permit::Permit;
use permit::{HOMES, Home};

use crate::clock::Clock;
use crate::core::breaker::{Breaker, Recorded, Refusal, Ticket};
use crate::core::circuit::{Circuit, State};
use crate::core::key::{DomainKey, Host, Resolved};
use crate::core::layers::Policies;
use crate::core::outcome::{Cause, Outcome, Verdict};
use crate::core::policy::{Mode, Policy};
use crate::core::row::{Event, Opener, Row};
use crate::core::time::{Micros, SECOND, seconds_until};
use crate::metrics::{FailOpen, Metrics, Reason};
use crate::store::Store;
use table::{History, Room, Table};

/// Where a request goes: the host that is dialled, and the key that it is kept under.
#[derive(Clone, Debug)]
pub struct Site {
    /// The host, canonical.
    pub host: Host,
    /// The port that is dialled.
    pub port: u16,
    /// Key, section and the rule that matched.
    pub key: Resolved,
}

/// A refusal, with everything that the answer has to say.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// The domain.
    pub domain: DomainKey,
    /// Why.
    pub reason: Reason,
    /// When it would be admitted, wall time.
    pub retry_at: Micros,
    /// The same from now, in whole seconds, rounded up, at least 1.
    pub retry_after: u64,
    /// Who opened the circuit, if it is open.
    pub opened_by: Option<Opener>,
    /// The last answer that counted against the domain.
    pub last_status: Option<Cause>,
}

/// The gate. A cheap handle over shared state.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Shared>, Arc<[Arc<Home>]>);

#[derive(Debug)]
struct Shared {
    table: Table,
    policies: ArcSwap<Policies>,
    /// Rises with every change of the policies, so that a cached [`Site`] can be told to be stale.
    generation: AtomicUsize,
    clock: Clock,
    metrics: Arc<Metrics>,
    store: Store,
    events: broadcast::Sender<Event>,
    last_event: std::sync::atomic::AtomicU64,
    versions: std::sync::atomic::AtomicU64,
    max_waiting: AtomicUsize,
    /// One manual act at a time.
    acts: std::sync::Mutex<()>,
}

impl Shared {
    fn max_waiting(&self) -> usize {
        self.max_waiting.load(Ordering::Relaxed)
    }
}

/// What a gate is made of.
#[derive(Debug)]
pub struct Parts {
    /// Key rules and layers; overrides are taken from the rows.
    pub policies: Policies,
    /// Time.
    pub clock: Clock,
    /// Where it counts.
    pub metrics: Arc<Metrics>,
    /// Where it remembers.
    pub store: Store,
    /// What was remembered.
    pub rows: Vec<Row>,
    /// The last event's id.
    pub last_event: u64,
    /// At most this many domains in memory.
    pub max_tracked: usize,
    /// At most this many requests wait for one domain.
    pub max_waiting: usize,
}

impl Gate {
    /// A gate that knows what the store remembers.
    pub fn new(parts: Parts) -> Gate {
        let (clock, mut policies) = (parts.clock, parts.policies);
        let table = Table::new(parts.max_tracked);
        let mut versions = 0;
        for row in parts.rows {
            versions = versions.max(row.version);
            if let Some(patch) = &row.overrides {
                policies.set_override(&row.domain, Some(patch.clone()));
            }
            remember(&table, &policies, &clock, row);
        }
        let shared = Arc::new(Shared {
            table,
            policies: ArcSwap::from_pointee(policies),
            generation: AtomicUsize::new(1),
            clock,
            metrics: parts.metrics,
            store: parts.store,
            events: broadcast::channel(1_024).0,
            last_event: parts.last_event.into(),
            versions: versions.into(),
            max_waiting: AtomicUsize::new(parts.max_waiting),
            acts: std::sync::Mutex::default(),
        });
        let homes = (0..HOMES).map(|_| Arc::new(Home(shared.clone()))).collect();
        Gate(shared, homes)
    }

    /// The policies of this moment.
    pub fn policies(&self) -> Guard<Arc<Policies>> {
        self.0.policies.load()
    }

    /// Rises whenever [`Gate::site`] could give another answer than before.
    pub fn generation(&self) -> usize {
        self.0.generation.load(Ordering::Relaxed)
    }

    /// The time that the gate decides by, which tickets are dated in.
    pub fn now(&self) -> Micros {
        self.0.clock.now()
    }

    /// Wall time, as the gate's clock has it.
    pub fn wall_now(&self) -> Micros {
        self.0.clock.to_wall(self.0.clock.now())
    }

    /// How far the wall clock has been stepped since the start, in microseconds.
    pub fn wall_offset(&self) -> i64 {
        self.0.clock.wall_offset()
    }

    /// The site of a host and port.
    pub fn site(&self, host: Host, port: u16) -> Site {
        let key = self.0.policies.load().keys.resolve(&host, Some(port));
        Site { host, port, key }
    }

    /// Admits a request, after a wait where the policy allows one.
    pub async fn admit(&self, site: &Arc<Site>) -> Result<Permit, Box<Refused>> {
        match self.try_admit(site) {
            Ok(permit) => Ok(permit),
            Err(Denial::Final(refused)) => Err(refused),
            Err(Denial::Wait(waiter)) => self.wait(site, waiter).await,
        }
    }

    /// Admits a request now or refuses it.
    pub fn once(&self, site: &Arc<Site>) -> Result<Permit, Box<Refused>> {
        match self.decide(site) {
            Ok(permit) => Ok(permit),
            Err((policy, now, why)) => Err(self.refuse(site, &policy, now, why)),
        }
    }

    /// Admits a request that somebody else sends, now, or refuses it. The ticket holds no place among
    /// `max_in_flight`: nobody would give it back.
    pub fn admit_elsewhere(&self, site: &Arc<Site>) -> Result<Ticket, Box<Refused>> {
        self.once(site).map(Permit::into_ticket)
    }

    fn try_admit(&self, site: &Arc<Site>) -> Result<Permit, Denial> {
        let (policy, now, why) = match self.decide(site) {
            Ok(permit) => return Ok(permit),
            Err(refused) => refused,
        };
        let may_wait =
            !policy.max_wait.is_zero() && !matches!(why, Refusal::Open(_)) && !self.is_due(site, &policy, now);
        let why = match may_wait.then(|| self.join(site, &policy, now, why)) {
            Some(Ok(waiter)) => return Err(Denial::Wait(waiter)),
            Some(Err(why)) => why,
            None => why,
        };
        Err(Denial::Final(self.refuse(site, &policy, now, why)))
    }

    /// The one decision: a permit, or why not.
    fn decide(&self, site: &Arc<Site>) -> Result<Permit, (Arc<Policy>, Micros, Refusal)> {
        let shared = &self.0;
        let policies = shared.policies.load();
        let (key, section) = (&site.key.key, site.key.section.as_ref());
        let policy = policies.effective(key, section);
        if policy.mode == Mode::Off {
            let mut permit = self.permit(site, Ticket::plain(0));
            permit.counted = false;
            return Ok(permit);
        }
        let mut shard = shared.table.lock(key);
        let now = shared.clock.now();
        let entry = match shard.find(key) {
            None if policy.is_stateless() => return Ok(self.permit(site, Ticket::plain(now))),
            Some(entry) => entry,
            None => match self.entry(&mut shard, site, &policies, now) {
                Some(entry) => entry,
                None => return Ok(self.permit(site, Ticket::plain(now))),
            },
        };
        let admitted = if entry.line.is_empty() || policy.mode == Mode::Report {
            entry.breaker.admit(policy, now, None)
        } else {
            // who comes later does not go first
            Err(match entry.breaker.open_refusal(policy, now) {
                Some(refusal) => refusal,
                None if policy.interval().is_none() => Refusal::Busy,
                None => Refusal::Throttled(behind(entry, policy, now)),
            })
        };
        let is_probe = admitted.as_ref().is_ok_and(|ticket| ticket.token.is_some());
        drop(shard);
        if is_probe {
            self.probing(site);
        }
        match admitted {
            Ok(ticket) => Ok(self.permit(site, ticket)),
            Err(why) if policy.mode == Mode::Report => {
                shared.metrics.would_refuse[reason(why)].inc();
                Ok(self.permit(site, Ticket::plain(now)))
            }
            Err(why) => Err((policy.clone(), now, why)),
        }
    }

    /// True if the circuit waits for a probe: a probe never waits.
    fn is_due(&self, site: &Site, policy: &Policy, now: Micros) -> bool {
        let mut shard = self.0.table.lock(&site.key.key);
        shard.find(&site.key.key).is_some_and(|entry| entry.breaker.state(policy, now) == State::HalfOpen)
    }

    fn entry<'a>(
        &self,
        shard: &'a mut table::Shard,
        site: &Site,
        policies: &Policies,
        now: Micros,
    ) -> Option<&'a mut table::Entry> {
        let (entry, room) = shard.find_or_insert(&site.key.key, site.key.section.as_ref(), policies, now);
        match room {
            Room::Free => {}
            Room::Evicted => self.0.metrics.lossy_evictions.inc(),
            Room::Full => self.0.metrics.failed_open[FailOpen::Table].inc(),
        }
        entry
    }

    fn permit(&self, site: &Arc<Site>, ticket: Ticket) -> Permit {
        let home = ticket.holds().then(|| self.1[permit::thread() % HOMES].clone());
        Permit::new(site.clone(), ticket, home)
    }

    /// Counts what came of a permit. The verdict falls when the response head arrives, once.
    pub fn record(&self, permit: &mut Permit, outcome: Outcome) {
        if permit.counted && !permit.recorded {
            permit.recorded = self.record_ticket(&permit.site, &permit.ticket, outcome);
        }
    }

    /// Counts what came of a ticket that was carried elsewhere. False if it says nothing either way.
    pub fn record_ticket(&self, site: &Site, ticket: &Ticket, outcome: Outcome) -> bool {
        let shared = &self.0;
        let policies = shared.policies.load();
        let (key, section) = (&site.key.key, site.key.section.as_ref());
        let policy = policies.effective(key, section);
        let verdict = policy.errors.verdict(outcome);
        let says_nothing = verdict == Verdict::Success && ticket.token.is_none() && policy.min_error_ratio == 0.0;
        if policy.mode == Mode::Off || verdict == Verdict::NotCounted || says_nothing {
            return says_nothing;
        }
        let mut shard = shared.table.lock(key);
        let now = shared.clock.now();
        let Some(entry) = self.entry(&mut shard, site, &policies, now) else { return true };
        let recorded = entry.breaker.record(policy, now, ticket, outcome);
        if recorded == Recorded::Nothing {
            return true;
        }
        if verdict == Verdict::Error {
            let history = entry.history.get_or_insert_default();
            history.last_status = cause(outcome);
            history.last_host = Some(site.host.to_string());
        }
        let change = match recorded {
            Recorded::Changed(transition) => Some(self.changed(key, entry, &policies, now, transition)),
            _ => None,
        };
        drop(shard);
        if verdict == Verdict::Error {
            shared.metrics.domain_error(key, change.is_some() || policies.names(key));
        }
        if let Some(change) = change {
            self.publish(change);
        }
        true
    }

    /// Makes a refusal of why, counting and (now and then) logging it.
    fn refuse(&self, site: &Site, policy: &Policy, now: Micros, why: Refusal) -> Box<Refused> {
        let shared = &self.0;
        let reason = reason(why);
        shared.metrics.refusals[reason].inc();
        let mut until = match why {
            Refusal::Open(until) | Refusal::Throttled(until) => until,
            Refusal::Busy => now,
        };
        if reason == Reason::Throttled {
            until = until.saturating_add(fastrand::u64(0..=policy.retry_jitter.micros()));
        }
        let retry_after = seconds_until(until, now);
        let (opened_by, last_status) = self.note_refusal(site, reason, now);
        Box::new(Refused {
            domain: site.key.key.clone(),
            reason,
            retry_at: shared.clock.to_wall(until.max(now.saturating_add(SECOND))),
            retry_after,
            opened_by: opened_by.filter(|_| reason == Reason::Open),
            last_status: last_status.filter(|_| reason == Reason::Open),
        })
    }
}

/// Why a request may not go at once.
enum Denial {
    Final(Box<Refused>),
    Wait(Arc<line::Waiter>),
}

fn behind(entry: &table::Entry, policy: &Policy, now: Micros) -> Micros {
    let before = (entry.line.len() as u64).saturating_mul(policy.interval().unwrap_or(0));
    entry.breaker.next_slot(policy, now).saturating_add(before)
}

fn reason(why: Refusal) -> Reason {
    match why {
        Refusal::Open(_) => Reason::Open,
        Refusal::Throttled(_) => Reason::Throttled,
        Refusal::Busy => Reason::Busy,
    }
}

fn cause(outcome: Outcome) -> Option<Cause> {
    match outcome {
        Outcome::Status { code, .. } => Some(Cause::Status(code)),
        Outcome::Failure(failure) => Some(Cause::Failure(failure)),
        Outcome::Connected | Outcome::NotCounted => None,
    }
}

/// Puts a stored row into the table.
fn remember(table: &Table, policies: &Policies, clock: &Clock, row: Row) {
    let now = clock.now();
    let section = policies.keys.resolve_text(row.domain.as_str()).ok().and_then(|resolved| resolved.section);
    let circuit = Circuit {
        opened_until: clock.from_wall(row.opened_until),
        opened_for: row.opened_for,
        closed_at: clock.from_wall(row.closed_at),
        strikes: row.strikes,
    };
    let mut shard = table.lock(&row.domain);
    let (Some(entry), _) = shard.find_or_insert(&row.domain, section.as_ref(), policies, now) else { return };
    entry.breaker = Breaker::with_circuit(circuit);
    entry.history = Some(Box::new(History {
        opened_at: clock.from_wall(row.opened_at),
        opened_by: row.opened_by,
        last_status: row.last_status,
        last_host: row.last_host,
        trip_count: row.trip_count,
        ..History::default()
    }));
}
