//! The gate with a store in memory: many callers at once, the line, modes, acts, restarts, the table's bound.
//!
//! A manual clock wherever nothing waits. Lines wait in real time, since timers are part of them; what
//! those tests demand of the machine is seconds, not milliseconds.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fusebox::clock::Clock;
use fusebox::core::circuit::State;
use fusebox::core::key::{Host, KeyRules};
use fusebox::core::layers::Policies;
use fusebox::core::outcome::{Cause, Outcome};
use fusebox::core::policy::{Limit, Mode, PolicyPatch, Source};
use fusebox::core::row::{Event, EventKind, Opener, Row};
use fusebox::core::time::{Micros, SECOND, Span};
use fusebox::gate::{Gate, Parts, Permit, Refused, Site};
use fusebox::metrics::{FailOpen, Metrics, ProbeResult, Reason};
use fusebox::store::{Location, Store};
use tokio::sync::broadcast::Receiver;
use tokio::task::JoinHandle;

const START: Micros = 1_790_000_000 * SECOND;
const ERROR: Outcome = Outcome::Status { code: 503, retry_after: None };
const SUCCESS: Outcome = Outcome::Status { code: 200, retry_after: None };
/// Far more than anything here takes, far less than what it must not wait for.
const SOON: Duration = Duration::from_secs(4);

type Waiting = JoinHandle<(usize, Result<Permit, Box<Refused>>, Micros)>;

struct World {
    gate: Gate,
    clock: Clock,
    metrics: Arc<Metrics>,
    site: Arc<Site>,
}

fn patch(json: &str) -> PolicyPatch {
    serde_json::from_str(json).expect("a patch")
}

fn policies(json: &str) -> Policies {
    Policies::new(KeyRules::built_in(), patch(json), HashMap::new(), HashMap::new())
}

fn site(gate: &Gate, host: &str) -> Arc<Site> {
    Arc::new(gate.site(Host::parse(host).expect("a host"), 80))
}

impl World {
    fn new(json: &str) -> World {
        World::with(json, Clock::manual(START), 10_000, 100, Vec::new())
    }

    fn in_real_time(json: &str) -> World {
        World::with(json, Clock::system(), 10_000, 100, Vec::new())
    }

    fn with(json: &str, clock: Clock, max_tracked: usize, max_waiting: usize, rows: Vec<Row>) -> World {
        let metrics = Arc::new(Metrics::new());
        let (store, _) = Store::open(Location::Memory).expect("a store");
        let gate = Gate::new(Parts {
            policies: policies(json),
            clock: clock.clone(),
            metrics: metrics.clone(),
            store,
            rows,
            last_event: 0,
            max_tracked,
            max_waiting,
        });
        let site = site(&gate, "www.a.example");
        World { gate, clock, metrics, site }
    }

    fn once(&self) -> Result<Permit, Box<Refused>> {
        self.gate.once(&self.site)
    }

    fn permit(&self) -> Permit {
        self.once().expect("admitted")
    }

    fn refused(&self) -> Box<Refused> {
        self.once().expect_err("refused")
    }

    fn fail(&self, site: &Arc<Site>) {
        let mut permit = self.gate.once(site).expect("admitted");
        permit.sending();
        self.gate.record(&mut permit, ERROR);
    }

    fn trip(&self) {
        for _ in 0..3 {
            self.fail(&self.site);
        }
        assert!(matches!(self.state(), State::Open(_)));
    }

    fn state(&self) -> State {
        self.gate.look_up(&self.site).0
    }

    fn advance(&self, micros: u64) {
        self.clock.advance(Span(micros));
    }

    fn set(&self, edit: impl FnOnce(&mut PolicyPatch)) {
        self.gate.set_override(&self.site.key, edit, "test").expect("an override");
    }

    /// Puts a request into the line and returns when it stands there.
    async fn stand(&self, number: usize) -> Waiting {
        let before = self.metrics.waiting.get();
        let (gate, site, clock) = (self.gate.clone(), self.site.clone(), self.clock.clone());
        let task = tokio::spawn(async move {
            let result = gate.admit(&site).await;
            (number, result, clock.now())
        });
        self.line_is(before + 1).await;
        task
    }

