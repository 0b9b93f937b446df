//! One domain against a naive model of it: full logs and plain fields, written from the contract.
//!
//! The names begin with the number of the property that they hold the breaker to. The model takes every
//! step that the breaker takes, and after each of them both must say the same.

use fusebox::core::breaker::{Breaker, Recorded, Refusal, Ticket, Transition};
use fusebox::core::circuit::State;
use fusebox::core::outcome::{Failure, Outcome, Verdict, parse_retry_after};
use fusebox::core::policy::{Limit, Policy, RetryAfterMode};
use fusebox::core::row::Opener;
use fusebox::core::time::{Micros, SECOND, Span};
use proptest::prelude::*;
use proptest::sample::select;

const START: Micros = 1_790_000_000 * SECOND;
const HOUR: u64 = 3_600 * SECOND;
const YEAR: u64 = 365 * 24 * HOUR;
/// The longest opening by hand in a trace.
const BY_HAND: u64 = 2 * HOUR;

/// The contract, word for word, slow and plain.
#[derive(Clone, Debug, Default)]
struct Model {
    until: Micros,
    made_for: u64,
    closed_at: Micros,
    strikes: u32,
    errors: Vec<Micros>,
    next: Micros,
    in_flight: u32,
}

impl Model {
    fn end(&self, now: Micros) -> Micros {
        self.until.min(now + self.made_for)
    }

    fn state(&self, policy: &Policy, now: Micros) -> State {
        if self.until == 0 {
            State::Closed
        } else if now < self.end(now) {
            State::Open(self.end(now))
        } else if policy.half_open {
            State::HalfOpen
        } else {
            State::Closed
        }
    }

    fn errors_in_window(&self, policy: &Policy, now: Micros) -> usize {
        if self.errors.last().is_some_and(|newest| *newest > now) {
            return 0;
        }
        self.errors.iter().filter(|at| now - **at < policy.window.micros()).count()
    }

    fn heed_clock(&mut self, policy: &Policy, now: Micros) {
        self.until = self.end(now);
        self.closed_at = self.closed_at.min(now);
        if let Some(interval) = policy.interval() {
            self.next = self.next.min(now + policy.max_wait.micros() + interval);
        }
    }

    fn slot(&self, policy: &Policy, now: Micros) -> Micros {
        policy.interval().map_or(now, |interval| now.max(self.next.min(now + policy.max_wait.micros() + interval)))
    }

    fn admit(&mut self, policy: &Policy, now: Micros) -> Result<Ticket, Refusal> {
        self.heed_clock(policy, now);
        let slot = self.slot(policy, now);
        let state = self.state(policy, now);
        if let State::Open(until) = state {
            return Err(Refusal::Open(until.max(slot)));
        }
        if slot > now {
            return Err(Refusal::Throttled(slot));
        }
        let limit = policy.max_in_flight.number();
        if limit.is_some_and(|limit| self.in_flight >= limit) {
            return Err(Refusal::Busy);
        }
        let mut ticket = Ticket::plain(now);
        if let Some(interval) = policy.interval() {
            self.next = slot + interval;
            ticket.slot = Some(slot);
        }
        if limit.is_some() {
            self.in_flight += 1;
            ticket.placed = true;
        }
        if state == State::HalfOpen {
            self.until = (now + policy.probe_timeout.micros()).max(self.until + 1);
            self.made_for = self.until - now;
            ticket.token = Some(self.until);
        }
        Ok(ticket)
    }

