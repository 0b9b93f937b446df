//! Every metric by name, in one place. All have the prefix `fusebox_` and bounded labels.
//!
//! Counters that a request touches are looked up once, here, and are plain atomics afterwards. What is a
//! state rather than a count (`circuits_open`, `domain_state`, …) is set when `/metrics` is read.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use prometheus::{
    Encoder, Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::core::circuit::State;
use crate::core::key::DomainKey;

/// Writes a label enum: variants, their label values, and how many there are.
macro_rules! labels {
    ($(#[doc = $doc:literal])+ $name:ident { $( $(#[doc = $vdoc:literal])+ $variant:ident = $label:literal, )+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $( $(#[doc = $vdoc])+ $variant, )+ }

        impl $name {
            /// Every variant, in order.
            pub const ALL: &'static [$name] = &[$( $name::$variant ),+];

            /// The label value.
            pub const fn label(self) -> &'static str { match self { $( $name::$variant => $label, )+ } }
        }
    };
}

labels! {
    /// The way in.
    Way {
        /// Absolute-form `http://`.
        Http = "http",
        /// Absolute-form `https://`: the proxy makes the TLS.
        Https = "https",
        /// A blind tunnel.
        Connect = "connect",
    }
}

labels! {
    /// What became of a request.
    Ending {
        /// The upstream's answer was passed on.
        Forwarded = "forwarded",
        /// Refused by breaker, budget or places.
        Refused = "refused",
        /// No answer came from upstream.
        Failed = "failed",
        /// Malformed.
        Bad = "bad",
        /// Not allowed.
        Denied = "denied",
        /// The client went away first.
        Aborted = "aborted",
    }
}

labels! {
    /// Why the gate refused. The same word stands in the response, the log and the API.
    Reason {
        /// The circuit is open.
        Open = "open",
        /// The budget is spent.
        Throttled = "throttled",
        /// Too many in flight.
        Busy = "busy",
    }
}

labels! {
    /// How a probe ended.
    ProbeResult {
        /// The circuit closed.
        Success = "success",
        /// The circuit opened again.
        Error = "error",
        /// Nobody knows: cancelled or lost.
        Lost = "lost",
    }
}

labels! {
    /// What was out of order when a fetch went on all the same.
    FailOpen {
        /// The state store.
        Store = "store",
        /// A reload.
        Reload = "reload",
        /// More domains than may be tracked.
        Table = "table",
    }
}

/// One counter per variant of a label enum.
#[derive(Debug)]
pub struct Counters<const N: usize>([IntCounter; N]);

impl<const N: usize> Counters<N> {
    fn of(vec: &IntCounterVec, labels: [&str; N]) -> Counters<N> {
        Counters(labels.map(|label| vec.with_label_values(&[label])))
    }
}

macro_rules! indexed {
    ($($label:ident: $n:literal),+) => { $(
        impl std::ops::Index<$label> for Counters<$n> {
            type Output = IntCounter;
            fn index(&self, label: $label) -> &IntCounter { &self.0[label as usize] }
        }
    )+ };
}

indexed!(Reason: 3, ProbeResult: 3, FailOpen: 3);

impl std::ops::Index<(Way, Ending)> for Counters<18> {
    type Output = IntCounter;
    fn index(&self, (way, ending): (Way, Ending)) -> &IntCounter {
        &self.0[way as usize * Ending::ALL.len() + ending as usize]
    }
}

/// Every metric.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// `requests_total{way,outcome}`.
    pub requests: Counters<18>,
    /// `refusals_total{reason}`.
    pub refusals: Counters<3>,
    /// `would_refuse_total{reason}`: what `mode = "report"` let through.
    pub would_refuse: Counters<3>,
    /// `upstream_responses_total{class}`, by hundreds of the status; index 0 is everything else.
    pub responses: [IntCounter; 6],
    /// `upstream_failures_total{kind}`.
    pub failures: IntCounterVec,
    /// `upstream_seconds`: from sending to the response head.
    pub upstream_seconds: Histogram,
    /// `overhead_seconds`: what the proxy itself took before sending.
    pub overhead_seconds: Histogram,
    /// `trips_total`: automatic openings, failed probes included.
    pub trips: IntCounter,
    /// `probes_total{result}`.
    pub probes: Counters<3>,
    /// `budget_waiting`: requests that wait for their turn.
    pub waiting: IntGauge,
    /// `budget_wait_seconds`.
    pub wait_seconds: Histogram,
    /// `in_flight`: requests between admission and the end of their body, tunnel or upgrade.
    pub in_flight: IntGauge,
    /// `connections{side="downstream"}`.
    pub downstream: IntGauge,
    /// `connections{side="upstream"}`.
    pub upstream: IntGauge,
    /// `upstream_connections_total{kind="new"}`.
    pub connections_new: IntCounter,
    /// `upstream_connections_total{kind="reused"}`.
    pub connections_reused: IntCounter,
    /// `blind_tunnels_total`.
    pub blind_tunnels: IntCounter,
    /// `broken_bodies_total`.
    pub broken_bodies: IntCounter,
    /// `failed_open_total{cause}`.
    pub failed_open: Counters<3>,
    /// `lossy_evictions_total`: domains forgotten although they still mattered.
    pub lossy_evictions: IntCounter,
    /// `config_reload_ok`: 1, or 0 after a reload that failed.
    pub reload_ok: IntGauge,
    /// `resolver_failures_total`: lookups that failed for a reason other than the name itself.
    pub resolver_failures: IntCounter,
    /// `accept_errors_total`: connections that could not be accepted (descriptors, mostly).
    pub accept_errors: IntCounter,
    store_writes: [IntCounter; 2],
    store_state: IntGauge,
    circuits_open: IntGauge,
    tracked_domains: IntGauge,
    domain_state: IntGaugeVec,
    domain_errors: IntCounterVec,
    errors: Mutex<DomainErrors>,
}

