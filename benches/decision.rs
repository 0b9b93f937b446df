//! What a decision costs: admission and verdict at the gate, by kind of domain, by the number of domains
//! tracked, and on one thread and on two.
//!
//! Time is the processor time of the threads that decide, so that a busy machine doesn't count. With two
//! threads it is that of the slower one for half of the decisions: half as much means twice the throughput.
//! That says nothing of what they cost each other unless both really run at once: look for it on an idle
//! machine. As in the proxy, where each connection has its own, no site is shared by two threads.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use fusebox::clock::Clock;
use fusebox::core::key::{Host, KeyRules};
use fusebox::core::layers::Policies;
use fusebox::core::outcome::Outcome;
use fusebox::core::row::Row;
use fusebox::core::time::SECOND;
use fusebox::gate::{Gate, Parts, Site};
use fusebox::metrics::Metrics;
use fusebox::store::{Location, Store};
use rustix::time::{ClockId, clock_gettime};

const SUCCESS: Outcome = Outcome::Status { code: 200, retry_after: None };

/// One kind of decision: its name, the policy, and whether the tracked domains are open.
const KINDS: [(&str, &str, bool); 5] = [
    ("closed", "{}", false),
    ("closed, tracked", "{}", false),
    ("open", "{}", true),
    ("budget, admitted", r#"{"requests_per_10s":10000000}"#, false),
    ("budget, throttled", r#"{"requests_per_10s":1}"#, false),
];

struct World {
    gate: Gate,
    /// The same sites for each thread.
    sites: [Vec<Arc<Site>>; 2],
}

fn world(policy: &str, open: bool, tracked: usize, asked: &str) -> World {
    let keys = KeyRules::built_in();
    let site = |name: String| {
        let host = Host::parse(&name).expect("a host");
        Arc::new(Site { key: keys.resolve(&host, None), host, port: 443 })
    };
    let clock = Clock::system();
    let now = clock.now();
    let sites = [(); 2].map(|()| (0..tracked).map(|number| site(format!("www.{asked}{number}.example"))).collect());
    let rows = (0..tracked).map(|number| {
        let row = Row::new(site(format!("d{number}.example")).key.key.clone());
        let until = if open { now + 3_600 * SECOND } else { 0 };
        Row { opened_at: now, opened_until: until, opened_for: 3_600 * SECOND, ..row }
    });
    let (store, _) = Store::open(Location::Memory).expect("a store");
    let defaults = serde_json::from_str(policy).expect("a policy");
    let gate = Gate::new(Parts {
        policies: Policies::new(KeyRules::built_in(), defaults, HashMap::new(), HashMap::new()),
        clock,
        metrics: Arc::new(Metrics::new()),
        store,
        rows: rows.collect(),
        last_event: 0,
        max_tracked: 2 * tracked + 64_000,
        max_waiting: 10,
    });
    World { gate, sites }
}

impl World {
    /// Decides about domains at random.
    fn decide(&self, sites: &[Arc<Site>], times: u64) {
        let mut random = sites.as_ptr() as u64;
        for _ in 0..times {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let site = &sites[(random % sites.len() as u64) as usize];
            if let Ok(mut permit) = black_box(self.gate.once(site)) {
                permit.sending();
                self.gate.record(&mut permit, SUCCESS);
            }
        }
    }

    fn on_threads(&self, threads: usize, times: u64) -> Duration {
        let barrier = &Barrier::new(threads);
        std::thread::scope(|scope| {
            let running: Vec<_> = self.sites[..threads]
                .iter()
                .map(|sites| {
                    scope.spawn(move || {
                        barrier.wait();
                        let started = processor_time();
                        self.decide(sites, times.div_ceil(threads as u64));
                        processor_time() - started
                    })
                })
                .collect();
            running.into_iter().map(|thread| thread.join().expect("no panic")).max().unwrap_or_default()
        })
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

fn decisions(criterion: &mut Criterion) {
    for (kind, policy, open) in KINDS {
        let mut group = criterion.benchmark_group(kind);
        for tracked in [1_000, 1_000_000] {
            // the closed domains without state are not among those that are tracked
            let world = world(policy, open, tracked, if kind == "closed" { "other" } else { "d" });
            // a first request each: from then on those with a small budget are throttled
            for site in &world.sites[0] {
                drop(world.gate.once(site));
            }
            for threads in [1, 2] {
                let id = BenchmarkId::new(format!("{threads} threads"), tracked);
                group.bench_function(id, |bencher| bencher.iter_custom(|times| world.on_threads(threads, times)));
            }
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_millis(900))
        .without_plots();
    targets = decisions
}
criterion_main!(benches);
