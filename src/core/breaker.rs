//! One domain: circuit, error window, budget and places, and the two decisions about them.
//!
//! [`Breaker::admit`] answers "may this request go now?", [`Breaker::record`] "what does this answer
//! change?". Both are pure: the gate owns the lock around them, and carries out what they return.

use super::budget::Budget;
use super::circuit::{Circuit, State, opening_length};
use super::outcome::{Outcome, Verdict};
use super::policy::{Policy, RetryAfterMode};
use super::row::Opener;
use super::time::{Micros, SECOND};
use super::window::{Traffic, Window};

/// Why a request is refused, and when it would not be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The circuit is open; it and the budget let a request through then.
    Open(Micros),
    /// The budget is spent until then.
    Throttled(Micros),
    /// As many requests are in flight as may be.
    Busy,
}

/// Proof of admission: what a result must show to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    /// When the request was admitted.
    pub admitted_at: Micros,
    /// Set if it is the probe: the value that the circuit's timestamp must still have.
    pub token: Option<Micros>,
    /// The slot of the budget that it spent.
    pub slot: Option<Micros>,
    /// Whether it holds a place, to be given back when body, tunnel or upgrade end.
    pub placed: bool,
}

impl Ticket {
    /// A ticket that holds nothing.
    pub const fn plain(admitted_at: Micros) -> Ticket {
        Ticket { admitted_at, token: None, slot: None, placed: false }
    }

    /// True if something has to be given back at the end.
    pub const fn holds(&self) -> bool {
        self.token.is_some() || self.slot.is_some() || self.placed
    }
}

/// What a result did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// Nothing: not counted, late, or a success that changes nothing.
    Nothing,
    /// One more error in the window.
    Counted,
    /// It changed the circuit. Only the caller that gets this tells the world.
    Changed(Transition),
}

/// A change of the circuit that a result made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// A closed circuit opened until then.
    Tripped(Micros, Opener),
    /// The probe failed; open until then.
    Reopened(Micros),
    /// The probe succeeded.
    Closed,
}

/// The state of one domain.
#[derive(Clone, Debug, Default)]
pub struct Breaker {
    /// Open, half-open or closed.
    pub circuit: Circuit,
    window: Window,
    traffic: Option<Box<Traffic>>,
    budget: Budget,
    in_flight: u32,
}

impl Breaker {
    /// A breaker with this circuit, as the store remembers it.
    pub fn with_circuit(circuit: Circuit) -> Breaker {
        Breaker { circuit, ..Breaker::default() }
    }

    /// Admits a request now, or says why not. Never waits. The order is open, budget, places, claim of
    /// the probe: a claim before the budget check would strand probes. A refusal changes nothing.
    ///
    /// `reserved` is the slot that the head of the waiting line has come to; others pass `None`.
    pub fn admit(&mut self, policy: &Policy, now: Micros, reserved: Option<Micros>) -> Result<Ticket, Refusal> {
        self.heed_clock(policy, now);
        if let Some(refusal) = self.open_refusal(policy, now) {
            return Err(refusal);
        }
        let state = self.state(policy, now);
        let interval = policy.interval();
        let slot = match (interval, reserved) {
            (None, _) => None,
            (Some(_), Some(slot)) => Some(slot),
            (Some(interval), None) => Some(self.budget.slot(now, interval, policy.max_wait.micros())),
        };
        if let (Some(slot), None) = (slot, reserved)
            && slot > now
        {
            return Err(Refusal::Throttled(slot));
        }
        let placed = policy.max_in_flight.number();
        if placed.is_some_and(|most| self.in_flight >= most) {
            return Err(Refusal::Busy);
        }
        let placed = placed.is_some();
        if let (Some(slot), Some(interval)) = (slot, interval) {
            self.budget.take(slot, interval);
        }
        let token = (state == State::HalfOpen).then(|| self.circuit.claim(now, policy.probe_timeout.micros()));
        self.in_flight = self.in_flight.saturating_add(u32::from(placed));
        Ok(Ticket { admitted_at: now, token, slot, placed })
    }

    /// The refusal while the circuit is open. An opening may be over before the budget's debt is paid, and
    /// a client that comes back when told to must be admitted: so it names the later of the two.
    pub fn open_refusal(&self, policy: &Policy, now: Micros) -> Option<Refusal> {
        match self.state(policy, now) {
            State::Open(until) => Some(Refusal::Open(until.max(self.next_slot(policy, now)))),
            _ => None,
        }
    }

    /// Takes back what a clock that stepped back has made of the state: no opening lasts longer than it was
    /// made, no close lies ahead, no debt is larger than one request and its wait. It is stored, since a
    /// bound that moved along with the clock would bound nothing. Without a step it changes nothing.
    pub fn heed_clock(&mut self, policy: &Policy, now: Micros) {
        self.circuit.heed_clock(now);
        if let Some(interval) = policy.interval() {
            self.budget.heed_clock(now, interval, policy.max_wait.micros());
        }
    }

    /// When the next request that waits may go, as far as the budget goes.
    pub fn next_slot(&self, policy: &Policy, now: Micros) -> Micros {
        policy.interval().map_or(now, |interval| self.budget.slot(now, interval, policy.max_wait.micros()))
    }

