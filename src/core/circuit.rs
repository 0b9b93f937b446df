//! The circuit: one timestamp.
//!
//! ```text
//! opened_until u = 0        closed
//! now < u                   open          requests are refused
//! 0 < u <= now              half-open     the next request is the probe
//! ```
//!
//! There is no status field and no sweeper; nothing has to run for a circuit to fall due. A probe is a claim
//! on the same timestamp: it moves `u` to now + `probe_timeout`, and that new value is its token. A
//! result is the probe's only while `u` still equals the token, so a probe that was lost costs its
//! timeout, and one that comes back late changes nothing (fencing).

use super::time::Micros;

/// What the timestamp says at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Requests flow.
    Closed,
    /// Requests are refused until then.
    Open(Micros),
    /// The next request is the probe.
    HalfOpen,
}

impl State {
    /// The word in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            State::Closed => "closed",
            State::Open(_) => "open",
            State::HalfOpen => "half_open",
        }
    }
}

/// The durable part of one domain's breaker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Circuit {
    /// 0 = closed; in the future = open; past = half-open.
    pub opened_until: Micros,
    /// How long the present opening or claim was made. No clock step may keep it open for longer.
    pub opened_for: u64,
    /// When the circuit was last closed. Results of requests admitted before are late.
    pub closed_at: Micros,
    /// Probes that failed in a row.
    pub strikes: u32,
}

impl Circuit {
    /// The state at `now`. With `half_open` false, an opening that is over is closed.
    pub fn state(&self, now: Micros, half_open: bool) -> State {
        let until = self.opened_until.min(now.saturating_add(self.opened_for));
        match self.opened_until {
            0 => State::Closed,
            _ if now < until => State::Open(until),
            _ if half_open => State::HalfOpen,
            _ => State::Closed,
        }
    }

    /// Opens, or restarts the clock: open until `now + length`.
    pub fn open(&mut self, now: Micros, length: u64) {
        // never the value that a claim may hold as its token
        let until = now.saturating_add(length).max(1);
        self.opened_until = until.saturating_add(u64::from(until == self.opened_until));
        self.opened_for = self.opened_until - now;
    }

    /// Claims the probe of a half-open circuit. Returns its token.
    pub fn claim(&mut self, now: Micros, probe_timeout: u64) -> Micros {
        self.opened_until = now.saturating_add(probe_timeout).max(self.opened_until.saturating_add(1));
        self.opened_for = self.opened_until - now;
        self.opened_until
    }

    /// Gives a claim back of which nothing was sent: the next request may probe at once.
    pub fn unclaim(&mut self, now: Micros, token: Micros) {
        if self.opened_until == token {
            self.opened_until = now.max(1);
            self.opened_for = 0;
        }
    }

    /// Takes back what a step of the clock into the past would make longer.
    pub fn heed_clock(&mut self, now: Micros) {
        self.opened_until = self.opened_until.min(now.saturating_add(self.opened_for));
        self.closed_at = self.closed_at.min(now);
    }

    /// Closes and forgets the strikes.
    pub fn close(&mut self, now: Micros) {
        *self = Circuit { closed_at: now, ..Circuit::default() };
    }

    /// Makes an opening that is over under `half_open = false` what it reads as: closed since then.
    pub fn settle(&mut self, now: Micros, half_open: bool) {
        if self.opened_until != 0 && self.state(now, half_open) == State::Closed {
            self.close(self.opened_until.min(now));
        }
    }

    /// True if a request admitted at `admitted_at` without a token can no longer say anything.
    pub fn is_late(&self, admitted_at: Micros) -> bool {
        self.opened_until != 0 || admitted_at < self.closed_at
    }
}

/// How long an automatic opening lasts, in microseconds: `open_for × open_growth^strikes`, or the
/// upstream's `Retry-After` where that is longer, and never more than the cap.
pub fn opening_length(open_for: u64, growth: f64, strikes: u32, retry_after: Option<u64>, cap: u64) -> u64 {
    let grown = open_for as f64 * growth.powi(i32::try_from(strikes).unwrap_or(i32::MAX));
    // a float this large or not finite is beyond any cap; `as` saturates
    let grown = if growth == 1.0 { open_for } else { grown as u64 };
    grown.max(retry_after.unwrap_or(0)).min(cap)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timestamp_is_the_state() {
        let mut circuit = Circuit::default();
        assert_eq!(circuit.state(50, true), State::Closed);
        circuit.open(100, 10);
        assert_eq!(circuit.state(109, true), State::Open(110));
        assert_eq!(circuit.state(110, true), State::HalfOpen);
        assert_eq!(circuit.state(110, false), State::Closed);
    }

    #[test]
    fn a_claim_is_a_lease_with_a_token() {
        let mut circuit = Circuit::default();
        circuit.open(100, 10);
        let token = circuit.claim(110, 30);
        assert_eq!((token, circuit.state(139, true)), (140, State::Open(140)));
        assert_eq!(circuit.state(140, true), State::HalfOpen);
        let next = circuit.claim(140, 30);
        circuit.unclaim(141, token);
        assert_eq!(circuit.opened_until, next);
        circuit.unclaim(141, next);
        assert_eq!(circuit.state(141, true), State::HalfOpen);
    }

    #[test]
    fn a_step_back_keeps_nothing_open_for_longer_than_it_was_made() {
        let mut circuit = Circuit::default();
        circuit.open(1_000_000, 50);
        assert_eq!(circuit.state(10, true), State::Open(60));
    }

    #[test]
    fn openings_grow_up_to_the_cap() {
        assert_eq!(opening_length(100, 1.0, 9, None, 1_000), 100);
        assert_eq!(opening_length(100, 2.0, 3, None, 10_000), 800);
        assert_eq!(opening_length(100, 2.0, u32::MAX, None, 10_000), 10_000);
        assert_eq!(opening_length(100, 1000.0, 400, Some(5), 10_000), 10_000);
        assert_eq!(opening_length(100, 1.0, 0, Some(300), 10_000), 300);
        assert_eq!(opening_length(100, 1.0, 0, Some(u64::MAX), 10_000), 10_000);
    }
}
