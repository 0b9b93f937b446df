//! The only place where time is read.
//!
//! Decisions use a clock that never steps: wall time at the start, plus what a monotonic clock has counted
//! since (one that also counts while the machine sleeps). Setting the wall clock can neither open a circuit
//! nor keep one open. What is stored or shown is wall time, so [`Clock::to_wall`] and
//! [`Clock::from_wall`] translate with the offset of that moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use crate::core::time::{Micros, Span};

/// A source of time: the machine's, or a test's.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System { anchor: Micros },
    Manual(Arc<Hands>),
}

/// The hands of a manual clock.
#[derive(Debug)]
struct Hands {
    now: AtomicU64,
    wall_offset: AtomicI64,
}

/// Offsets are told in whole milliseconds.
const OFFSET_GRAIN: i64 = 1_000;

impl Clock {
    /// The machine's clock, anchored to wall time now.
    pub fn system() -> Clock {
        Clock(Source::System { anchor: wall().saturating_sub(since_boot()) })
    }

    /// A clock that stands at `now` until it is moved: for tests.
    pub fn manual(now: Micros) -> Clock {
        Clock(Source::Manual(Arc::new(Hands { now: AtomicU64::new(now), wall_offset: AtomicI64::new(0) })))
    }

    /// The time to decide by.
    pub fn now(&self) -> Micros {
        match &self.0 {
            Source::System { anchor } => anchor.saturating_add(since_boot()),
            Source::Manual(hands) => hands.now.load(Ordering::SeqCst),
        }
    }

    /// How far the wall clock has been stepped since the start, in microseconds.
    pub fn wall_offset(&self) -> i64 {
        match &self.0 {
            Source::System { .. } => {
                let offset = wall().cast_signed().saturating_sub(self.now().cast_signed());
                // the two clocks are read one after the other: what that takes is no step
                (offset + offset.signum() * OFFSET_GRAIN / 2) / OFFSET_GRAIN * OFFSET_GRAIN
            }
            Source::Manual(hands) => hands.wall_offset.load(Ordering::SeqCst),
        }
    }

    /// A time to decide by as wall time. 0 stays 0, "never".
    pub fn to_wall(&self, time: Micros) -> Micros {
        if time == 0 { 0 } else { time.saturating_add_signed(self.wall_offset()) }
    }

    /// A wall time as a time to decide by. 0 stays 0.
    pub fn from_wall(&self, time: Micros) -> Micros {
        if time == 0 { 0 } else { time.saturating_add_signed(self.wall_offset().saturating_neg()).max(1) }
    }

    /// Moves a manual clock on; the machine's own moves by itself.
    pub fn advance(&self, span: Span) {
        if let Source::Manual(hands) = &self.0 {
            hands.now.fetch_add(span.micros(), Ordering::SeqCst);
        }
    }

    /// Steps the wall clock of a manual clock, and nothing else.
    pub fn step_wall(&self, micros: i64) {
        if let Source::Manual(hands) = &self.0 {
            hands.wall_offset.fetch_add(micros, Ordering::SeqCst);
        }
    }
}

/// A stopwatch reading for durations inside one request: microseconds that only grow.
pub fn since_boot() -> Micros {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    time.tv_sec.cast_unsigned().saturating_mul(1_000_000).saturating_add(time.tv_nsec.cast_unsigned() / 1_000)
}

#[allow(clippy::disallowed_methods)]
fn wall() -> Micros {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}

/// RFC 3339 in UTC with whole seconds rounded up, as `retry_at` has it: never earlier than the time itself.
pub fn rfc3339_ceil(time: Micros) -> String {
    rfc3339(time.div_ceil(1_000_000).saturating_mul(1_000_000))
}

/// RFC 3339 in UTC, with as many digits behind the second as the time has.
pub fn rfc3339(time: Micros) -> String {
    jiff::Timestamp::from_microsecond(time.min(i64::MAX as u64).cast_signed())
        .map_or_else(|_| "9999-12-31T23:59:59Z".to_owned(), |timestamp| timestamp.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wall_step_moves_no_decision() {
        let clock = Clock::manual(1_000_000);
        clock.step_wall(3_600_000_000);
        assert_eq!(clock.now(), 1_000_000);
        assert_eq!(clock.to_wall(1_000_000), 3_601_000_000);
        assert_eq!(clock.from_wall(3_601_000_000), 1_000_000);
        assert_eq!(clock.to_wall(0), 0);
    }

    #[test]
    fn the_system_clock_is_near_the_wall() {
        let clock = Clock::system();
        assert!(clock.wall_offset().abs() < 1_000_000);
        assert!(clock.now() > 1_700_000_000_000_000);
    }

    #[test]
    fn times_print_in_utc() {
        assert_eq!(rfc3339(1_780_279_800_000_000), "2026-06-01T02:10:00Z");
        assert_eq!(rfc3339_ceil(1_780_279_799_000_001), "2026-06-01T02:10:00Z");
        assert_eq!(rfc3339(u64::MAX), "9999-12-31T23:59:59Z");
    }
}
