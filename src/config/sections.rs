//! What a configuration means: every section, every key, every default.
//!
//! Each section is written once, as a list of keys with type and default; the struct, its `Default` and
//! the list of its keys are made from that.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;

use super::read;
use crate::core::policy::PolicyPatch;
use crate::core::time::Span;

/// A value that is never shown: `Debug` hides it, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub(super) fn new(text: &str) -> Secret {
        Secret(text.to_owned())
    }

    /// The value itself. Never log it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Someone who may use the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// The name in the Basic credentials. It holds no colon.
    pub name: String,
    /// An argon2id hash in PHC form that was parsed once already.
    pub hash: Secret,
}

/// What `CONNECT` to a TLS port does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HttpsMode {
    /// The stream is passed on unread.
    Tunnel,
}

/// A proxy between Fusebox and the web. There is none in this version: the key is known, so that the
/// error can say so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParentProxy {}

/// Which part of the Public Suffix List decides what a registrable domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublicSuffixes {
    /// The ICANN part alone: a platform such as `github.io` is one domain.
    Icann,
    /// The private part too: each customer of a platform is a domain.
    All,
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Pretty on a terminal, else JSON.
    Auto,
    /// For people.
    Pretty,
    /// For machines.
    Json,
}

/// The least important log line that is still written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the usual five")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl LogLevel {
    /// The name as it is written in the file.
    pub const fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// Ports that `CONNECT` may reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectPorts {
    /// Every port.
    Any,
    /// These, each at least 1.
    Only(Vec<u16>),
}

impl ConnectPorts {
    /// True if `CONNECT` may reach `port`.
    pub fn allows(&self, port: u16) -> bool {
        match self {
            ConnectPorts::Any => true,
            ConnectPorts::Only(ports) => ports.contains(&port),
        }
    }
}

/// Addresses that are not dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// `"private"`: everything that is not the public Internet.
    Private,
    /// One network.
    Net(IpNet),
}