    fn record(&mut self, policy: &Policy, now: Micros, ticket: &Ticket, outcome: Outcome) -> Recorded {
        let verdict = policy.errors.verdict(outcome);
        if verdict == Verdict::NotCounted {
            return Recorded::Nothing;
        }
        if self.until != 0 && self.state(policy, now) == State::Closed {
            self.close(self.until.min(now));
        }
        let asked = match outcome {
            Outcome::Status { code: 429 | 503, retry_after } if policy.retry_after != RetryAfterMode::Ignore => {
                retry_after
            }
            _ => None,
        };
        let cap = policy.max_open_for.micros();
        if let Some(token) = ticket.token {
            if token != self.until {
                return Recorded::Nothing;
            }
            if verdict == Verdict::Success {
                self.close(now);
                return Recorded::Changed(Transition::Closed);
            }
            let strikes = self.strikes + 1;
            let grown = (policy.open_growth as u128)
                .checked_pow(strikes)
                .and_then(|growth| growth.checked_mul(u128::from(policy.open_for.micros())))
                .map_or(u64::MAX, |grown| u64::try_from(grown).unwrap_or(u64::MAX));
            self.open(now, grown.max(asked.unwrap_or(0)).min(cap));
            self.strikes = strikes;
            return Recorded::Changed(Transition::Reopened(self.until));
        }
        self.heed_clock(policy, now);
        if self.until != 0 || ticket.admitted_at < self.closed_at || verdict == Verdict::Success {
            return Recorded::Nothing;
        }
        if self.errors.last().is_some_and(|newest| *newest > now) {
            self.errors.clear();
        }
        self.errors.push(now);
        if self.errors_in_window(policy, now) > policy.max_errors as usize {
            self.open(now, policy.open_for.micros().max(asked.unwrap_or(0)).min(cap));
            return Recorded::Changed(Transition::Tripped(self.until, Opener::Auto));
        }
        match asked {
            Some(asked) if policy.retry_after == RetryAfterMode::Obey && asked >= SECOND => {
                self.open(now, asked.min(cap));
                Recorded::Changed(Transition::Tripped(self.until, Opener::RetryAfter))
            }
            _ => Recorded::Counted,
        }
    }

    fn open(&mut self, now: Micros, length: u64) {
        let until = if now + length == self.until { now + length + 1 } else { now + length };
        *self = Model { until, made_for: until - now, strikes: 0, errors: Vec::new(), ..*self };
    }

    fn close(&mut self, now: Micros) {
        *self = Model { until: 0, made_for: 0, closed_at: now, strikes: 0, errors: Vec::new(), ..*self };
    }

    fn release(&mut self, policy: &Policy, now: Micros, ticket: &Ticket, sent: bool, charged: bool) {
        self.in_flight -= u32::from(ticket.placed);
        if ticket.token == Some(self.until) && !sent {
            (self.until, self.made_for) = (now, 0);
        }
        if let (Some(slot), Some(interval), false) = (ticket.slot, policy.interval(), charged)
            && self.next == slot + interval
        {
            self.next = slot;
        }
    }
}

/// A length that matters to some boundary of the policy, and by how much it is missed.
#[derive(Clone, Copy, Debug)]
enum Length {
    Nothing,
    Window,
    Interval,
    Probe,
    Opening,
    Random(u64),
}

#[derive(Clone, Debug)]
enum Step {
    Advance(Length, i64),
    /// The clock is stepped by so much; nothing happens meanwhile.
    Clock(i64),
    Admit,
    /// An answer to one of the requests under way, in any order.
    Answer(prop::sample::Index, Outcome),
    /// A permit that ends without an answer: sent, charged.
    Drop(prop::sample::Index, bool, bool),
    Open(u64),
    Close,
}

fn outcomes() -> impl Strategy<Value = Outcome> {
    let retry_after = prop_oneof![
        6 => Just(None),
        1 => Just(Some(0)),
        1 => Just(Some(SECOND - 1)),
        2 => Just(Some(90 * SECOND)),
        1 => Just(Some(2 * HOUR)),
        1 => Just(Some(30 * 24 * HOUR)),
    ];
    prop_oneof![
        5 => (select(vec![429, 503]), retry_after.clone()).prop_map(|(code, retry_after)| Outcome::Status { code, retry_after }),
        2 => Just(Outcome::Status { code: 500, retry_after: None }),
        2 => (select(vec![200, 301, 403, 404]), retry_after).prop_map(|(code, retry_after)| Outcome::Status { code, retry_after }),
        1 => Just(Outcome::Connected),
        1 => select(Failure::ALL.to_vec()).prop_map(Outcome::Failure),
        1 => Just(Outcome::NotCounted),
    ]
}