    async fn line_is(&self, length: i64) {
        let reached = async {
            while self.metrics.waiting.get() != length {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(SOON, reached).await.expect("a line of that length");
    }
}

async fn soon(task: Waiting) -> (usize, Result<Permit, Box<Refused>>, Micros) {
    tokio::time::timeout(SOON, task).await.expect("soon").expect("no panic")
}

fn kinds(events: &mut Receiver<Event>) -> Vec<EventKind> {
    std::iter::from_fn(|| events.try_recv().ok()).map(|event| event.kind).collect()
}

// ---- many at once ----

#[test]
fn p5_of_many_threads_exactly_one_is_the_probe() {
    let world = World::new("{}");
    for round in 0..50 {
        world.gate.open(&world.site.key, Some(Span::seconds(30)), "test").expect("opened");
        world.advance(30 * SECOND);
        let mut permits: Vec<Permit> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| (0..4).filter_map(|_| world.once().ok()).collect::<Vec<_>>())).collect();
            threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
        });
        assert_eq!(permits.len(), 1, "round {round}");
        assert!(permits[0].is_probe());
        assert_eq!(world.refused().reason, Reason::Open);
        permits[0].sending();
        world.gate.record(&mut permits[0], SUCCESS);
        assert!((0..50).all(|_| world.once().is_ok()));
    }
    assert_eq!(world.metrics.probes[ProbeResult::Success].get(), 50);
}

#[test]
fn p7_of_many_threads_exactly_one_trips() {
    let world = World::new("{}");
    for round in 1..=30u64 {
        let mut events = world.gate.subscribe();
        let crowd: Vec<Vec<Permit>> = (0..8).map(|_| (0..8).map(|_| world.permit()).collect()).collect();
        std::thread::scope(|scope| {
            for mut permits in crowd {
                let gate = &world.gate;
                scope.spawn(move || permits.iter_mut().for_each(|permit| gate.record(permit, ERROR)));
            }
        });
        assert_eq!(kinds(&mut events), [EventKind::Trip]);
        let row = world.gate.row_of(&world.site.key).expect("a row");
        assert_eq!((row.trip_count, row.errors_in_window), (round, 0));
        assert_eq!(row.opened_until, world.clock.now() + 3_600 * SECOND);
        assert_eq!(world.metrics.trips.get(), round);
        world.gate.close(&world.site.key, "test").expect("closed");
        world.advance(1);
    }
}

