//! An admin port of its own for every test, with a clock that stands still.

#![allow(dead_code, reason = "no test needs all of it")]

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use fusebox::admin::token::Token;
use fusebox::admin::{self, Admin};
use fusebox::clock::Clock;
use fusebox::core::key::KeyRules;
use fusebox::core::layers::Policies;
use fusebox::core::time::Micros;
use fusebox::gate::{Gate, Parts};
use fusebox::health::{Health, Phase};
use fusebox::metrics::Metrics;
use fusebox::store::{Location, Store};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// 2026-06-01T02:10:00Z
pub const NOW: Micros = 1_780_279_800_000_000;

/// A running admin port and what is behind it.
pub struct Rig {
    pub address: SocketAddr,
    pub admin: Arc<Admin>,
    pub token: Token,
    pub gate: Gate,
    pub clock: Clock,
    pub health: Arc<Health>,
    pub stop: CancellationToken,
    pub served: tokio::task::JoinHandle<()>,
}

/// An answer, read to its end.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn detail(&self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], self.status.as_u16(), "{problem}");
        problem["detail"].as_str().expect("a detail").to_owned()
    }
}

/// The built-in policy, with `defaults` over it.
pub fn policies(defaults: Option<&str>) -> Policies {
    let defaults = defaults.map(|text| serde_json::from_str(text).expect("a patch")).unwrap_or_default();
    Policies::new(KeyRules::built_in(), defaults, Default::default(), Default::default())
}

impl Rig {
    pub async fn start() -> Rig {
        Rig::with(&["admin.example"], policies(None)).await
    }

    pub async fn with(hosts: &[&str], policies: Policies) -> Rig {
        let (store, _) = Store::open(Location::Memory).expect("a store");
        let (clock, metrics, health) = (Clock::manual(NOW), Arc::new(Metrics::new()), Arc::new(Health::default()));
        let gate = Gate::new(Parts {
            policies,
            clock: clock.clone(),
            metrics: metrics.clone(),
            store: store.clone(),
            rows: Vec::new(),
            last_event: 0,
            max_tracked: 10_000,
            max_waiting: 10,
        });
        let token = Token::random();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let hosts = hosts.iter().map(|host| (*host).to_owned()).collect();
        let admin = Arc::new(Admin::new(gate.clone(), metrics, store, health.clone(), token.clone(), hosts, address));
        let stop = CancellationToken::new();
        let served = tokio::spawn(admin::run(listener, admin.clone(), stop.clone()));
        health.enter(Phase::Ready);
        Rig { address, admin, token, gate, clock, health, stop, served }
    }

    /// Sends exactly these fields.
    pub async fn raw(&self, method: &str, target: &str, fields: &[(&str, &str)], body: &str) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.expect("a connection");
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("HTTP");
        tokio::spawn(connection);
        let mut request =
            Request::builder().method(Method::from_bytes(method.as_bytes()).expect("a method")).uri(target);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
        sender.send_request(request).await.expect("an answer")
    }

    pub async fn send(&self, method: &str, target: &str, fields: &[(&str, &str)], body: &str) -> Answer {
        let (parts, body) = self.raw(method, target, fields, body).await.into_parts();
        let body = body.collect().await.expect("a body").to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    /// As a program with the token calls.
    pub async fn call(&self, method: &str, target: &str, body: &str) -> Answer {
        let (host, bearer) = (self.address.to_string(), self.bearer());
        let fields = [("host", host.as_str()), ("authorization", &bearer), ("content-type", "application/json")];
        self.send(method, target, &fields, body).await
    }

    pub fn bearer(&self) -> String {
        format!("Bearer {}", self.token.expose())
    }

    /// What the link sets.
    pub fn cookie(&self) -> String {
        format!("fusebox_{}={}", self.address.port(), self.token.session())
    }

    /// Makes a domain trip.
    pub async fn trip(&self, url: &str) {
        for _ in 0..3 {
            let body = serde_json::json!({ "url": url, "status": 429 }).to_string();
            assert_eq!(self.call("POST", "/api/v1/record", &body).await.status, 204);
        }
    }
}