fn lengths() -> impl Strategy<Value = Length> {
    prop_oneof![
        Just(Length::Nothing),
        Just(Length::Window),
        Just(Length::Interval),
        Just(Length::Probe),
        Just(Length::Opening),
        (0..5 * SECOND).prop_map(Length::Random),
    ]
}

fn steps(clock_steps: u32) -> impl Strategy<Value = Vec<Step>> {
    let ages = [1_000, HOUR.cast_signed(), YEAR.cast_signed()];
    let step = prop_oneof![
        20 => (lengths(), -1i64..=1).prop_map(|(length, off)| Step::Advance(length, off)),
        clock_steps => (select(ages.to_vec()), any::<bool>()).prop_map(|(by, back)| Step::Clock(if back { -by } else { by })),
        30 => Just(Step::Admit),
        35 => (any::<prop::sample::Index>(), outcomes()).prop_map(|(which, outcome)| Step::Answer(which, outcome)),
        5 => (any::<prop::sample::Index>(), any::<bool>(), any::<bool>()).prop_map(|(which, sent, charged)| Step::Drop(which, sent, charged)),
        1 => select(vec![SECOND, 30 * SECOND, BY_HAND]).prop_map(Step::Open),
        1 => Just(Step::Close),
    ];
    prop::collection::vec(step, 1..120)
}