/// What is read from elsewhere when `/metrics` is asked for.
#[derive(Debug, Default)]
pub struct Scrape {
    /// Domains in memory.
    pub tracked: usize,
    /// Every domain that is not closed, or has overrides or a section of its own.
    pub states: Vec<(DomainKey, State)>,
    /// 1 = fine, 0 = in memory only, -1 = in trouble.
    pub store_state: i64,
    /// Writes that succeeded and that failed.
    pub store_writes: [u64; 2],
}

/// Buckets for what takes from tens of microseconds to a minute, in seconds.
const UPSTREAM_BUCKETS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];
const OVERHEAD_BUCKETS: [f64; 8] = [0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_5, 0.001, 0.01, 0.1];

/// The most series with a `domain` label of one kind.
const MOST_DOMAIN_SERIES: usize = 1_000;
/// How many of them are there for their errors alone.
const TOP_DOMAINS: usize = 100;

/// Makes and registers the families.
struct Maker(Registry);

impl Maker {
    fn add<C: prometheus::core::Collector + Clone + 'static>(&self, collector: prometheus::Result<C>) -> C {
        let collector = collector.expect("metric names are constants and valid");
        self.0.register(Box::new(collector.clone())).expect("metric names are constants and unique");
        collector
    }

    fn counter(&self, name: &str, help: &str) -> IntCounter {
        self.add(IntCounter::with_opts(opts(name, help)))
    }

    fn counters(&self, name: &str, help: &str, labels: &[&str]) -> IntCounterVec {
        self.add(IntCounterVec::new(opts(name, help), labels))
    }

    fn gauge(&self, name: &str, help: &str) -> IntGauge {
        self.add(IntGauge::with_opts(opts(name, help)))
    }

    fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let opts = HistogramOpts::from(opts(name, help)).buckets(buckets.to_vec());
        self.add(Histogram::with_opts(opts))
    }
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(name, help).namespace("fusebox")
}

