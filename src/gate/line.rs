//! Waiting for one's turn: a bounded first-come line per domain.
//!
//! Only the head of the line looks at the budget and at the places; the others sleep until they are the
//! head. A client that goes away takes its waiter out of the line and has spent nothing.

use std::sync::Arc;
use std::sync::OnceLock;

use tokio::sync::Notify;

use super::{Gate, Permit, Refused, Site};
use crate::core::breaker::Refusal;
use crate::core::policy::{Mode, Policy};
use crate::core::time::{Micros, Span};

/// A head that wakes no later than this after its slot still goes in that slot, so that the timer's
/// coarseness does not add up over a long line.
const ON_TIME: u64 = 5_000;

/// One request in a line.
#[derive(Debug)]
pub struct Waiter {
    /// Told when it may be the head, when a place falls free and when the circuit opens.
    pub wake: Notify,
    /// The slot that it was given when it became the head.
    slot: OnceLock<Micros>,
    deadline: Micros,
}

/// What a waiter does next.
enum Turn {
    Go(Permit),
    Refused(Box<Refused>),
    /// Look again then, or when told.
    Sleep(Micros),
}

/// Takes its waiter out of the line, however the wait ends.
struct InLine<'a> {
    gate: &'a Gate,
    site: &'a Arc<Site>,
    waiter: Arc<Waiter>,
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        let shared = &self.gate.0;
        shared.metrics.waiting.dec();
        let mut shard = shared.table.lock(&self.site.key.key);
        let Some(entry) = shard.find(&self.site.key.key) else { return };
        entry.line.retain(|other| !Arc::ptr_eq(other, &self.waiter));
        entry.wake_head();
    }
}

impl Gate {
    /// Joins the line of a domain, if the turn could come in time.
    pub(super) fn join(
        &self,
        site: &Arc<Site>,
        policy: &Policy,
        now: Micros,
        why: Refusal,
    ) -> Result<Arc<Waiter>, Refusal> {
        let max_wait = policy.max_wait.micros();
        let shared = &self.0;
        let mut shard = shared.table.lock(&site.key.key);
        let policies = shared.policies.load();
        let (Some(entry), _) = shard.find_or_insert(&site.key.key, site.key.section.as_ref(), &policies, now) else {
            return Err(why);
        };
        if let Some(refusal) = entry.breaker.open_refusal(policy, now) {
            return Err(refusal);
        }
        let before = entry.line.len() as u64;
        let interval = policy.interval().unwrap_or(0);
        let turn = entry.breaker.next_slot(policy, now).saturating_add(before.saturating_mul(interval));
        let refusal = if why == Refusal::Busy { why } else { Refusal::Throttled(turn) };
        if turn - now > max_wait || entry.line.len() >= shared.max_waiting() {
            return Err(refusal);
        }
        let waiter =
            Arc::new(Waiter { wake: Notify::new(), slot: OnceLock::new(), deadline: now.saturating_add(max_wait) });
        entry.line.push_back(waiter.clone());
        Ok(waiter)
    }

    /// Waits in the line until admitted or refused.
    pub(super) async fn wait(&self, site: &Arc<Site>, waiter: Arc<Waiter>) -> Result<Permit, Box<Refused>> {
        self.0.metrics.waiting.inc();
        let started = self.0.clock.now();
        let place = InLine { gate: self, site, waiter };
        let result = loop {
            match self.turn(site, &place.waiter) {
                Turn::Go(permit) => break Ok(permit),
                Turn::Refused(refused) => break Err(refused),
                Turn::Sleep(until) => {
                    let pause = Span(until.saturating_sub(self.0.clock.now()).max(100));
                    let _ = tokio::time::timeout(pause.into(), place.waiter.wake.notified()).await;
                }
            }
        };
        drop(place);
        let waited = self.0.clock.now().saturating_sub(started);
        self.0.metrics.wait_seconds.observe(waited as f64 / 1e6);
        result.map(|mut permit| {
            permit.waited = waited;
            permit
        })
    }

    fn turn(&self, site: &Arc<Site>, waiter: &Arc<Waiter>) -> Turn {
        let shared = &self.0;
        let policies = shared.policies.load();
        let policy = policies.effective(&site.key.key, site.key.section.as_ref());
        let mut shard = shared.table.lock(&site.key.key);
        let now = shared.clock.now();
        let Some(entry) = shard.find(&site.key.key) else {
            // the row was deleted meanwhile: start again as a newcomer
            drop(shard);
            return self.once(site).map_or_else(Turn::Refused, Turn::Go);
        };
        if policy.mode != Mode::Enforce {
            drop(shard);
            return self.once(site).map_or_else(Turn::Refused, Turn::Go);
        }
        entry.breaker.heed_clock(policy, now);
        if let Some(refusal) = entry.breaker.open_refusal(policy, now) {
            drop(shard);
            return Turn::Refused(self.refuse(site, policy, now, refusal));
        }
        if !entry.line.front().is_some_and(|head| Arc::ptr_eq(head, waiter)) {
            return if now >= waiter.deadline {
                self.too_late(site, policy, now, shard)
            } else {
                Turn::Sleep(waiter.deadline)
            };
        }
        // a close by hand, a change of the budget or a unit given back may have made the turn come sooner
        let free = entry.breaker.next_slot(policy, now);
        let slot = free.min(*waiter.slot.get_or_init(|| free));
        if slot > waiter.deadline {
            return self.too_late(site, policy, now, shard);
        }
        if slot > now {
            return Turn::Sleep(slot);
        }
        let slot = if now - slot <= ON_TIME { slot } else { now };
        match entry.breaker.admit(policy, now, Some(slot)) {
            Ok(ticket) => {
                drop(shard);
                if ticket.token.is_some() {
                    self.probing(site);
                }
                Turn::Go(self.permit(site, ticket))
            }
            Err(Refusal::Busy) if now < waiter.deadline => Turn::Sleep(waiter.deadline),
            Err(why) => {
                drop(shard);
                Turn::Refused(self.refuse(site, policy, now, why))
            }
        }
    }

    fn too_late(
        &self,
        site: &Arc<Site>,
        policy: &Policy,
        now: Micros,
        mut shard: std::sync::MutexGuard<'_, super::table::Shard>,
    ) -> Turn {
        let why = match shard.find(&site.key.key) {
            Some(entry) if policy.interval().is_some() => Refusal::Throttled(entry.breaker.next_slot(policy, now)),
            _ => Refusal::Busy,
        };
        drop(shard);
        Turn::Refused(self.refuse(site, policy, now, why))
    }
}
