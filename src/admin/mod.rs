//! The admin port: API, metrics, health, and the door to the page.
//!
//! ```text
//! listen ── headers (on every answer) ── guard (Host, token, Origin) ── breakers · events · ask · status
//! ```
//!
//! Everything goes through the [`Gate`], as the proxy's own requests do; there is no second way to a
//! breaker. The port shares no listener with the proxy, and the proxy dials no listener of its own.

mod ask;
mod auth;
mod breakers;
mod events;
mod extract;
mod json;
mod listen;
mod openapi;
mod permit;
mod problem;
mod status;
pub mod token;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouterExt as _};
use utoipa_axum::routes;

pub use json::{EffectivePolicy, StateName};
use problem::Problem;
use token::Token;

use crate::gate::Gate;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::store::Store;

/// Who acts, as the audit trail has it: the one token's name.
const BY: &str = "admin";

/// Octets of a body, but for a look-up's.
const MOST_BODY: usize = 64 * 1024;
/// Octets of a look-up: 10 000 URLs of some 3 000 each.
const MOST_LOOK_UP_BODY: usize = 32 * 1024 * 1024;

/// How long connections may go on after the end of everything else.
const LINGER: Duration = Duration::from_secs(2);

/// What the admin port serves, and to whom.
#[derive(Debug)]
pub struct Admin {
    gate: Gate,
    metrics: Arc<Metrics>,
    store: Store,
    health: Arc<Health>,
    token: Token,
    hosts: ArcSwap<Vec<String>>,
    listen: SocketAddr,
    /// Ends what would go on for ever: the streams.
    closing: CancellationToken,
}

impl Admin {
    /// The admin side of a gate. `hosts` are the further names that it answers to, `listen` is the address
    /// it is bound to.
    pub fn new(
        gate: Gate,
        metrics: Arc<Metrics>,
        store: Store,
        health: Arc<Health>,
        token: Token,
        hosts: Vec<String>,
        listen: SocketAddr,
    ) -> Admin {
        let (hosts, closing) = (ArcSwap::from_pointee(hosts), CancellationToken::new());
        Admin { gate, metrics, store, health, token, hosts, listen, closing }
    }

    /// Replaces the further names, as a reload does.
    pub fn set_hosts(&self, hosts: Vec<String>) {
        self.hosts.store(Arc::new(hosts));
    }

    /// The link that opens the page, with the token: for a terminal, not for a log.
    pub fn login_link(&self) -> String {
        login_link(self.listen, &self.token)
    }
}

/// The link that opens the page of the Fusebox at `listen`.
pub fn login_link(listen: SocketAddr, token: &Token) -> String {
    format!("http://{}/login?token={}", reachable(listen), token.expose())
}

/// An address that a client on this machine can connect to: loopback in place of "any".
pub fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => std::net::Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listen.port())
}

/// Everything that the admin port answers.
pub fn router(admin: Arc<Admin>) -> Router {
    let (router, description) = routes().split_for_parts();
    let router = router.fallback(not_found).method_not_allowed_fallback(not_allowed);
    router
        .layer(axum::Extension(openapi::Description::new(description)))
        .layer(DefaultBodyLimit::max(MOST_BODY))
        .layer(from_fn_with_state(admin.clone(), auth::guard))
        .layer(from_fn(auth::headers))
        .with_state(admin)
}

/// The one list of routes, from which router and description are both made.
fn routes() -> OpenApiRouter<Arc<Admin>> {
    OpenApiRouter::with_openapi(openapi::frame())
        .routes(routes!(status::metrics))
        .routes(routes!(status::healthz))
        .routes(routes!(status::readyz))
        .routes(routes!(breakers::list))
        .routes(routes!(breakers::one, breakers::set, breakers::remove))
        .routes(routes!(breakers::open))
        .routes(routes!(breakers::close))
        .routes(routes!(events::list))
        .routes(routes!(events::stream))
        .routes(routes!(ask::admit))
        .routes(routes!(ask::record))
        .routes(routes!(ask::look_up).layer(DefaultBodyLimit::max(MOST_LOOK_UP_BODY)))
        .routes(routes!(openapi::describe))
        .routes(routes!(status::index))
        .routes(routes!(auth::login))
}

async fn not_found() -> Problem {
    Problem::new(StatusCode::NOT_FOUND, "there is nothing here: /openapi.json describes what there is")
}

async fn not_allowed() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this method does nothing here: /openapi.json describes what there is")
}

/// Serves until `stop`; then streams end, idle connections close, and calls that run have two
/// seconds to end. `stop` comes last of all at the end of the process, so that `/readyz` can tell of the drain.
pub async fn run(listener: TcpListener, admin: Arc<Admin>, stop: CancellationToken) {
    let closing = admin.closing.clone();
    let stopped = {
        let stop = stop.clone();
        async move {
            stop.cancelled().await;
            closing.cancel();
        }
    };
    let served = axum::serve(listen::Bounded::new(listener), router(admin)).with_graceful_shutdown(stopped);
    let lingered = async {
        stop.cancelled().await;
        tokio::time::sleep(LINGER).await;
    };
    tokio::select! {
        served = served => if let Err(error) = served {
            tracing::error!(event = "admin", %error, "the admin port has stopped");
        },
        () = lingered => {}
    }
}