const fn loopback(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

/// Writes a section, its default and its key list from one list of keys.
macro_rules! section {
    ($(#[doc = $about:literal])+ $name:ident {
        $( $(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr $(, read by $reader:literal)?; )+
    }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name { $( $(#[doc = $doc])+ $(#[serde(deserialize_with = $reader)])? pub $key: $type, )+ }

        impl Default for $name {
            fn default() -> $name { $name { $( $key: $default, )+ } }
        }

        impl $name {
            /// The keys of this section in the order of the documentation.
            pub const KEYS: &'static [&'static str] = &[$( stringify!($key) ),+];
        }
    };
}

section! {
    /// A whole configuration. Every value is set.
    Config {
        /// The listener for programs.
        proxy: Proxy = Proxy::default();
        /// The listener for people and scrapers.
        admin: Admin = Admin::default();
        /// What `CONNECT` does.
        https: Https = Https::default();
        /// Sharing across a cluster.
        redis: Redis = Redis::default();
        /// The policy of every domain, as far as it differs from the built-in one.
        defaults: PolicyPatch = PolicyPatch::default();
        /// Policies of single domains, hosts and groups (`group:NAME`), names as written.
        domains: Vec<(String, PolicyPatch)> = Vec::new(), read by "read::domains";
        /// Domains that share one breaker: name and members as written.
        groups: Vec<(String, Vec<String>)> = Vec::new(), read by "read::groups";
        /// How hosts map to domains.
        keys: Keys = Keys::default();
        /// How long things may take.
        timeouts: Timeouts = Timeouts::default();
        /// How much of anything there may be.
        limits: Limits = Limits::default();
        /// What is logged.
        log: Log = Log::default();
        /// Where fetches may go.
        egress: Egress = Egress::default();
    }
}

section! {
    /// `[proxy]`
    Proxy {
        /// Where programs connect.
        listen: SocketAddr = loopback(3128), read by "read::address";
        /// Who may use it; empty = no credentials are asked for. Names are unique.
        users: Vec<User> = Vec::new(), read by "read::users";
        /// Client networks; empty = any that can reach the listener.
        allow_clients: Vec<IpNet> = Vec::new(), read by "read::nets";
        /// Serve on a non-loopback address without `users` or `allow_clients`.
        open: bool = false;
        /// Worker threads, 1 to 1024; `None` = one per core.
        workers: Option<usize> = None, read by "read::workers";
    }
}

section! {
    /// `[admin]`
    Admin {
        /// Where page, API and metrics are served.
        listen: SocketAddr = loopback(3129), read by "read::address";
        /// Further `Host` names that the page answers to: lower case, no port.
        hosts: Vec<String> = Vec::new(), read by "read::hosts";
    }
}

section! {
    /// `[https]`
    Https {
        /// What `CONNECT` to a TLS port does.
        mode: HttpsMode = HttpsMode::Tunnel, read by "read::https_mode";
        /// Hosts, or `*.` and a host, that are only ever tunnelled: lower case.
        passthrough: Vec<String> = Vec::new(), read by "read::patterns";
    }
}

section! {
    /// `[redis]`
    Redis {
        /// The server that the cluster shares.
        url: Option<Secret> = None, read by "read::redis_url";
        /// Roots trusted for `rediss://` besides the system's: a readable file, absolute.
        ca_file: Option<PathBuf> = None, read by "read::path";
    }
}

section! {
    /// `[keys]`
    Keys {
        /// Which part of the Public Suffix List counts.
        public_suffixes: PublicSuffixes = PublicSuffixes::Icann;
        /// A list in place of the one in the binary: a readable file, absolute.
        list: Option<PathBuf> = None, read by "read::path";
    }
}

section! {
    /// `[timeouts]`: all above zero.
    Timeouts {
        /// From the first byte of a connection or request to the end of its head.
        request_head: Span = Span::seconds(30), read by "read::span";
        /// Between requests on a client connection.
        keep_alive: Span = Span::seconds(60), read by "read::span";
        /// Until an upstream connection stands.
        connect: Span = Span::seconds(10), read by "read::span";
        /// Either side's handshake.
        tls: Span = Span::seconds(10), read by "read::span";
        /// From the end of the request to the upstream's response head.
        response_head: Span = Span::seconds(60), read by "read::span";
        /// No byte moved either way on a body that is not finished.
        body_idle: Span = Span::seconds(120), read by "read::span";
        /// The same for tunnels.
        tunnel_idle: Span = Span::seconds(600), read by "read::span";
        /// How long running requests may finish after the signal to stop.
        drain: Span = Span::seconds(30), read by "read::span";
    }
}

section! {
    /// `[limits]`
    Limits {
        /// Client connections at a time.
        max_connections: usize = 10_000, read by "read::count::<1, 1_000_000, _>";
        /// Octets of a request's or response's head. 8 KiB at least: many clients send that much.
        max_header_bytes: usize = 65_536, read by "read::count::<8_192, 16_777_216, _>";
        /// Fields of a head.
        max_headers: usize = 200, read by "read::count::<16, 10_000, _>";
        /// Domains in memory.
        max_tracked_domains: usize = 100_000, read by "read::count::<1, 10_000_000, _>";
        /// Requests that wait for their turn, per domain; 0 = none may wait.
        max_waiting: usize = 1_000, read by "read::count::<0, 1_000_000, _>";
        /// Idle upstream connections kept per host; 0 = none.
        max_idle_per_host: usize = 64, read by "read::count::<0, 100_000, _>";
        /// Idle upstream connections kept in all; 0 = none.
        max_idle: usize = 1_024, read by "read::count::<0, 1_000_000, _>";
        /// How long an idle upstream connection is kept, above zero.
        upstream_idle: Span = Span::seconds(60), read by "read::span";
    }
}

section! {
    /// `[log]`
    Log {
        /// How lines look.
        format: LogFormat = LogFormat::Auto;
        /// The least important line that is written.
        level: LogLevel = LogLevel::Info;
        /// One line a request.
        access: bool = false;
    }
}

section! {
    /// `[egress]`
    Egress {
        /// Ports that `CONNECT` may reach.
        connect_ports: ConnectPorts = ConnectPorts::Only(vec![80, 443, 8443]), read by "read::connect_ports";
        /// Addresses that are not dialled.
        deny: Vec<Denied> = vec![Denied::Private], read by "read::denied";
        /// Exceptions to `deny`.
        allow: Vec<IpNet> = Vec::new(), read by "read::nets";
        /// Roots trusted besides the system's: a readable file, absolute.
        ca_file: Option<PathBuf> = None, read by "read::path";
        /// The parent proxy.
        proxy: Option<ParentProxy> = None, read by "read::parent_proxy";
        /// Static answers: a host, or `*.` and a host (any depth), in lower case, to at least one address.
        resolve: Vec<(String, Vec<IpAddr>)> = Vec::new(), read by "read::resolve";
    }
}