impl Metrics {
    /// A fresh set, all zero.
    pub fn new() -> Metrics {
        let make = Maker(Registry::new());
        let requests = make.counters("requests_total", "Requests by way in and outcome.", &["way", "outcome"]);
        let pairs: Vec<IntCounter> = Way::ALL
            .iter()
            .flat_map(|way| Ending::ALL.iter().map(move |ending| (way, ending)))
            .map(|(way, ending)| requests.with_label_values(&[way.label(), ending.label()]))
            .collect();
        let refusals = make.counters("refusals_total", "Requests that Fusebox refused.", &["reason"]);
        let would_refuse = make.counters("would_refuse_total", "Requests let through in report mode.", &["reason"]);
        let responses = make.counters("upstream_responses_total", "Response heads by status class.", &["class"]);
        let probes = make.counters("probes_total", "Probes by how they ended.", &["result"]);
        let connections: IntGaugeVec =
            make.add(IntGaugeVec::new(opts("connections", "Open connections by side."), &["side"]));
        let upstream_connections =
            make.counters("upstream_connections_total", "Requests by new or reused connection.", &["kind"]);
        let failed_open =
            make.counters("failed_open_total", "Fetches that went on although something was out of order.", &["cause"]);
        let writes = make.counters("store_writes_total", "Writes to the state store.", &["result"]);
        let build: GaugeVec = make.add(GaugeVec::new(opts("build_info", "Always 1."), &["version"]));
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
        let started: Gauge = make.add(Gauge::with_opts(opts("start_time_seconds", "Start of the process, Unix time.")));
        started.set(crate::clock::Clock::system().now() as f64 / 1e6);
        let reasons = [Reason::Open.label(), Reason::Throttled.label(), Reason::Busy.label()];
        let reload_ok = make.gauge("config_reload_ok", "1, or 0 after a reload that failed.");
        reload_ok.set(1);
        Metrics {
            requests: Counters(pairs.try_into().expect("three ways, six outcomes")),
            refusals: Counters::of(&refusals, reasons),
            would_refuse: Counters::of(&would_refuse, reasons),
            responses: ["other", "1xx", "2xx", "3xx", "4xx", "5xx"].map(|class| responses.with_label_values(&[class])),
            failures: make.counters("upstream_failures_total", "Requests without a response head, by kind.", &["kind"]),
            upstream_seconds: make.histogram(
                "upstream_seconds",
                "From sending to the response head.",
                &UPSTREAM_BUCKETS,
            ),
            overhead_seconds: make.histogram(
                "overhead_seconds",
                "What the proxy took before sending.",
                &OVERHEAD_BUCKETS,
            ),
            trips: make.counter("trips_total", "Automatic openings, failed probes included."),
            probes: Counters::of(&probes, ["success", "error", "lost"]),
            waiting: make.gauge("budget_waiting", "Requests that wait for their turn."),
            wait_seconds: make.histogram(
                "budget_wait_seconds",
                "How long requests waited for their turn.",
                &UPSTREAM_BUCKETS,
            ),
            in_flight: make.gauge("in_flight", "Requests that are being served."),
            downstream: connections.with_label_values(&["downstream"]),
            upstream: connections.with_label_values(&["upstream"]),
            connections_new: upstream_connections.with_label_values(&["new"]),
            connections_reused: upstream_connections.with_label_values(&["reused"]),
            blind_tunnels: make.counter("blind_tunnels_total", "Tunnels in which no status can be seen."),
            broken_bodies: make.counter("broken_bodies_total", "Response bodies that broke off upstream."),
            failed_open: Counters::of(&failed_open, ["store", "reload", "table"]),
            lossy_evictions: make.counter("lossy_evictions_total", "Domains forgotten although they still mattered."),
            reload_ok,
            resolver_failures: make.counter("resolver_failures_total", "Lookups that failed for want of a resolver."),
            accept_errors: make.counter("accept_errors_total", "Connections that could not be accepted."),
            store_writes: ["ok", "error"].map(|result| writes.with_label_values(&[result])),
            store_state: make.gauge("store_state", "1 = durable, 0 = in memory only, -1 = in trouble."),
            circuits_open: make.gauge("circuits_open", "Circuits that are open now."),
            tracked_domains: make.gauge("tracked_domains", "Domains held in memory."),
            domain_state: make
                .add(IntGaugeVec::new(opts("domain_state", "0 = closed, 1 = half-open, 2 = open."), &["domain"])),
            domain_errors: make.counters("domain_errors_total", "Errors counted against a domain.", &["domain"]),
            errors: Mutex::default(),
            registry: make.0,
        }
        .touched()
    }

    /// Series that are there from the start.
    fn touched(self) -> Metrics {
        self.domain_errors.with_label_values(&["other"]);
        self
    }

    /// Counts an error against a domain, under its own label if it has one. `own` says that it always does.
    pub fn domain_error(&self, domain: &DomainKey, own: bool) {
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors.count(domain, own, &self.domain_errors);
    }

    /// Counts a response head by its class.
    pub fn response(&self, status: u16) {
        self.responses[usize::from(status / 100).min(6) % 6].inc();
    }

