//! The way to the origin: resolve, guard, dial, TLS, kept-alive connections, and one exchange.
//!
//! [`Upstream::send`] takes a request and gives the response head; the body that comes with it drives the
//! connection and gives it back to the pool at its end.

pub mod body;
mod classify;
pub mod dial;
pub mod error;
mod exchange;
pub mod guard;
mod h2;
pub mod pool;
pub mod resolve;
pub mod stream;
pub mod tls;

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::core::time::Span;
use crate::metrics::Metrics;
use dial::Dialer;
use pool::{Limits, Pool};
use tls::UpstreamTls;

pub use error::UpstreamError;

/// How long each phase may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// The TLS handshake.
    pub tls: Span,
    /// From the end of the request to the response head.
    pub response_head: Span,
    /// Between two bytes of a body.
    pub body_idle: Span,
}

/// The limits on a response head.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// Bytes.
    pub bytes: usize,
    /// Fields.
    pub fields: usize,
}

/// What a reload may change.
pub struct Settings {
    /// Resolver, guard and connect timeout.
    pub dialer: Dialer,
    /// Roots.
    pub tls: UpstreamTls,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Limits on a response head.
    pub head: HeadLimits,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Settings { timeouts, head, .. } = self;
        f.debug_struct("Settings").field("timeouts", timeouts).field("head", head).finish_non_exhaustive()
    }
}

/// All there is towards origins.
#[derive(Debug)]
pub struct Upstream {
    settings: ArcSwap<Settings>,
    pool: Pool,
    metrics: Arc<Metrics>,
}

impl Upstream {
    /// With an empty pool.
    pub fn new(settings: Settings, limits: Limits, metrics: Arc<Metrics>) -> Upstream {
        Upstream { settings: ArcSwap::from_pointee(settings), pool: Pool::new(limits), metrics }
    }

    /// Puts new settings in place. Requests under way keep their connections; no new one gets a connection
    /// that was made under the old settings, which may have allowed what the new ones forbid.
    pub fn reload(&self, settings: Settings) {
        self.settings.store(Arc::new(settings));
        self.pool.age();
    }

    /// Closes idle connections that have been idle for too long.
    pub fn tidy(&self) {
        self.pool.tidy();
    }

    /// The settings of this moment.
    pub fn settings(&self) -> Arc<Settings> {
        self.settings.load_full()
    }
}