fn policies() -> impl Strategy<Value = Policy> {
    let errors = select(vec![r#"["429","5xx"]"#, r#"["429","5xx","connect","timeout"]"#, r#"["503"]"#]);
    let spans = |seconds: &[u64]| select(seconds.iter().map(|s| Span::seconds(*s)).collect::<Vec<_>>());
    let limits = |numbers: &[u32]| prop_oneof![Just(Limit::None), select(numbers.to_vec()).prop_map(Limit::Of)];
    let counting = (errors, 0u32..4, spans(&[1, 60, 600]));
    let opening = (
        spans(&[1, 30, 3_600]),
        select(vec![1.0, 2.0, 1_000.0]),
        spans(&[10, 7_200, 604_800]),
        select(vec![RetryAfterMode::Extend, RetryAfterMode::Obey, RetryAfterMode::Ignore]),
        prop::bool::weighted(0.75),
        spans(&[1, 30]),
    );
    let limiting = (limits(&[1, 3, 10, 1_000_000]), spans(&[0, 1, 20]), limits(&[1, 2]));
    (counting, opening, limiting).prop_map(|((errors, max_errors, window), opening, limiting)| {
        let (open_for, open_growth, max_open_for, retry_after, half_open, probe_timeout) = opening;
        let (requests_per_10s, max_wait, max_in_flight) = limiting;
        Policy {
            errors: serde_json::from_str(errors).expect("a list"),
            max_errors,
            window,
            open_for,
            open_growth,
            max_open_for,
            retry_after,
            half_open,
            probe_timeout,
            requests_per_10s,
            max_wait,
            max_in_flight,
            ..Policy::default()
        }
    })
}

/// The breaker and its model in step.
struct Pair<'a> {
    policy: &'a Policy,
    breaker: Breaker,
    model: Model,
    now: Micros,
    tickets: Vec<Ticket>,
    slots: Vec<Micros>,
}

impl<'a> Pair<'a> {
    fn new(policy: &'a Policy) -> Pair<'a> {
        let (breaker, model) = Default::default();
        Pair { policy, breaker, model, now: START, tickets: Vec::new(), slots: Vec::new() }
    }

    fn length(&self, length: Length) -> u64 {
        match length {
            Length::Nothing => 0,
            Length::Window => self.policy.window.micros(),
            Length::Interval => self.policy.interval().unwrap_or(1),
            Length::Probe => self.policy.probe_timeout.micros(),
            Length::Opening => self.policy.open_for.micros(),
            Length::Random(length) => length,
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let (policy, now) = (self.policy, self.now);
        match step {
            Step::Advance(length, off) => {
                self.now += self.length(*length).saturating_add_signed(*off);
            }
            Step::Clock(by) => self.now = self.now.saturating_add_signed(*by),
            Step::Admit => {
                let before = self.breaker.clone();
                let admitted = self.breaker.admit(policy, now, None);
                prop_assert_eq!(admitted, self.model.admit(policy, now));
                match admitted {
                    Ok(ticket) => {
                        self.slots.extend(ticket.slot);
                        self.tickets.push(ticket);
                    }
                    Err(_) => {
                        let mut before = before;
                        before.heed_clock(policy, now);
                        prop_assert_eq!(
                            format!("{:?}", self.breaker),
                            format!("{before:?}"),
                            "a refusal changed something"
                        );
                    }
                }
            }
            Step::Answer(which, outcome) if !self.tickets.is_empty() => {
                let ticket = self.tickets.swap_remove(which.index(self.tickets.len()));
                let recorded = self.breaker.record(policy, now, &ticket, *outcome);
                prop_assert_eq!(recorded, self.model.record(policy, now, &ticket, *outcome));
                self.release(&ticket, true, true);
            }
            Step::Drop(which, sent, charged) if !self.tickets.is_empty() => {
                let ticket = self.tickets.swap_remove(which.index(self.tickets.len()));
                self.release(&ticket, *sent, *charged);
            }
            Step::Answer(..) | Step::Drop(..) => {}
            Step::Open(length) => {
                self.breaker.open(now, *length);
                self.model.open(now, *length);
            }
            Step::Close => {
                self.breaker.close_by_hand(now);
                self.model.close(now);
                self.model.next = 0;
            }
        }
        self.compare()
    }

    fn release(&mut self, ticket: &Ticket, sent: bool, charged: bool) {
        self.breaker.release(self.policy, self.now, ticket, sent, charged);
        self.model.release(self.policy, self.now, ticket, sent, charged);
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        let (breaker, model, now) = (&self.breaker, &self.model, self.now);
        prop_assert_eq!(breaker.state(self.policy, now), model.state(self.policy, now));
        prop_assert_eq!(breaker.circuit.opened_until, model.until);
        prop_assert_eq!(breaker.circuit.strikes, model.strikes);
        prop_assert_eq!(breaker.errors_in_window(self.policy, now), model.errors_in_window(self.policy, now));
        prop_assert_eq!(breaker.in_flight(), model.in_flight);
        Ok(())
    }

    /// The longest that anything in a trace may hold a circuit open, and a microsecond for the fence.
    fn longest_opening(&self) -> u64 {
        self.policy.max_open_for.micros().max(self.policy.probe_timeout.micros()).max(BY_HAND) + 1
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, ..ProptestConfig::default() })]

    #[test]
    fn the_breaker_is_its_model(policy in policies(), steps in steps(0)) {
        let mut pair = Pair::new(&policy);
        for step in &steps {
            pair.step(step)?;
        }
    }

    #[test]
    fn p3_admitted_slots_are_an_interval_apart(policy in policies(), steps in steps(0)) {
        let mut pair = Pair::new(&policy);
        for step in steps.iter().filter(|step| !matches!(step, Step::Close | Step::Drop(_, _, false))) {
            pair.step(step)?;
        }
        if let Some(interval) = policy.interval() {
            for two in pair.slots.windows(2) {
                prop_assert!(two[1] - two[0] >= interval, "{two:?}");
            }
        }
    }

    #[test]
    fn p3_a_line_keeps_the_spacing_and_nobody_waits_too_long(
        n in select(vec![1u32, 3, 7, 1_000]),
        max_wait in select(vec![0u64, 1, 2, 30]),
        gaps in prop::collection::vec((lengths(), -1i64..=1), 1..80),
    ) {
        let policy = Policy { requests_per_10s: Limit::Of(n), max_wait: Span::seconds(max_wait), ..Policy::default() };
        let (mut breaker, mut asked, mut last) = (Breaker::default(), START, None::<Micros>);
        let interval = policy.interval().expect("a budget");
        let mut now = asked;
        for (length, off) in gaps {
            asked += Pair::new(&policy).length(length).saturating_add_signed(off);
            now = now.max(asked);
            let slot = breaker.next_slot(&policy, now);
            if slot - asked > max_wait * SECOND {
                let debt = breaker.debt_until();
                prop_assert!(slot == now || breaker.admit(&policy, now, None).is_err());
                prop_assert!(slot == now || breaker.debt_until() == debt);
                continue;
            }
            now = slot;
            let ticket = breaker.admit(&policy, now, Some(slot)).expect("the head's turn");
            prop_assert_eq!(ticket.slot, Some(slot));
            prop_assert!(last.is_none_or(|last| slot - last >= interval));
            last = Some(slot);
        }
    }

    #[test]
    fn p4_a_request_is_admitted_in_the_end(policy in policies(), steps in steps(2)) {
        let mut pair = Pair::new(&policy);
        for step in &steps {
            pair.step(step)?;
        }
        for ticket in std::mem::take(&mut pair.tickets) {
            pair.release(&ticket, true, true);
        }
        if pair.breaker.admit(&policy, pair.now, None).is_err() {
            let rest = match pair.breaker.state(&policy, pair.now) {
                State::Open(until) => until - pair.now,
                _ => 0,
            };
            let interval = policy.interval().map_or(0, |interval| interval + policy.max_wait.micros());
            let bound = rest.max(policy.probe_timeout.micros()).max(interval);
            prop_assert!(pair.breaker.admit(&policy, pair.now + bound, None).is_ok());
        }
    }

    #[test]
    fn p4_the_time_that_a_refusal_names_is_true(policy in policies(), steps in steps(2)) {
        let mut pair = Pair::new(&policy);
        for step in &steps {
            pair.step(step)?;
        }
        for ticket in std::mem::take(&mut pair.tickets) {
            pair.release(&ticket, true, true);
        }
        if let Err(Refusal::Open(at) | Refusal::Throttled(at)) = pair.breaker.admit(&policy, pair.now, None) {
            prop_assert!(pair.breaker.admit(&policy, at, None).is_ok());
        }
    }

    #[test]
    fn p6_late_results_change_nothing(policy in policies(), steps in steps(0), outcome in outcomes()) {
        let mut pair = Pair::new(&policy);
        for step in &steps {
            pair.step(step)?;
        }
        let now = pair.now;
        let mut breaker = pair.breaker.clone();
        breaker.circuit.settle(now, policy.half_open);
        let circuit = breaker.circuit;
        for ticket in &pair.tickets {
            let late = match ticket.token {
                Some(token) => token != circuit.opened_until,
                None => circuit.opened_until != 0 || ticket.admitted_at < circuit.closed_at,
            };
            if late {
                let errors = breaker.errors_in_window(&policy, now);
                prop_assert_eq!(breaker.record(&policy, now, ticket, outcome), Recorded::Nothing);
                prop_assert_eq!(breaker.circuit, circuit);
                prop_assert_eq!(breaker.errors_in_window(&policy, now), errors);
            }
        }
    }

    #[test]
    fn p7_many_errors_at_once_trip_once(max_errors in 0u32..6, many in 1usize..40, code in select(vec![429u16, 500, 503])) {
        let policy = Policy { max_errors, ..Policy::default() };
        let mut breaker = Breaker::default();
        let admit = |breaker: &mut Breaker| breaker.admit(&policy, START, None).expect("closed");
        let tickets: Vec<_> = (0..many + max_errors as usize).map(|_| admit(&mut breaker)).collect();
        let changes: Vec<_> = tickets
            .iter()
            .map(|ticket| breaker.record(&policy, START, ticket, Outcome::Status { code, retry_after: None }))
            .filter(|recorded| matches!(recorded, Recorded::Changed(_)))
            .collect();
        let until = START + policy.open_for.micros();
        prop_assert_eq!(changes, vec![Recorded::Changed(Transition::Tripped(until, Opener::Auto))]);
        prop_assert_eq!(breaker.state(&policy, START), State::Open(until));
    }

    #[test]
    fn p8_open_and_throttled_is_open_and_the_slot_untouched(policy in policies(), steps in steps(0), length in 1..BY_HAND) {
        let policy = Policy { requests_per_10s: Limit::Of(1), ..policy };
        let mut pair = Pair::new(&policy);
        for step in &steps {
            pair.step(step)?;
        }
        pair.breaker.open(pair.now, length);
        let debt = pair.breaker.debt_until();
        for at in [0, length / 2, length - 1] {
            prop_assert!(matches!(pair.breaker.admit(&policy, pair.now + at, None), Err(Refusal::Open(_))));
            prop_assert_eq!(pair.breaker.debt_until(), debt);
        }
    }

    #[test]
    fn p9_clock_steps_lock_nobody_out(policy in policies(), steps in steps(10)) {
        let mut pair = Pair::new(&policy);
        for step in &steps {
            pair.step(step)?;
            if let State::Open(until) = pair.breaker.state(&policy, pair.now) {
                prop_assert!(until - pair.now <= pair.longest_opening());
            }
            let mut breaker = pair.breaker.clone();
            if let Err(Refusal::Throttled(_)) = breaker.admit(&policy, pair.now, None) {
                let lock_out = policy.interval().expect("a budget") + policy.max_wait.micros();
                let again = breaker.admit(&policy, pair.now + lock_out, None);
                prop_assert!(!matches!(again, Err(Refusal::Throttled(_))), "{again:?}");
            }
        }
        let _ = pair.breaker.admit(&policy, pair.now, None);
        let over = pair.now + pair.longest_opening();
        prop_assert!(!matches!(pair.breaker.state(&policy, over), State::Open(_)));
    }

    #[test]
    fn p9_after_a_step_back_errors_count_again(policy in policies(), steps in steps(10)) {
        let policy = Policy { requests_per_10s: Limit::None, max_in_flight: Limit::None, ..policy };
        let mut pair = Pair::new(&policy);
        for step in &steps {
            pair.step(step)?;
        }
        if let Ok(ticket) = pair.breaker.admit(&policy, pair.now, None) {
            let error = Outcome::Status { code: 503, retry_after: None };
            prop_assert_ne!(pair.breaker.record(&policy, pair.now, &ticket, error), Recorded::Nothing);
        }
    }

    #[test]
    fn p11_retry_after_on_arbitrary_bytes_stays_in_bounds(
        value in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            "[ 0-9+.,-]{0,40}".prop_map(String::into_bytes),
            "[A-Z][a-z]{2,8}, ?[0-9]{2}[ -][A-Z][a-z]{2}[ -][0-9]{2,4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT".prop_map(String::into_bytes),
        ],
        date in prop::option::of(prop::collection::vec(any::<u8>(), 0..40)),
        now in any::<u64>(),
        cap in any::<u64>(),
    ) {
        if let Some(micros) = parse_retry_after(&value, date.as_deref(), now, cap) {
            prop_assert!(micros <= cap);
        }
    }

    #[test]
    fn p12_forgetting_a_fresh_breaker_changes_no_verdict(
        policy in policies(),
        steps in steps(0),
        idle in prop::collection::vec(any::<bool>(), 120),
    ) {
        let mut pair = Pair::new(&policy);
        let mut forgetful = Breaker::default();
        for (step, idle) in steps.iter().zip(idle) {
            let (tickets, now) = (pair.tickets.clone(), pair.now);
            match step {
                Step::Advance(..) | Step::Clock(_) | Step::Admit => {}
                Step::Answer(which, outcome) if !tickets.is_empty() => {
                    let ticket = tickets[which.index(tickets.len())];
                    let expected = pair.breaker.clone().record(&policy, now, &ticket, *outcome);
                    prop_assert_eq!(forgetful.record(&policy, now, &ticket, *outcome), expected);
                    forgetful.release(&policy, now, &ticket, true, true);
                }
                Step::Drop(which, sent, charged) if !tickets.is_empty() => {
                    let ticket = tickets[which.index(tickets.len())];
                    forgetful.release(&policy, now, &ticket, *sent, *charged);
                }
                Step::Answer(..) | Step::Drop(..) => {}
                Step::Open(length) => _ = forgetful.open(now, *length),
                Step::Close => forgetful.close_by_hand(now),
            }
            if matches!(step, Step::Admit) {
                let expected = pair.breaker.clone().admit(&policy, now, None);
                prop_assert_eq!(forgetful.admit(&policy, now, None), expected);
            }
            pair.step(step)?;
            if idle && matches!(step, Step::Advance(..)) {
                pair.now += HOUR / 2 + 1;
            }
            // an answer that took longer than an hour is nobody's evidence any more
            let now = pair.now;
            let (young, old): (Vec<_>, Vec<_>) =
                std::mem::take(&mut pair.tickets).into_iter().partition(|ticket| now - ticket.admitted_at <= HOUR);
            pair.tickets = young;
            for ticket in old {
                pair.release(&ticket, true, true);
                forgetful.release(&policy, now, &ticket, true, true);
            }
            if forgetful.is_fresh(&policy, now) {
                forgetful = Breaker::default();
            }
            prop_assert_eq!(forgetful.state(&policy, now), pair.breaker.state(&policy, now));
        }
    }
}