    /// The text that Prometheus reads, with `scrape` filled in.
    pub fn render(&self, scrape: &Scrape) -> String {
        self.tracked_domains.set(scrape.tracked.cast_signed() as i64);
        self.store_state.set(scrape.store_state);
        for (counter, total) in self.store_writes.iter().zip(scrape.store_writes) {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
        self.render_states(&scrape.states);
        let mut text = Vec::new();
        if let Err(error) = TextEncoder::new().encode(&self.registry.gather(), &mut text) {
            tracing::error!(%error, "metrics could not be encoded");
        }
        String::from_utf8(text).unwrap_or_default()
    }

    fn render_states(&self, states: &[(DomainKey, State)]) {
        self.domain_state.reset();
        let mut open = 0;
        for (index, (domain, state)) in states.iter().enumerate() {
            let value = match state {
                State::Closed => 0,
                State::HalfOpen => 1,
                State::Open(_) => 2,
            };
            open += i64::from(value == 2);
            if index < MOST_DOMAIN_SERIES {
                self.domain_state.with_label_values(&[domain.as_str()]).set(value);
            }
        }
        self.circuits_open.set(open);
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics::new()
    }
}

/// Which domains have a series of their own. Counts are never taken back: a domain that gets its own
/// series starts there at zero, and one that loses it leaves its count to `other`.
#[derive(Debug, Default)]
struct DomainErrors {
    /// Errors so far of domains with a series, and whether they keep it come what may.
    own: HashMap<DomainKey, (u64, bool)>,
    /// Errors so far of some domains without: candidates.
    rest: HashMap<DomainKey, u64>,
    kept: usize,
}

impl DomainErrors {
    fn count(&mut self, domain: &DomainKey, keep: bool, family: &IntCounterVec) {
        if let Some((count, kept)) = self.own.get_mut(domain) {
            *count += 1;
            if keep && !*kept && self.kept < MOST_DOMAIN_SERIES {
                (*kept, self.kept) = (true, self.kept + 1);
            }
            return family.with_label_values(&[domain.as_str()]).inc();
        }
        let keep = keep && self.kept < MOST_DOMAIN_SERIES;
        if keep || self.own.len() - self.kept < TOP_DOMAINS {
            self.own.insert(domain.clone(), (1, keep));
            self.kept += usize::from(keep);
            return family.with_label_values(&[domain.as_str()]).inc();
        }
        family.with_label_values(&["other"]).inc();
        let count = self.rest.get(domain).copied().unwrap_or(0) + 1;
        if self.rest.len() >= MOST_DOMAIN_SERIES && !self.rest.contains_key(domain) {
            self.rest.clear();
        }
        self.rest.insert(domain.clone(), count);
        self.promote(domain, count, family);
    }

    /// A candidate with more errors than the least of the top takes its place.
    fn promote(&mut self, domain: &DomainKey, count: u64, family: &IntCounterVec) {
        let least = self.own.iter().filter(|(_, (_, kept))| !kept).min_by_key(|(_, (count, _))| *count);
        let Some((least, least_count)) = least.map(|(least, (count, _))| (least.clone(), *count)) else { return };
        if count <= least_count {
            return;
        }
        self.own.remove(&least);
        self.rest.remove(domain);
        let left = family.with_label_values(&[least.as_str()]).get();
        family.with_label_values(&["other"]).inc_by(left);
        let _ = family.remove_label_values(&[least.as_str()]);
        self.own.insert(domain.clone(), (count, false));
        family.with_label_values(&[domain.as_str()]).inc_by(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domain_series_are_bounded_and_nothing_is_lost() {
        let metrics = Metrics::new();
        for index in 0..5_000 {
            metrics.domain_error(&DomainKey::from_stored(&format!("d{index}.com")), false);
        }
        for _ in 0..50 {
            metrics.domain_error(&DomainKey::from_stored("busy.com"), false);
        }
        metrics.domain_error(&DomainKey::from_stored("mine.com"), true);
        let text = metrics.render(&Scrape::default());
        let series: Vec<&str> = text.lines().filter(|l| l.starts_with("fusebox_domain_errors_total{")).collect();
        assert_eq!(series.len(), TOP_DOMAINS + 2, "top, other and mine");
        assert!(text.contains("domain_errors_total{domain=\"busy.com\"}"));
        assert!(text.contains("domain_errors_total{domain=\"mine.com\"} 1"));
        let total: u64 = series.iter().filter_map(|l| l.rsplit(' ').next()?.parse::<u64>().ok()).sum();
        assert_eq!(total, 5_051);
    }

    #[test]
    fn classes_are_bounded() {
        let metrics = Metrics::new();
        for status in [100, 204, 301, 404, 503, 999, 600, 0] {
            metrics.response(status);
        }
        let text = metrics.render(&Scrape::default());
        assert!(text.contains("fusebox_upstream_responses_total{class=\"other\"} 3"), "{text}");
    }
}
