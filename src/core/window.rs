//! The sliding error window, exact.
//!
//! "More than K errors in (now − W, now]" holds exactly when the K-th youngest earlier error is younger
//! than W. So the newest K timestamps are all that has to be kept: 16 bytes at the default K = 2, and no
//! bucket edges. An error that is exactly W old is out.
//!
//! A ratio needs request counts too, and those can't be kept one by one on a busy domain: [`Traffic`]
//! counts in slices of a sixteenth of the window. Only domains with `min_error_ratio` have one.

use std::collections::VecDeque;

use super::time::Micros;

/// The newest errors of one domain, oldest first.
#[derive(Clone, Debug, Default)]
pub struct Window {
    errors: VecDeque<Micros>,
}

impl Window {
    /// Notes an error. True if with it more than `most` errors lie in the window.
    pub fn error(&mut self, now: Micros, most: u32, window: u64) -> bool {
        let most = most as usize;
        if self.errors.back().is_some_and(|newest| *newest > now) {
            // the clock stepped back: what is noted here says nothing about the time before now
            self.errors.clear();
        }
        let excess = self.errors.len().checked_sub(most);
        let exceeded = match excess {
            _ if most == 0 => true,
            Some(kth_youngest) => now - self.errors[kth_youngest] < window,
            None => false,
        };
        self.errors.push_back(now);
        while self.errors.len() > most {
            self.errors.pop_front();
        }
        exceeded
    }

    /// Errors that still lie in the window; never more than the limit, since one more trips and clears.
    pub fn count(&self, now: Micros, window: u64) -> usize {
        self.errors.iter().rev().take_while(|at| **at <= now && now - **at < window).count()
    }

    /// True if nothing in here can matter any more.
    pub fn is_stale(&self, now: Micros, window: u64) -> bool {
        self.count(now, window) == 0
    }

    /// Forgets every error.
    pub fn clear(&mut self) {
        self.errors = VecDeque::new();
    }
}

/// How many slices a window is cut into for the ratio.
const SLICES: usize = 16;

/// Requests and errors of the last window, for `min_error_ratio`.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    slices: [(u32, u32); SLICES],
    /// The number of the newest slice: time divided by its width.
    newest: u64,
    width: u64,
}

impl Traffic {
    /// Notes one counted answer.
    pub fn note(&mut self, now: Micros, window: u64, is_error: bool) {
        self.advance(now, window);
        let slice = &mut self.slices[(self.newest % SLICES as u64) as usize];
        slice.0 = slice.0.saturating_add(1);
        slice.1 = slice.1.saturating_add(u32::from(is_error));
    }

    /// Errors and requests of the window that ends now.
    pub fn totals(&mut self, now: Micros, window: u64) -> (u64, u64) {
        self.advance(now, window);
        self.slices
            .iter()
            .fold((0, 0), |(errors, requests), slice| (errors + u64::from(slice.1), requests + u64::from(slice.0)))
    }

    /// True if errors / requests reaches `ratio`.
    pub fn reaches(&mut self, now: Micros, window: u64, ratio: f64) -> bool {
        let (errors, requests) = self.totals(now, window);
        requests > 0 && errors as f64 >= ratio * requests as f64
    }

    fn advance(&mut self, now: Micros, window: u64) {
        let width = (window / SLICES as u64).max(1);
        let slice = now / width;
        if width != self.width || slice < self.newest || slice - self.newest >= SLICES as u64 {
            *self = Traffic { slices: [(0, 0); SLICES], newest: slice, width };
            return;
        }
        while self.newest < slice {
            self.newest += 1;
            self.slices[(self.newest % SLICES as u64) as usize] = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, word for word, over a full log.
    fn exceeded(log: &[Micros], now: Micros, most: u32, window: u64) -> bool {
        log.iter().filter(|at| now - **at < window).count() > most as usize
    }

    const W: u64 = 1_000;

    proptest! {
        // Property 1: gaps of W-1, W, W+1 and equal times included.
        #[test]
        fn the_ring_equals_a_full_log(
            gaps in prop::collection::vec(prop_oneof![Just(0), Just(1), Just(W - 1), Just(W), Just(W + 1), 0..2 * W], 1..80),
            most in 0u32..6,
        ) {
            let (mut ring, mut log, mut now) = (Window::default(), Vec::new(), 5_000_000);
            for gap in gaps {
                now += gap;
                log.push(now);
                let expected = exceeded(&log, now, most, W);
                prop_assert_eq!(ring.error(now, most, W), expected);
                if expected {
                    ring.clear();
                    log.clear();
                }
                let in_window = log.iter().filter(|at| now - **at < W).count();
                prop_assert_eq!(ring.count(now, W), in_window);
                prop_assert_eq!(ring.is_stale(now + W, W), true);
            }
        }

        #[test]
        fn the_ratio_is_right_to_within_one_slice(
            answers in prop::collection::vec((0u64..200, any::<bool>()), 1..200),
        ) {
            let (mut traffic, mut log, mut now) = (Traffic::default(), Vec::new(), 9_000_000u64);
            for (gap, is_error) in answers {
                now += gap;
                traffic.note(now, W, is_error);
                log.push(now);
                let (_, requests) = traffic.totals(now, W);
                let inside = log.iter().filter(|at| now - **at < W).count() as u64;
                let surely = log.iter().filter(|at| now - **at <= 15 * (W / 16)).count() as u64;
                prop_assert!((surely..=inside).contains(&requests), "{requests} of {surely}..={inside}");
            }
        }
    }

    #[test]
    fn a_clock_that_stepped_back_starts_afresh() {
        let mut ring = Window::default();
        assert!(!ring.error(10_000, 1, W));
        assert!(!ring.error(9_000, 1, W));
        assert!(ring.error(9_001, 1, W));
    }

    #[test]
    fn a_smaller_limit_takes_hold_at_once() {
        let mut ring = Window::default();
        for at in [1_000, 1_001, 1_002] {
            assert!(!ring.error(at, 5, W));
        }
        assert!(ring.error(1_003, 2, W));
    }
}