const ERROR: Outcome = Outcome::Status { code: 500, retry_after: None };
const SUCCESS: Outcome = Outcome::Status { code: 200, retry_after: None };

fn admit(breaker: &mut Breaker, policy: &Policy, now: Micros) -> Ticket {
    breaker.admit(policy, now, None).expect("admitted")
}

fn fail(breaker: &mut Breaker, policy: &Policy, now: Micros) -> Recorded {
    let ticket = admit(breaker, policy, now);
    breaker.record(policy, now, &ticket, ERROR)
}

#[test]
fn p14_exactly_max_errors_do_not_trip_and_one_more_does() {
    let policy = Policy::default();
    let mut breaker = Breaker::default();
    assert_eq!(fail(&mut breaker, &policy, START), Recorded::Counted);
    assert_eq!(fail(&mut breaker, &policy, START), Recorded::Counted);
    assert!(matches!(fail(&mut breaker, &policy, START), Recorded::Changed(Transition::Tripped(..))));
}

#[test]
fn p14_an_error_exactly_a_window_old_is_out() {
    let policy = Policy::default();
    for (age, trips) in [(policy.window.micros() - 1, true), (policy.window.micros(), false)] {
        let mut breaker = Breaker::default();
        fail(&mut breaker, &policy, START);
        fail(&mut breaker, &policy, START + 1);
        assert_eq!(matches!(fail(&mut breaker, &policy, START + age), Recorded::Changed(_)), trips, "{age}");
        assert_eq!(breaker.errors_in_window(&policy, START + age), if trips { 0 } else { 2 });
    }
}

