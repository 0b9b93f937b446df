//! Names to addresses: static answers, the hosts file, then DNS as the system is configured.
//!
//! The order is that of `curl --resolve` and `nsswitch`: what is written in the configuration wins over
//! `/etc/hosts`, which wins over the network. `localhost` and names below it never leave the machine
//! (RFC 6761 section 6.3).
//!
//! A and AAAA are asked at the same time but not waited for equally: many resolvers answer one and drop
//! the other, and a fetch must not hang for an IPv6 answer that never comes (RFC 8305 section 3).
//!
//! A system without a usable resolver configuration is no reason not to start: everything but DNS works,
//! and names that need it fail as resolver trouble, which never counts against an origin.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hickory_resolver::config::{ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::{Query, ResponseCode};
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::{Hosts, TokioResolver, system_conf};
use tokio::task::JoinHandle;

use super::error::{ResolverTrouble, UpstreamError};

/// The longest that one name may take, retries and search domains included.
pub const LOOKUP_LIMIT: Duration = Duration::from_secs(5);

/// How long one question may take before it is asked again: an answer that got lost must not cost [`LOOKUP_LIMIT`].
const ATTEMPT_LIMIT: Duration = Duration::from_secs(2);

/// How long to wait for the other family's addresses once one is there (RFC 8305 section 8, Resolution Delay).
const FAMILY_DELAY: Duration = Duration::from_millis(50);

/// Cached answers, at most; TTLs are honoured below that.
const CACHE_SIZE: u64 = 8_192;

/// No answer is believed for longer, whatever its TTL.
const MAX_TTL: Duration = Duration::from_secs(3_600);

/// Looks names up.
pub struct Resolver {
    fixed: StaticAnswers,
    hosts: Hosts,
    dns: Result<TokioResolver, String>,
    failures: AtomicU64,
}

impl Resolver {
    /// A resolver with the system's configuration: `/etc/resolv.conf` and `/etc/hosts`, read once, now.
    /// Trouble with either is logged, not returned.
    pub fn from_system(fixed: StaticAnswers) -> Resolver {
        let hosts = Hosts::from_system().unwrap_or_else(|error| {
            tracing::warn!(%error, "the hosts file can't be read");
            Hosts::default()
        });
        let dns = system_conf::read_system_conf().map_err(|error| error.to_string());
        Resolver::new(fixed, hosts, dns)
    }

    /// A resolver made from its parts. `dns` is a configuration, or why there is none.
    pub fn new(fixed: StaticAnswers, hosts: Hosts, dns: Result<(ResolverConfig, ResolverOpts), String>) -> Resolver {
        let dns = dns.and_then(|(config, options)| dns_client(config, options));
        if let Err(reason) = &dns {
            tracing::warn!(%reason, "no resolver is configured: only static answers, the hosts file and IP addresses work");
        }
        Resolver { fixed, hosts, dns, failures: AtomicU64::new(0) }
    }

