//! What downstream talks to: the proxy port.
//!
//! A request's way is straight: [`listener`] accepts, `forward` or `connect` serves, the gate admits, the
//! upstream answers, the permit records, the answer goes back. Whatever Fusebox says itself is made in
//! [`refuse`].

pub mod auth;
mod body;
mod client_io;
mod connect;
mod forward;
pub mod headers;
mod inside;
pub mod listener;
pub mod refuse;
mod target;
pub mod tunnel;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, header};
use hyper::body::{Body, Incoming};

use crate::clock::since_boot;
use crate::core::key::DomainKey;
use crate::core::time::{Micros, SECOND, Span};
use crate::gate::{Gate, Permit, Refused, Site};
use crate::metrics::{Metrics, Way};
use crate::upstream::pool::Origin;
use crate::upstream::{Upstream, UpstreamError};
use auth::Doorman;
use body::{AccessLine, ProxyBody, Tally};
use client_io::Phase;
use headers::Pseudonym;
use inside::Inside;
use refuse::Answer;
use target::Target;

/// Ports that tunnels may go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectPorts {
    /// Any.
    Any,
    /// These.
    These(Vec<u16>),
}

impl ConnectPorts {
    fn allow(&self, port: u16) -> bool {
        match self {
            ConnectPorts::Any => true,
            ConnectPorts::These(ports) => ports.contains(&port),
        }
    }
}

/// What a reload may change.
#[derive(Debug)]
pub struct Settings {
    /// Who may come in.
    pub doorman: Doorman,
    /// Ports that tunnels may go to.
    pub connect_ports: ConnectPorts,
    /// From the first byte of a request to the end of its head.
    pub request_head: Span,
    /// Between requests on a client connection.
    pub keep_alive: Span,
    /// Without a byte of an answer that the client has not taken yet.
    pub body_idle: Span,
    /// Without a byte in a tunnel.
    pub tunnel_idle: Span,
    /// Bytes of a request head.
    pub max_header_bytes: usize,
    /// Fields of a request head.
    pub max_headers: usize,
    /// One log line a request.
    pub access_log: bool,
}

/// The proxy: shared by every connection.
#[derive(Debug)]
pub struct Proxy {
    gate: Gate,
    upstream: Arc<Upstream>,
    metrics: Arc<Metrics>,
    pseudonym: Pseudonym,
    settings: ArcSwap<Settings>,
    /// When a blind tunnel to a domain was last mentioned in the log.
    blind: Mutex<HashMap<DomainKey, Micros>>,
    /// Tunnels and upgrades, which outlive their connection's service.
    tunnels: tokio_util::task::TaskTracker,
    /// Nothing new is accepted.
    stop: tokio_util::sync::CancellationToken,
    /// Whatever still runs ends.
    cut: tokio_util::sync::CancellationToken,
}

impl Proxy {
    /// A proxy that serves nobody yet.
    pub fn new(gate: Gate, upstream: Arc<Upstream>, metrics: Arc<Metrics>, settings: Settings) -> Proxy {
        for kind in UpstreamError::KINDS {
            // there from the start, so that an alert can tell none from nothing
            metrics.failures.with_label_values(&[kind]);
        }
        Proxy {
            gate,
            upstream,
            metrics,
            pseudonym: Pseudonym::random(),
            settings: ArcSwap::from_pointee(settings),
            blind: Mutex::default(),
            tunnels: tokio_util::task::TaskTracker::new(),
            stop: tokio_util::sync::CancellationToken::new(),
            cut: tokio_util::sync::CancellationToken::new(),
        }
    }

    /// Puts new settings in place. Connections that stand are kept.
    pub fn reload(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
    }

    /// Accepts nothing new from now on, and lets what runs finish.
    pub fn stop(&self) {
        self.stop.cancel();
    }

    /// The settings of this moment.
    pub fn settings(&self) -> arc_swap::Guard<Arc<Settings>> {
        self.settings.load()
    }

    /// True if a blind tunnel to this domain is to be mentioned: once an hour.
    fn mention_blind(&self, domain: &DomainKey) -> bool {
        let mut blind = self.blind.lock().unwrap_or_else(PoisonError::into_inner);
        let now = since_boot();
        if blind.get(domain).is_some_and(|last| now.saturating_sub(*last) < 3_600 * SECOND) {
            return false;
        }
        if blind.len() >= 1_000 {
            blind.clear();
        }
        blind.insert(domain.clone(), now);
        true
    }
}

/// A target with everything that is made from it: kept from one request to the next, since most
/// connections go to one place.
#[derive(Debug)]
struct Place {
    site: Arc<Site>,
    origin: Arc<Origin>,
    host_field: HeaderValue,
    way: Way,
}

#[derive(Debug)]
struct Memo {
    authority: String,
    tls: bool,
    generation: usize,
    place: Arc<Place>,
}

/// One client connection.
#[derive(Debug)]
struct Connection {
    proxy: Arc<Proxy>,
    client: SocketAddr,
    phase: Phase,
    memo: Mutex<Option<Memo>>,
    /// Set if it is not the client's connection itself, but what came through a tunnel of his.
    inside: Option<Inside>,
}