#[test]
fn p14_an_opening_is_over_at_its_very_end() {
    let policy = Policy::default();
    let mut breaker = Breaker::default();
    let until = breaker.open(START, 60 * SECOND);
    assert_eq!(breaker.admit(&policy, until - 1, None), Err(Refusal::Open(until)));
    assert!(admit(&mut breaker, &policy, until).token.is_some());
}

#[test]
fn p14_a_throttled_request_claims_no_probe() {
    let policy = Policy { requests_per_10s: Limit::Of(1), ..Policy::default() };
    let mut breaker = Breaker::default();
    admit(&mut breaker, &policy, START);
    let until = breaker.open(START, SECOND);
    assert_eq!(breaker.admit(&policy, until, None), Err(Refusal::Throttled(START + 10 * SECOND)));
    assert_eq!(breaker.state(&policy, until), State::HalfOpen);
    assert!(admit(&mut breaker, &policy, START + 10 * SECOND).token.is_some());
}

#[test]
fn p14_a_probe_that_lost_its_lease_decides_nothing() {
    let policy = Policy::default();
    let mut breaker = Breaker::default();
    let until = breaker.open(START, SECOND);
    let lost = admit(&mut breaker, &policy, until);
    let next_at = lost.token.expect("a probe");
    let next = admit(&mut breaker, &policy, next_at);
    for outcome in [SUCCESS, ERROR] {
        assert_eq!(breaker.record(&policy, next_at, &lost, outcome), Recorded::Nothing);
        assert_eq!(Some(breaker.circuit.opened_until), next.token);
    }
    assert_eq!(breaker.record(&policy, next_at, &next, SUCCESS), Recorded::Changed(Transition::Closed));
}