#[test]
fn p3_many_threads_share_one_budget() {
    let world = World::new(r#"{"requests_per_10s":1000}"#);
    let mut admitted = 0;
    for _ in 0..50 {
        let at_once: usize = std::thread::scope(|scope| {
            let threads: Vec<_> =
                (0..8).map(|_| scope.spawn(|| (0..20).filter(|_| world.once().is_ok()).count())).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
        });
        assert_eq!(at_once, 1);
        admitted += at_once;
        world.advance(10_000);
    }
    assert_eq!(admitted, 50);
}

#[test]
fn one_answer_counts_once_however_often_it_is_recorded() {
    let world = World::new(r#"{"max_errors":1}"#);
    let mut permit = world.permit();
    for _ in 0..5 {
        world.gate.record(&mut permit, ERROR);
    }
    assert_eq!(world.state(), State::Closed);
    assert_eq!(world.gate.row_of(&world.site.key).expect("a row").errors_in_window, 1);
}

// ---- the line ----

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_goes_in_order_and_evenly_spaced() {
    let world = World::in_real_time(r#"{"requests_per_10s":100,"max_wait":"30s"}"#);
    let first = (0, Ok(world.permit()), world.clock.now());
    let mut waiting = Vec::new();
    for number in 1..=8 {
        waiting.push(world.stand(number).await);
    }
    let late = world.refused();
    assert_eq!(late.reason, Reason::Throttled, "who doesn't wait may not go before those who do");
    let mut gone = vec![first];
    for task in waiting {
        gone.push(soon(task).await);
    }
    gone.sort_by_key(|(_, _, at)| *at);
    let order: Vec<_> = gone.iter().map(|(number, _, _)| *number).collect();
    assert_eq!(order, (0..=8).collect::<Vec<_>>());
    assert!(gone.iter().all(|(_, result, _)| result.is_ok()));
    let took = gone[8].2 - gone[0].2;
    assert!(took >= 8 * 100_000 - 10_000, "{took}");
    assert_eq!(world.metrics.waiting.get(), 0);
}

#[tokio::test]
async fn a_waiter_that_leaves_spends_nothing_and_the_next_takes_its_turn() {
    let world = World::in_real_time(r#"{"requests_per_10s":10,"max_wait":"30s"}"#);
    let _first = world.permit();
    let started = world.clock.now();
    let (one, two, three) = (world.stand(1).await, world.stand(2).await, world.stand(3).await);
    two.abort();
    one.abort();
    let (_, result, at) = soon(three).await;
    assert!(result.is_ok());
    assert!((900_000..1_900_000).contains(&(at - started)), "{}", at - started);
    assert_eq!(world.metrics.waiting.get(), 0);
}

#[tokio::test]
async fn a_line_is_bounded_and_says_so_at_once() {
    let world = World::with(r#"{"requests_per_10s":1,"max_wait":"10m"}"#, Clock::system(), 1_000, 2, Vec::new());
    let _first = world.permit();
    let line = [world.stand(1).await, world.stand(2).await];
    let refused = tokio::time::timeout(SOON, world.gate.admit(&world.site)).await.expect("at once").expect_err("full");
    assert_eq!(refused.reason, Reason::Throttled);
    assert!((28..=36).contains(&refused.retry_after), "{}", refused.retry_after);
    line.iter().for_each(JoinHandle::abort);
    world.line_is(0).await;
    let _again = world.stand(3).await;
}

#[tokio::test]
async fn who_could_not_be_in_time_does_not_wait() {
    let world = World::in_real_time(r#"{"requests_per_10s":1,"max_wait":"9s","retry_jitter":"0s"}"#);
    let _first = world.permit();
    let refused = tokio::time::timeout(SOON, world.gate.admit(&world.site)).await.expect("at once").expect_err("late");
    assert_eq!((refused.reason, refused.retry_after), (Reason::Throttled, 10));
}

#[tokio::test]
async fn nobody_waits_past_the_deadline_for_a_turn_that_moved() {
    let world = World::in_real_time(r#"{"requests_per_10s":20,"max_wait":"1200ms"}"#);
    let _first = world.permit();
    let (one, two) = (world.stand(1).await, world.stand(2).await);
    world.set(|patch| patch.requests_per_10s = Some(Limit::Of(1)));
    assert!(soon(one).await.1.is_ok());
    assert_eq!(soon(two).await.1.expect_err("its turn is ten seconds away").reason, Reason::Throttled);
}

#[tokio::test]
async fn a_place_is_waited_for_until_the_deadline_and_not_longer() {
    let world = World::in_real_time(r#"{"max_in_flight":1,"max_wait":"300ms"}"#);
    let held = world.permit();
    let started = world.clock.now();
    let (_, result, at) = soon(world.stand(1).await).await;
    let refused = result.expect_err("no place");
    assert_eq!((refused.reason, refused.retry_after), (Reason::Busy, 1));
    assert!((300_000..2_000_000).contains(&(at - started)), "{}", at - started);
    drop(held);
    assert!(world.once().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn places_go_round_in_order_and_no_wake_up_is_lost() {
    let world = World::in_real_time(r#"{"max_in_flight":2,"max_wait":"60s"}"#);
    let mut held = std::collections::VecDeque::from([world.permit(), world.permit()]);
    let mut waiting = std::collections::VecDeque::new();
    for number in 0..20 {
        waiting.push_back(world.stand(number).await);
    }
    for number in (0..20).filter(|number| number % 5 == 3) {
        waiting[number].abort();
    }
    for number in 0..20 {
        let task = waiting.pop_front().expect("twenty");
        if number % 5 == 3 {
            assert!(task.await.is_err());
            continue;
        }
        assert!(!task.is_finished(), "{number} had to wait");
        held.pop_front();
        let (_, result, _) = soon(task).await;
        held.push_back(result.expect("a place"));
        assert_eq!(held.len(), 2);
    }
    world.line_is(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_that_comes_and_goes_never_stalls_the_line() {
    let world = World::with(r#"{"max_in_flight":3,"max_wait":"60s"}"#, Clock::system(), 1_000, 10_000, Vec::new());
    let crowd: Vec<_> = (0..600u64)
        .map(|number| {
            let (gate, site) = (world.gate.clone(), world.site.clone());
            tokio::spawn(async move {
                let patience = if number % 3 == 0 { Duration::from_millis(number % 40) } else { 10 * SOON };
                let Ok(result) = tokio::time::timeout(patience, gate.admit(&site)).await else { return true };
                let mut permit = result.expect("a place");
                permit.sending();
                tokio::time::sleep(Duration::from_micros(number % 7 * 200)).await;
                gate.record(&mut permit, SUCCESS);
                true
            })
        })
        .collect();
    for task in crowd {
        assert!(tokio::time::timeout(10 * SOON, task).await.expect("not stalled").expect("no panic"));
    }
    assert_eq!(world.metrics.waiting.get(), 0);
    let places: Vec<_> = (0..3).map(|_| world.permit()).collect();
    assert_eq!(world.refused().reason, Reason::Busy);
    drop(places);
}

#[tokio::test]
async fn open_wins_over_waiting() {
    let world = World::in_real_time(r#"{"requests_per_10s":1,"max_wait":"10m"}"#);
    let _first = world.permit();
    let line = [world.stand(1).await, world.stand(2).await, world.stand(3).await];
    world.gate.open(&world.site.key, Some(Span::seconds(77)), "test").expect("opened");
    for task in line {
        let refused = soon(task).await.1.expect_err("open");
        assert_eq!((refused.reason, refused.opened_by), (Reason::Open, Some(Opener::Manual)));
        assert!((70..=77).contains(&refused.retry_after), "{}", refused.retry_after);
    }
    world.line_is(0).await;
}

#[tokio::test]
async fn a_trip_sends_the_line_home() {
    let world = World::in_real_time(r#"{"max_in_flight":1,"max_wait":"10m","max_errors":0}"#);
    let mut only = world.permit();
    let line = [world.stand(1).await, world.stand(2).await];
    world.gate.record(&mut only, ERROR);
    for task in line {
        let refused = soon(task).await.1.expect_err("open");
        assert_eq!((refused.reason, refused.last_status), (Reason::Open, Some(Cause::Status(503))));
    }
}

#[tokio::test]
async fn whatever_allows_more_lets_the_line_go_at_once() {
    type Act = fn(&World);
    let acts: [Act; 5] = [
        |world| drop(world.gate.close(&world.site.key, "test")),
        |world| world.set(|patch| patch.requests_per_10s = Some(Limit::None)),
        |world| world.set(|patch| patch.mode = Some(Mode::Off)),
        |world| _ = world.gate.delete(&world.site.key, "test"),
        |world| world.gate.reload(policies("{}"), 1_000, 100),
    ];
    for (number, act) in acts.into_iter().enumerate() {
        let world = World::in_real_time(r#"{"requests_per_10s":1,"max_wait":"10m"}"#);
        let _first = world.permit();
        let waiting = world.stand(number).await;
        act(&world);
        assert!(soon(waiting).await.1.is_ok(), "act {number}");
    }
}

#[tokio::test]
async fn a_unit_given_back_goes_to_the_head_of_the_line() {
    let world = World::in_real_time(r#"{"requests_per_10s":1,"max_wait":"10m"}"#);
    let mut first = world.permit();
    let waiting = world.stand(1).await;
    first.uncharge();
    drop(first);
    assert!(soon(waiting).await.1.is_ok());
}

#[tokio::test]
async fn a_probe_never_waits() {
    let world = World::in_real_time(r#"{"requests_per_10s":1,"max_wait":"10m"}"#);
    let _first = world.permit();
    world.gate.open(&world.site.key, Some(Span(1)), "test").expect("opened");
    tokio::time::sleep(Duration::from_millis(2)).await;
    let refused = tokio::time::timeout(SOON, world.gate.admit(&world.site)).await.expect("at once").expect_err("due");
    assert_eq!(refused.reason, Reason::Throttled);
    assert_eq!(world.state(), State::HalfOpen);
}

#[tokio::test]
async fn one_domains_line_is_no_others() {
    let world = World::in_real_time(r#"{"requests_per_10s":1,"max_wait":"10m"}"#);
    let _first = world.permit();
    let _waiting = world.stand(1).await;
    let other = site(&world.gate, "b.example");
    assert!(world.gate.once(&other).is_ok());
}

// ---- permits ----

#[test]
fn places_are_given_back_whatever_becomes_of_the_request() {
    let world = World::new(r#"{"max_in_flight":1,"max_errors":1000}"#);
    let ends: [fn(&Gate, &mut Permit); 5] = [
        |_, _| {},
        |_, permit| permit.sending(),
        |gate, permit| gate.record(permit, SUCCESS),
        |gate, permit| gate.record(permit, ERROR),
        |gate, permit| gate.record(permit, Outcome::NotCounted),
    ];
    for end in ends {
        let mut permit = world.permit();
        let refused = world.refused();
        assert_eq!((refused.reason, refused.retry_after), (Reason::Busy, 1));
        end(&world.gate, &mut permit);
        assert_eq!(world.refused().reason, Reason::Busy, "it ends with the body, not with the verdict");
        drop(permit);
    }
    let ticket = world.permit().into_ticket();
    assert!(!ticket.placed);
    assert!(world.once().is_ok(), "a ticket holds no place");
}

#[test]
fn a_probe_that_sent_nothing_is_free_again_and_one_that_did_costs_its_lease() {
    let world = World::new("{}");
    world.trip();
    world.advance(3_600 * SECOND);
    drop(world.permit());
    let mut probe = world.permit();
    assert!(probe.is_probe());
    probe.sending();
    world.gate.record(&mut probe, Outcome::NotCounted);
    drop(probe);
    assert_eq!(world.refused().retry_after, 30);
    world.advance(30 * SECOND);
    assert!(world.permit().is_probe());
    // nothing was sent, nothing was counted, and the last one was dropped
    assert_eq!(world.metrics.probes[ProbeResult::Lost].get(), 3);
}

#[test]
fn a_probe_carried_away_as_a_ticket_still_decides() {
    let world = World::new("{}");
    world.trip();
    world.advance(3_600 * SECOND);
    let ticket = world.permit().into_ticket();
    assert!(matches!(world.state(), State::Open(_)));
    world.gate.record_ticket(&world.site, &ticket, SUCCESS);
    assert_eq!(world.state(), State::Closed);
}

#[test]
fn a_request_that_was_bad_after_all_spends_nothing() {
    let world = World::new(r#"{"requests_per_10s":1}"#);
    let mut permit = world.permit();
    assert_eq!(world.refused().reason, Reason::Throttled);
    permit.uncharge();
    drop(permit);
    drop(world.permit());
    assert_eq!(world.refused().reason, Reason::Throttled);
}

// ---- modes ----

#[test]
fn report_refuses_nothing_and_counts_what_it_would_have_refused() {
    let world = World::new(r#"{"mode":"report","requests_per_10s":1}"#);
    let mut permits: Vec<_> = (0..4).map(|_| world.permit()).collect();
    assert_eq!(world.metrics.would_refuse[Reason::Throttled].get(), 3);
    permits.iter_mut().for_each(|permit| world.gate.record(permit, ERROR));
    assert!(matches!(world.state(), State::Open(_)));
    assert!(world.once().is_ok());
    assert_eq!(world.metrics.would_refuse[Reason::Open].get(), 1);
    assert_eq!(world.gate.row_of(&world.site.key).expect("a row").trip_count, 1);
    assert_eq!(world.gate.look_up(&world.site).1, None);
    assert_eq!(Reason::ALL.iter().map(|reason| world.metrics.refusals[*reason].get()).sum::<u64>(), 0);
    world.advance(3_600 * SECOND);
    let mut probe = world.permit();
    assert!(probe.is_probe());
    world.gate.record(&mut probe, SUCCESS);
    assert_eq!(world.state(), State::Closed);
}

#[test]
fn off_only_forwards_whatever_the_row_says() {
    let world = World::new(r#"{"max_in_flight":1}"#);
    world.gate.open(&world.site.key, None, "test").expect("opened");
    world.set(|patch| patch.mode = Some(Mode::Off));
    let before = world.gate.row_of(&world.site.key).expect("a row").opened_until;
    let mut permits: Vec<_> = (0..5).map(|_| world.permit()).collect();
    permits.iter_mut().for_each(|permit| world.gate.record(permit, SUCCESS));
    let row = world.gate.row_of(&world.site.key).expect("a row");
    assert_eq!((row.opened_until, row.errors_in_window), (before, 0));
    world.set(|patch| patch.mode = None);
    assert_eq!(world.refused().reason, Reason::Open);
}

// ---- acts ----

#[test]
fn an_override_holds_at_once_is_shown_and_goes_with_the_row() {
    let world = World::new("{}");
    world.set(|patch| patch.max_errors = Some(0));
    world.fail(&world.site);
    let row = world.gate.row_of(&world.site.key).expect("a row");
    assert!(matches!(row.state, State::Open(_)));
    assert_eq!((row.policy.max_errors, row.sources.max_errors), (0, Source::Override));
    assert_eq!(row.last_host.as_deref(), Some("www.a.example"));
    assert!(world.gate.delete(&world.site.key, "test"));
    assert!(world.gate.row_of(&world.site.key).is_none());
    assert!(world.gate.rows().is_empty());
    assert!(!world.gate.delete(&world.site.key, "test"));
    world.fail(&world.site);
    assert_eq!(world.state(), State::Closed);
}

#[test]
fn a_close_by_hand_clears_and_late_results_no_longer_count() {
    let world = World::new(r#"{"requests_per_10s":"none"}"#);
    let mut early: Vec<_> = (0..3).map(|_| world.permit()).collect();
    world.trip();
    world.advance(1);
    world.gate.close(&world.site.key, "test").expect("closed");
    early.iter_mut().for_each(|permit| world.gate.record(permit, ERROR));
    let row = world.gate.row_of(&world.site.key).expect("a row");
    assert_eq!((row.state, row.errors_in_window, row.trip_count), (State::Closed, 0, 1));
    world.trip();
    assert_eq!(world.gate.row_of(&world.site.key).expect("a row").trip_count, 2);
}

#[test]
fn a_reload_keeps_state_and_overrides() {
    let world = World::new("{}");
    world.trip();
    world.set(|patch| patch.window = Some(Span::seconds(7)));
    let before = world.gate.row_of(&world.site.key).expect("a row");
    let generation = world.gate.generation();
    world.gate.reload(policies(r#"{"max_errors":9}"#), 1_000, 10);
    let row = world.gate.row_of(&world.site.key).expect("a row");
    assert_eq!((row.opened_until, row.trip_count), (before.opened_until, before.trip_count));
    assert_eq!((row.policy.max_errors, row.sources.max_errors), (9, Source::Config));
    assert_eq!((row.policy.window, row.sources.window), (Span::seconds(7), Source::Override));
    assert_ne!(world.gate.generation(), generation);
}

#[test]
fn a_look_up_changes_nothing() {
    let world = World::new(r#"{"requests_per_10s":1}"#);
    let strangers: Vec<_> = (0..100).map(|n| site(&world.gate, &format!("s{n}.example"))).collect();
    for stranger in &strangers {
        assert_eq!(world.gate.look_up(stranger), (State::Closed, None));
    }
    assert_eq!(world.gate.scrape().tracked, 0);
    drop(world.permit());
    assert_eq!(world.gate.look_up(&world.site), (State::Closed, Some(START + 10 * SECOND)));
    world.gate.open(&world.site.key, Some(Span::seconds(2)), "test").expect("opened");
    let open = (State::Open(START + 2 * SECOND), Some(START + 10 * SECOND));
    assert_eq!([world.gate.look_up(&world.site), world.gate.look_up(&world.site)], [open, open]);
    world.advance(10 * SECOND);
    for _ in 0..10 {
        assert_eq!(world.gate.look_up(&world.site), (State::HalfOpen, None));
    }
    assert!(world.permit().is_probe());
}

// ---- Retry-After ----

#[test]
fn a_lone_client_that_comes_back_when_told_to_is_admitted() {
    for json in [
        "{}",
        r#"{"requests_per_10s":1}"#,
        r#"{"requests_per_10s":7,"retry_jitter":"0s"}"#,
        r#"{"requests_per_10s":3,"retry_after":"obey","half_open":false}"#,
        r#"{"max_errors":0,"open_for":"1500ms","requests_per_10s":1}"#,
        r#"{"max_errors":0,"open_for":"1500ms","open_growth":3.0,"max_open_for":"20s"}"#,
    ] {
        let world = World::new(json);
        let mut refusals = HashSet::new();
        for round in 0..200u64 {
            match world.once() {
                Ok(mut permit) => {
                    permit.sending();
                    let asked = (round % 5 == 0).then_some(2 * SECOND);
                    let outcome = Outcome::Status { code: if round % 3 == 0 { 200 } else { 429 }, retry_after: asked };
                    world.gate.record(&mut permit, outcome);
                }
                Err(refused) => {
                    refusals.insert(refused.reason.label());
                    world.advance(refused.retry_after * SECOND);
                    assert!(refused.retry_at <= world.gate.wall_now(), "{json}");
                    drop(world.once().unwrap_or_else(|again| panic!("{json}: {refused:?}, then {again:?}")));
                }
            }
            world.advance(round * 7_919 % SECOND);
        }
        assert!(!refusals.is_empty(), "{json}");
    }
}

#[tokio::test]
async fn a_client_sent_away_from_a_full_line_is_admitted_when_told_to_come() {
    // the line is through after 0.8 s, and the client is told to come after a whole second
    let json = r#"{"requests_per_10s":50,"max_wait":"30s","retry_jitter":"0s"}"#;
    let world = World::with(json, Clock::system(), 1_000, 3, Vec::new());
    let _first = world.permit();
    let line = [world.stand(1).await, world.stand(2).await, world.stand(3).await];
    let refused = world.gate.admit(&world.site).await.expect_err("full");
    tokio::time::sleep(Duration::from_secs(refused.retry_after)).await;
    assert!(world.once().is_ok());
    for task in line {
        assert!(soon(task).await.1.is_ok());
    }
}

// ---- restarts ----

#[tokio::test]
async fn what_was_learned_is_there_after_a_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("fusebox.db");
    let restart = |now: Micros| {
        let (store, loaded) = Store::open(Location::File(&path)).expect("a store");
        let (clock, metrics) = (Clock::manual(now), Arc::new(Metrics::new()));
        let gate = Gate::new(Parts {
            policies: policies("{}"),
            clock: clock.clone(),
            metrics: metrics.clone(),
            store: store.clone(),
            rows: loaded.rows,
            last_event: loaded.last_event_id,
            max_tracked: 1_000,
            max_waiting: 10,
        });
        let site = site(&gate, "www.a.example");
        (World { gate, clock, metrics, site }, store)
    };
    let (world, store) = restart(START);
    world.trip();
    world.set(|patch| patch.max_errors = Some(4));
    let before = world.gate.row_of(&world.site.key).expect("a row");
    assert!(store.flush(10 * SOON).await);
    drop((world, store));

    let (world, store) = restart(START + 60 * SECOND);
    let row = world.gate.row_of(&world.site.key).expect("a row");
    assert_eq!((row.opened_at, row.opened_until), (before.opened_at, before.opened_until));
    assert_eq!((row.opened_by, row.last_status, row.trip_count), (Some(Opener::Auto), Some(Cause::Status(503)), 1));
    assert_eq!((row.policy.max_errors, row.sources.max_errors), (4, Source::Override));
    assert_eq!(world.refused().retry_after, 3_540);
    drop((world, store));

    // the wall clock was a year fast before
    let (world, _store) = restart(START - 365 * 86_400 * SECOND);
    assert_eq!(world.refused().retry_after, 3_600);
    world.advance(3_600 * SECOND);
    let mut probe = world.permit();
    world.gate.record(&mut probe, SUCCESS);
    for _ in 0..5 {
        world.fail(&world.site);
    }
    assert_eq!(world.gate.row_of(&world.site.key).expect("a row").trip_count, 2);
}

#[test]
fn a_close_that_lies_ahead_after_a_restart_disarms_nothing() {
    let closed = Row { closed_at: START + 365 * 86_400 * SECOND, opened_at: START, ..Row::new(site_key()) };
    let world = World::with("{}", Clock::manual(START), 1_000, 10, vec![closed]);
    world.trip();
}

fn site_key() -> fusebox::core::key::DomainKey {
    KeyRules::built_in().resolve_text("a.example").expect("a key").key
}

// ---- the wall clock ----

/// Requests every 50 ms for `seconds`; how many were admitted.
fn admitted(world: &World, seconds: u64) -> u64 {
    (0..seconds * 20)
        .map(|_| {
            world.advance(SECOND / 20);
            u64::from(world.once().is_ok())
        })
        .sum()
}

#[test]
fn r8_a_step_of_the_wall_clock_neither_locks_out_nor_lets_in() {
    const HOUR: i64 = 3_600 * 1_000_000;
    let world = World::new(r#"{"requests_per_10s":100}"#);
    assert!((99..=101).contains(&admitted(&world, 10)));
    for step in [-HOUR, 2 * HOUR, -24 * 365 * HOUR] {
        world.clock.step_wall(step);
        let count = admitted(&world, 10);
        assert!((99..=101).contains(&count), "{count} after a step of {step}");
    }
}

#[test]
fn r8_a_step_of_the_wall_clock_neither_opens_nor_keeps_open() {
    const HOUR: i64 = 3_600 * 1_000_000;
    for step in [2 * HOUR, -2 * HOUR] {
        let world = World::new(r#"{"open_for":"1h"}"#);
        world.trip();
        world.clock.step_wall(step);
        world.advance(3_599 * SECOND);
        assert!(world.refused().retry_after <= 1);
        let row = world.gate.row_of(&world.site.key).expect("a row");
        assert_eq!(row.opened_until - world.gate.wall_now(), SECOND, "shown in the wall time of now");
        world.advance(SECOND);
        assert!(world.permit().is_probe());
    }
}

// ---- the table ----

#[test]
fn a_flood_of_names_costs_no_memory() {
    let world = World::new("{}");
    for number in 0..20_000 {
        drop(world.gate.once(&site(&world.gate, &format!("d{number}.example"))));
    }
    assert_eq!(world.gate.scrape().tracked, 0);
    let world = World::new(r#"{"requests_per_10s":10}"#);
    for number in 0..20_000 {
        drop(world.gate.once(&site(&world.gate, &format!("d{number}.example"))));
        world.advance(10_000);
    }
    let tracked = world.gate.scrape().tracked;
    assert!(tracked < 1_000, "a hundred owe something at a time, {tracked} are kept");
    assert_eq!(world.metrics.lossy_evictions.get(), 0);
}

#[test]
fn open_circuits_survive_a_flood_and_lossy_evictions_are_counted() {
    let world = World::with(r#"{"max_errors":1}"#, Clock::manual(START), 1_280, 10, Vec::new());
    let open: Vec<_> = (0..200).map(|n| site(&world.gate, &format!("open{n}.example"))).collect();
    for site in &open {
        world.gate.open(&site.key, None, "test").expect("opened");
    }
    assert_eq!(world.metrics.lossy_evictions.get(), 0);
    for number in 0..10_000 {
        world.fail(&site(&world.gate, &format!("d{number}.example")));
    }
    for site in &open {
        assert!(matches!(world.gate.look_up(site).0, State::Open(_)));
    }
    assert!(world.gate.scrape().tracked <= 1_280);
    assert!(world.metrics.lossy_evictions.get() >= 10_000 - 1_280);
}

#[test]
fn errors_go_before_a_spent_budget() {
    let world = World::with("{}", Clock::manual(START), 6_400, 10, Vec::new());
    let busy: Vec<_> = (0..100).map(|n| site(&world.gate, &format!("busy{n}.example"))).collect();
    for site in &busy {
        let budget = |patch: &mut PolicyPatch| patch.requests_per_10s = Some(Limit::Of(1));
        world.gate.set_override(&site.key, budget, "test").expect("set");
        drop(world.gate.once(site).expect("the first"));
    }
    for number in 0..20_000 {
        world.fail(&site(&world.gate, &format!("d{number}.example")));
    }
    for site in &busy {
        assert!(world.gate.once(site).is_err(), "a spent budget was forgotten");
    }
}

#[test]
fn circuits_that_nobody_asks_for_any_more_leave_room_for_new_ones() {
    let world = World::with(r#"{"max_errors":0}"#, Clock::manual(START), 6_400, 10, Vec::new());
    for number in 0..12_000 {
        world.fail(&site(&world.gate, &format!("dead{number}.example")));
    }
    assert!(world.metrics.failed_open[FailOpen::Table].get() > 0, "full of open circuits");
    world.advance(2 * 3_600 * SECOND);
    let full = world.metrics.failed_open[FailOpen::Table].get();
    for number in 0..1_000 {
        let site = site(&world.gate, &format!("new{number}.example"));
        world.fail(&site);
        assert!(matches!(world.gate.look_up(&site).0, State::Open(_)));
    }
    assert_eq!(world.metrics.failed_open[FailOpen::Table].get(), full);
}

#[test]
fn a_full_table_refuses_no_fetch() {
    let world = World::with(r#"{"max_errors":0,"requests_per_10s":1}"#, Clock::manual(START), 64, 10, Vec::new());
    for number in 0..1_000 {
        world.fail(&site(&world.gate, &format!("d{number}.example")));
    }
    assert!(world.gate.scrape().tracked <= 64);
    assert!(world.metrics.failed_open[FailOpen::Table].get() > 0);
}