    /// How many lookups failed for a reason that says nothing about the name, so far.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// The addresses of `name`, at least one, in the resolver's order; in at most `limit` or [`LOOKUP_LIMIT`].
    ///
    /// `name` is always taken as a name: text that looks like a number is never read as an address.
    ///
    /// # Errors
    ///
    /// [`UpstreamError::NoSuchName`] and [`UpstreamError::ResolverTrouble`].
    pub async fn resolve(&self, name: &str, limit: Duration) -> Result<Vec<IpAddr>, UpstreamError> {
        if let Some(addresses) = self.fixed.find(name) {
            return Ok(addresses.to_vec());
        }
        let query = Name::from_ascii(name).map_err(|_| UpstreamError::NoSuchName)?;
        let local = self.without_network(&query);
        if !local.is_empty() {
            return Ok(local);
        }
        let result = match &self.dns {
            Ok(dns) => tokio::time::timeout(limit.min(LOOKUP_LIMIT), both_families(dns, query))
                .await
                .unwrap_or(Err(UpstreamError::ResolverTrouble(ResolverTrouble::Timeout))),
            Err(reason) => Err(UpstreamError::ResolverTrouble(ResolverTrouble::NotConfigured(reason.clone()))),
        };
        if let Err(UpstreamError::ResolverTrouble(_)) = result {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    /// What the hosts file says, else the loopback addresses for `localhost`, else nothing.
    ///
    /// A name that the file has for one family is not asked for in the other.
    fn without_network(&self, name: &Name) -> Vec<IpAddr> {
        let listed = [RecordType::AAAA, RecordType::A]
            .into_iter()
            .filter_map(|family| self.hosts.lookup_static_host(&Query::query(name.clone(), family)))
            .flat_map(|lookup| addresses_in(&lookup))
            .collect::<Vec<_>>();
        let is_localhost = name.iter().next_back().is_some_and(|label| label.eq_ignore_ascii_case(b"localhost"));
        if listed.is_empty() && is_localhost {
            return vec![Ipv6Addr::LOCALHOST.into(), Ipv4Addr::LOCALHOST.into()];
        }
        listed
    }
}

fn dns_client(config: ResolverConfig, mut options: ResolverOpts) -> Result<TokioResolver, String> {
    if config.name_servers().is_empty() {
        return Err("the configuration names no server".to_owned());
    }
    options.use_hosts_file = ResolveHosts::Never;
    options.cache_size = CACHE_SIZE;
    options.positive_max_ttl = Some(MAX_TTL);
    options.negative_max_ttl = Some(MAX_TTL);
    options.timeout = options.timeout.clamp(Duration::from_secs(1), ATTEMPT_LIMIT);
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    builder.build().map_err(|error| error.to_string())
}

/// Asks for both families; the slower one is waited for as long as [`FAMILY_DELAY`] if the other has addresses.
///
/// The questions run as tasks of their own, so that an answer that comes too late for this fetch is in the
/// cache for the next.
async fn both_families(dns: &TokioResolver, name: Name) -> Result<Vec<IpAddr>, UpstreamError> {
    let mut v6 = ask(dns, name.clone(), RecordType::AAAA);
    let mut v4 = ask(dns, name, RecordType::A);
    let (first, slower) = tokio::select! {
        answer = &mut v6 => (answered(answer), v4),
        answer = &mut v4 => (answered(answer), v6),
    };
    match first {
        Ok(mut addresses) => {
            if let Ok(answer) = tokio::time::timeout(FAMILY_DELAY, slower).await {
                addresses.extend(answered(answer).unwrap_or_default());
            }
            Ok(addresses)
        }
        // trouble with one family is the more telling: the name may well have addresses there
        Err(trouble @ UpstreamError::ResolverTrouble(_)) => answered(slower.await).map_err(|_| trouble),
        Err(_) => answered(slower.await),
    }
}

fn ask(dns: &TokioResolver, name: Name, family: RecordType) -> JoinHandle<Result<Vec<IpAddr>, NetError>> {
    let dns = dns.clone();
    tokio::spawn(async move { dns.lookup(name, family).await.map(|lookup| addresses_in(&lookup)) })
}

fn addresses_in(lookup: &hickory_resolver::lookup::Lookup) -> Vec<IpAddr> {
    lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect()
}

/// Tells "the name has no address" from "nobody knows".
fn answered(
    answer: Result<Result<Vec<IpAddr>, NetError>, tokio::task::JoinError>,
) -> Result<Vec<IpAddr>, UpstreamError> {
    let trouble = |trouble| Err(UpstreamError::ResolverTrouble(trouble));
    match answer {
        Ok(Ok(addresses)) if addresses.is_empty() => Err(UpstreamError::NoSuchName),
        Ok(Ok(addresses)) => Ok(addresses),
        Ok(Err(NetError::Dns(DnsError::NoRecordsFound(none))))
            if matches!(none.response_code, ResponseCode::NXDomain | ResponseCode::NoError) =>
        {
            Err(UpstreamError::NoSuchName)
        }
        Ok(Err(NetError::Timeout)) => trouble(ResolverTrouble::Timeout),
        Ok(Err(error)) => trouble(ResolverTrouble::Failed(error.to_string())),
        Err(lost) => trouble(ResolverTrouble::Failed(lost.to_string())),
    }
}

/// `[egress.resolve]`: answers from the configuration.
#[derive(Clone, Debug, Default)]
pub struct StaticAnswers {
    /// Longest first; a leading `*` is cut off, so that a pattern for names below starts with the dot.
    patterns: Vec<(String, Vec<IpAddr>)>,
}

impl StaticAnswers {
    /// Answers by pattern: a host, or `*.` and a host for every name below it (any depth, not the bare name).
    pub fn new(answers: impl IntoIterator<Item = (String, Vec<IpAddr>)>) -> StaticAnswers {
        let mut patterns: Vec<_> =
            answers.into_iter().map(|(pattern, addresses)| (comparable(&pattern), addresses)).collect();
        patterns.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.len()));
        StaticAnswers { patterns }
    }

    /// The addresses for `name`: those of the longest pattern that matches.
    pub fn find(&self, name: &str) -> Option<&[IpAddr]> {
        let name = name.to_ascii_lowercase();
        let matches = |pattern: &str| match pattern.starts_with('.') {
            true => name.len() > pattern.len() && name.ends_with(pattern),
            false => name == pattern,
        };
        let found = self.patterns.iter().find(|(pattern, addresses)| matches(pattern) && !addresses.is_empty());
        found.map(|(_, addresses)| addresses.as_slice())
    }
}

/// A pattern in the form that hosts have: lower case, punycode, no trailing dot; the star cut off.
fn comparable(pattern: &str) -> String {
    let (dot, name) = pattern.strip_prefix("*.").map_or(("", pattern), |name| (".", name));
    let name = name.strip_suffix('.').unwrap_or(name);
    let ascii = idna::domain_to_ascii(name).unwrap_or_else(|_| name.to_ascii_lowercase());
    format!("{dot}{ascii}")
}