#[test]
fn p14_what_was_admitted_before_the_close_does_not_count() {
    let policy = Policy { max_errors: 0, ..Policy::default() };
    let mut breaker = Breaker::default();
    let early = admit(&mut breaker, &policy, START);
    breaker.close_by_hand(START + 1);
    assert_eq!(breaker.record(&policy, START + 2, &early, ERROR), Recorded::Nothing);
    let later = admit(&mut breaker, &policy, START + 2);
    assert!(matches!(breaker.record(&policy, START + 2, &later, ERROR), Recorded::Changed(_)));
}

#[test]
fn p4_an_opening_shorter_than_the_debt_names_the_end_of_the_debt() {
    let policy = Policy { requests_per_10s: Limit::Of(1), retry_after: RetryAfterMode::Obey, ..Policy::default() };
    let mut breaker = Breaker::default();
    let ticket = admit(&mut breaker, &policy, START);
    let answer = Outcome::Status { code: 429, retry_after: Some(2 * SECOND) };
    let until = START + 2 * SECOND;
    assert_eq!(
        breaker.record(&policy, START, &ticket, answer),
        Recorded::Changed(Transition::Tripped(until, Opener::RetryAfter))
    );
    assert_eq!(breaker.admit(&policy, START, None), Err(Refusal::Open(START + 10 * SECOND)));
}

