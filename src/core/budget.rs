//! The request budget: even spacing, GCRA with a burst of one.
//!
//! N requests in ten seconds means one every `T = 10 s / N`. The whole state is `next`, the earliest time
//! at which the next request may go. There is no bucket to fill up and no window edge to slip past.

use super::time::Micros;

/// The budget of one domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    next: Micros,
}

impl Budget {
    /// The earliest time at which a request may go, never before `now`.
    ///
    /// `next` is clamped to `now + max_wait + interval`: that bounds what a clock step, or a budget that
    /// was much smaller before a reload, can lock out.
    pub fn slot(&self, now: Micros, interval: u64, max_wait: u64) -> Micros {
        self.next.min(now.saturating_add(max_wait).saturating_add(interval)).max(now)
    }

    /// Makes the clamp of [`Budget::slot`] last: one that moved along with `now` would lock out for as long
    /// as the step.
    pub fn heed_clock(&mut self, now: Micros, interval: u64, max_wait: u64) {
        self.next = self.next.min(now.saturating_add(max_wait).saturating_add(interval));
    }

    /// Spends `slot`.
    pub fn take(&mut self, slot: Micros, interval: u64) {
        self.next = slot.saturating_add(interval);
    }

    /// Gives `slot` back, if nobody was admitted after it.
    pub fn give_back(&mut self, slot: Micros, interval: u64) {
        if self.next == slot.saturating_add(interval) {
            self.next = slot;
        }
    }

    /// True if a request may go now as far as the budget goes, whatever its interval.
    pub fn is_idle(&self, now: Micros) -> bool {
        self.next <= now
    }

    /// When the debt is paid.
    pub fn next(&self) -> Micros {
        self.next
    }

    /// Forgets what was spent.
    pub fn clear(&mut self) {
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Property 3: admitted slots are at least T apart for any arrivals; a refusal changes nothing.
        #[test]
        fn slots_are_an_interval_apart(gaps in prop::collection::vec(0u64..300, 1..200), interval in 1u64..200, max_wait in 0u64..500) {
            let (mut budget, mut now, mut last) = (Budget::default(), 1_000_000, None::<Micros>);
            for gap in gaps {
                now += gap;
                let slot = budget.slot(now, interval, max_wait);
                prop_assert!(slot >= now);
                if slot - now > max_wait {
                    prop_assert_eq!(budget.slot(now, interval, max_wait), slot);
                    continue;
                }
                if let Some(last) = last {
                    prop_assert!(slot - last >= interval);
                }
                budget.take(slot, interval);
                last = Some(slot);
            }
        }

        // Property 9, for the budget: no step locks out for longer than T + max_wait.
        #[test]
        fn no_clock_step_locks_out(step in prop_oneof![Just(1_000u64), Just(3_600_000_000), Just(31_536_000_000_000)], interval in 1u64..10_000_000, max_wait in 0u64..1_000_000) {
            let start = 1_790_000_000_000_000u64;
            let mut budget = Budget::default();
            budget.take(start, interval);
            let now = start - step;
            prop_assert!(budget.slot(now, interval, max_wait) - now <= interval + max_wait);
        }
    }

    #[test]
    fn a_slot_goes_back_only_while_it_is_the_last() {
        let mut budget = Budget::default();
        budget.take(100, 10);
        budget.give_back(100, 10);
        assert_eq!(budget.next(), 100);
        budget.take(100, 10);
        budget.take(110, 10);
        budget.give_back(100, 10);
        assert_eq!(budget.next(), 120);
    }

    #[test]
    fn seven_a_second_is_seven_hundred_in_a_hundred_seconds() {
        let interval =
            crate::core::policy::Policy { requests_per_10s: crate::core::policy::Limit::Of(70), ..Default::default() }
                .interval()
                .expect("a budget");
        let (mut budget, mut admitted) = (Budget::default(), 0);
        for millisecond in 0..100_000u64 {
            let now = 1_000_000_000 + millisecond * 1_000;
            if budget.slot(now, interval, 0) == now {
                budget.take(now, interval);
                admitted += 1;
            }
        }
        assert!((699..=701).contains(&admitted), "{admitted}");
    }
}