    /// Counts an answer. The verdict falls at the response head; `retry_after` has been clamped.
    pub fn record(&mut self, policy: &Policy, now: Micros, ticket: &Ticket, outcome: Outcome) -> Recorded {
        let verdict = policy.errors.verdict(outcome);
        if verdict == Verdict::NotCounted {
            return Recorded::Nothing;
        }
        self.circuit.settle(now, policy.half_open);
        match ticket.token {
            Some(token) if self.circuit.opened_until != token => Recorded::Nothing,
            Some(_) if verdict == Verdict::Success => {
                self.close(now);
                Recorded::Changed(Transition::Closed)
            }
            Some(_) => Recorded::Changed(self.reopen(policy, now, outcome)),
            None => {
                self.heed_clock(policy, now);
                if self.circuit.is_late(ticket.admitted_at) {
                    return Recorded::Nothing;
                }
                self.count(policy, now, outcome, verdict)
            }
        }
    }

    fn count(&mut self, policy: &Policy, now: Micros, outcome: Outcome, verdict: Verdict) -> Recorded {
        let window = policy.window.micros();
        let is_error = verdict == Verdict::Error;
        if policy.min_error_ratio > 0.0 {
            self.traffic.get_or_insert_default().note(now, window, is_error);
        } else {
            self.traffic = None;
        }
        if !is_error {
            return Recorded::Nothing;
        }
        let exceeded = self.window.error(now, policy.max_errors, window)
            && self.traffic.as_mut().is_none_or(|t| t.reaches(now, window, policy.min_error_ratio));
        let asked = retry_after(policy, outcome);
        let opener = match asked {
            _ if exceeded => Opener::Auto,
            Some(asked) if policy.retry_after == RetryAfterMode::Obey && asked >= SECOND => Opener::RetryAfter,
            _ => return Recorded::Counted,
        };
        let cap = policy.max_open_for.micros();
        let open_for = if opener == Opener::Auto { policy.open_for.micros() } else { 0 };
        let until = self.open(now, opening_length(open_for, 1.0, 0, asked, cap));
        Recorded::Changed(Transition::Tripped(until, opener))
    }

    fn reopen(&mut self, policy: &Policy, now: Micros, outcome: Outcome) -> Transition {
        let strikes = self.circuit.strikes.saturating_add(1);
        let length = opening_length(
            policy.open_for.micros(),
            policy.open_growth,
            strikes,
            retry_after(policy, outcome),
            policy.max_open_for.micros(),
        );
        let until = self.open(now, length);
        self.circuit.strikes = strikes;
        Transition::Reopened(until)
    }

    /// Opens until `now + length` and clears what was counted. Returns the end.
    pub fn open(&mut self, now: Micros, length: u64) -> Micros {
        self.circuit.open(now, length);
        self.circuit.strikes = 0;
        self.forget_errors();
        self.circuit.opened_until
    }

    /// A success of the probe: the circuit closes, the errors are forgotten.
    fn close(&mut self, now: Micros) {
        self.circuit.close(now);
        self.forget_errors();
    }

    /// A close by hand: the budget's memory goes too. Results of requests admitted before don't count.
    pub fn close_by_hand(&mut self, now: Micros) {
        self.close(now);
        self.budget.clear();
    }

    fn forget_errors(&mut self) {
        self.window.clear();
        self.traffic = None;
    }

    /// A permit ends: its place is free, and what was claimed but not used is given back.
    ///
    /// `sent` says whether anything may have reached the upstream; `charged` whether the budget stays spent.
    pub fn release(&mut self, policy: &Policy, now: Micros, ticket: &Ticket, sent: bool, charged: bool) {
        self.in_flight = self.in_flight.saturating_sub(u32::from(ticket.placed));
        if let (Some(token), false) = (ticket.token, sent) {
            self.circuit.unclaim(now, token);
        }
        if let (Some(slot), Some(interval), false) = (ticket.slot, policy.interval(), charged) {
            self.budget.give_back(slot, interval);
        }
    }

    /// The state at `now`.
    pub fn state(&self, policy: &Policy, now: Micros) -> State {
        self.circuit.state(now, policy.half_open)
    }

    /// Errors in the window.
    pub fn errors_in_window(&self, policy: &Policy, now: Micros) -> usize {
        let window = policy.window.micros();
        match &self.traffic {
            // a ratio lets more errors be than the ring keeps
            Some(traffic) => traffic.clone().totals(now, window).0 as usize,
            None => self.window.count(now, window),
        }
    }

    /// Requests that hold a place.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// When the budget's debt is paid.
    pub fn debt_until(&self) -> Micros {
        self.budget.next()
    }

    /// True if this breaker would answer every question as a fresh one does: it may be forgotten.
    pub fn is_fresh(&self, policy: &Policy, now: Micros) -> bool {
        let window = policy.window.micros();
        self.state(policy, now) == State::Closed
            && self.in_flight == 0
            && self.budget.is_idle(now)
            && self.window.is_stale(now, window)
            && self.traffic.as_ref().is_none_or(|t| t.clone().totals(now, window).1 == 0)
            && now.saturating_sub(self.circuit.closed_at.max(self.circuit.opened_until)) > LATE_FOR
    }
}

/// How long after a close the result of a request admitted before it may still come in.
const LATE_FOR: u64 = 3_600 * SECOND;

/// The `Retry-After` of a 429 or 503, where the policy heeds it. On any other status it is about
/// something else (RFC 9110 section 10.2.3).
fn retry_after(policy: &Policy, outcome: Outcome) -> Option<u64> {
    match outcome {
        Outcome::Status { code: 429 | 503, retry_after } if policy.retry_after != RetryAfterMode::Ignore => retry_after,
        _ => None,
    }
}