#[test]
fn p6_an_opening_by_hand_that_ends_with_the_probes_lease_is_not_the_probes() {
    let policy = Policy::default();
    let mut breaker = Breaker::default();
    let until = breaker.open(START, SECOND);
    let probe = admit(&mut breaker, &policy, until);
    breaker.open(until, policy.probe_timeout.micros());
    assert!(breaker.admit(&policy, until, None).is_err());
    assert_eq!(breaker.record(&policy, until + 1, &probe, SUCCESS), Recorded::Nothing);
    assert!(matches!(breaker.state(&policy, until + 1), State::Open(_)));
}

#[test]
fn p11_the_zoo_of_retry_after() {
    const CAP: u64 = HOUR;
    let date: &[u8] = b"Tue, 01 Dec 2026 02:10:00 GMT";
    let own_clock = 1_796_091_000 * SECOND;
    for now in [own_clock, own_clock + 2 * HOUR, own_clock - 2 * HOUR] {
        for (value, seconds) in [
            ("120", Some(120)),
            (" 120\t", Some(120)),
            ("0", Some(0)),
            ("-1", None),
            ("+5", None),
            ("1.5", None),
            ("", None),
            (" ", None),
            ("abc", None),
            ("²", None),
            ("10, 20", None),
            ("1e3", None),
            ("0x10", None),
            ("3600", Some(3_600)),
            ("3601", Some(3_600)),
            ("1000000000", Some(3_600)),
            ("9223372037", Some(3_600)),
            ("18446744073709551615", Some(3_600)),
            ("18446744073709551616", Some(3_600)),
            ("999999999999999999999999999999", Some(3_600)),
            ("Tue, 01 Dec 2026 02:11:30 GMT", Some(90)),
            ("Tuesday, 01-Dec-26 02:11:30 GMT", Some(90)),
            ("Tue Dec  1 02:11:30 2026", Some(90)),
            ("Tue, 01 Dec 2026 02:09:59 GMT", Some(0)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(3_600)),
        ] {
            let read = parse_retry_after(value.as_bytes(), Some(date), now, CAP);
            assert_eq!(read, seconds.map(|seconds| seconds * SECOND), "{value:?} at {now}");
        }
    }
    let without_date = parse_retry_after(b"Tue, 01 Dec 2026 02:11:30 GMT", None, own_clock, CAP);
    assert_eq!(without_date, Some(90 * SECOND));
    let senseless_date = parse_retry_after(b"Tue, 01 Dec 2026 02:11:30 GMT", Some(b"yesterday"), own_clock, CAP);
    assert_eq!(senseless_date, Some(90 * SECOND));
    assert_eq!(parse_retry_after(b"\xff\xfe", None, own_clock, CAP), None);
}