impl Connection {
    async fn serve(self: Arc<Self>, request: Request<Incoming>) -> Response<ProxyBody> {
        if request.method() == Method::CONNECT && self.inside.is_none() {
            connect::serve(self, request).await
        } else {
            forward::serve(self, request).await
        }
    }

    fn tally(&self, way: Way, request: &Request<Incoming>, settings: &Settings) -> Tally {
        let has_body = !request.body().is_end_stream();
        let mut tally = Tally::new(self.proxy.metrics.clone(), way, self.phase.clone(), has_body);
        if settings.access_log {
            let request = access_line(request);
            tally.line = Some(Box::new(AccessLine { request, client: self.client, status: 0 }));
        }
        tally
    }

    /// What the door says before anything else is looked at.
    async fn door(&self, request: &Request<Incoming>, settings: &Settings) -> Result<(), Answer<'static>> {
        if request.method() == Method::CONNECT && self.inside.is_some() {
            return Err(Answer::ConnectInside);
        }
        if !settings.doorman.lets_in(self.client.ip()) {
            return Err(Answer::ClientDenied);
        }
        if let Some(trouble) = headers::host_trouble(request.headers(), request.version(), request.method()) {
            return Err(Answer::Bad(trouble.to_owned()));
        }
        // who is inside a tunnel has shown his credentials to get it
        let is_known = self.inside.is_some() || settings.doorman.is_open();
        if !is_known && !settings.doorman.knows(request.headers()).await {
            return Err(Answer::CredentialsWanted);
        }
        if self.proxy.pseudonym.is_in(request.headers()) {
            return Err(Answer::Loop);
        }
        Ok(())
    }

    /// The place that a request goes to.
    fn place_of(&self, request: &Request<Incoming>) -> Result<Arc<Place>, Answer<'static>> {
        match &self.inside {
            Some(inside) => inside.place_of(request),
            None => self.place(request.uri()).map_err(Answer::Bad),
        }
    }

    async fn admit(&self, place: &Place) -> Result<Permit, Box<Refused>> {
        match &self.inside {
            Some(inside) => inside.admit(&self.proxy.gate).await,
            None => self.proxy.gate.admit(&place.site).await,
        }
    }

    /// The place of an absolute-form target.
    fn place(&self, uri: &http::Uri) -> Result<Arc<Place>, String> {
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        let tls = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
        let generation = self.proxy.gate.generation();
        let mut memo = self.memo.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(memo) = &*memo
            && memo.authority == authority
            && memo.tls == tls
            && memo.generation == generation
            && matches!(uri.scheme_str(), Some("http" | "https"))
        {
            return Ok(memo.place.clone());
        }
        let target = target::absolute(uri)?;
        let host_field = target.host_field().ok_or("the host can't stand in a Host field")?;
        let Target { tls, host, port } = target;
        let place = Arc::new(Place {
            site: Arc::new(self.proxy.gate.site(host.clone(), port)),
            origin: Arc::new(Origin { tls, host, port }),
            host_field,
            way: if tls { Way::Https } else { Way::Http },
        });
        *memo = Some(Memo { authority: authority.to_owned(), tls, generation, place: place.clone() });
        Ok(place)
    }
}

/// No response head came: counted, and said so to the client.
fn failed(
    connection: &Connection,
    site: &Site,
    error: &UpstreamError,
    mut permit: Permit,
    tally: Tally,
    to_connect: bool,
) -> Response<ProxyBody> {
    let proxy = &connection.proxy;
    if matches!(error, UpstreamError::Denied { .. } | UpstreamError::OwnListener { .. }) {
        permit.uncharge();
    } else {
        proxy.metrics.failures.with_label_values(&[error.kind()]).inc();
    }
    if matches!(error, UpstreamError::ResolverTrouble(_)) {
        proxy.metrics.resolver_failures.inc();
    }
    proxy.gate.record(&mut permit, error.outcome());
    drop(permit);
    answer(&Answer::Upstream(error, &site.host, site.key.key.as_str()), tally, to_connect)
}

/// Sends an answer of Fusebox's own.
fn answer(answer: &Answer<'_>, mut tally: Tally, to_connect: bool) -> Response<ProxyBody> {
    let mut response = answer.response(to_connect);
    if tally.has_body {
        // what of it is unread would be taken for the next request
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    tally.ends(answer.ending());
    tally.status(response.status().as_u16());
    response.map(|body: Bytes| ProxyBody::own(body, Some(tally)))
}

/// Method and target for the access log: no query, no user name, no raw control bytes.
fn access_line(request: &Request<Incoming>) -> String {
    let uri = request.uri();
    let host = uri.authority().map_or("", |authority| authority.as_str().rsplit('@').next().unwrap_or_default());
    let scheme = uri.scheme_str().map_or_else(String::new, |scheme| format!("{scheme}://"));
    let path = if request.method() == Method::CONNECT { "" } else { uri.path() };
    format!("{} {scheme}{host}{path}", request.method()).escape_default().to_string()
}
