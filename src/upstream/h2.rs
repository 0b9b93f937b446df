//! HTTP/2 connections: each is shared by many requests, and an origin gets several where its limit on
//! streams asks for it.
//!
//! The streams on a connection are counted here, and no request is put on one that is full: it would wait
//! in there unseen, until the time for its answer had passed.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{Request, Uri, Version, header};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::body::RequestBody;
use super::pool::Origin;
use super::stream::UpstreamStream;
use super::{Settings, Upstream};
use crate::core::time::Span;

/// How often a connection that carries streams is asked whether it still lives.
const PING_EVERY: Span = Span::seconds(20);

/// How much of one response is on its way, or waits here for its reader.
const STREAM_WINDOW: u32 = 512 * 1024;

/// Room for the windows of all streams at once: readers that stand still must not hold up the others.
const CONNECTION_WINDOW: u32 = {
    let all = STREAM_WINDOW as u64 * MAX_STREAMS as u64;
    if all < MAX_WINDOW { all as u32 } else { MAX_WINDOW as u32 }
};

/// RFC 9113 section 6.9.1.
const MAX_WINDOW: u64 = (1 << 31) - 1;

/// Streams on one connection, at most.
pub const MAX_STREAMS: usize = 100;

/// Stands for the peer's limit until its SETTINGS are here. No peer can say this much: its number has 32 bits.
const UNKNOWN: usize = usize::MAX - 1;

/// How long a peer may keep its SETTINGS to itself, before the usual limit is taken for granted.
const SETTLE_WITHIN: Duration = Duration::from_secs(1);
const LOOK_EVERY: Duration = Duration::from_millis(2);

type Connection = http2::Connection<TokioIo<UpstreamStream>, RequestBody, TokioExecutor>;
type Driven = Arc<Mutex<Option<Connection>>>;

/// One connection.
#[derive(Debug)]
pub struct H2 {
    sender: http2::SendRequest<RequestBody>,
    driven: Driven,
    /// The peer's SETTINGS are taken as read.
    settled: AtomicBool,
    /// Streams, by the pool's count and under its lock.
    pub live: AtomicUsize,
    /// Since when there are none.
    pub idle_since: AtomicU64,
    /// Of the settings that it was made under.
    pub generation: u64,
}

impl H2 {
    /// Shakes hands, and has the connection driven by a task of its own.
    pub async fn over(stream: UpstreamStream, settings: &Settings, generation: u64) -> hyper::Result<H2> {
        let handshake = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(Some(PING_EVERY.into()))
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .initial_max_send_streams(UNKNOWN)
            .max_header_list_size(u32::try_from(settings.head.bytes).unwrap_or(u32::MAX))
            .handshake(TokioIo::new(stream));
        let (sender, connection) = handshake.await?;
        let driven = Arc::new(Mutex::new(Some(connection)));
        tokio::spawn(drive(driven.clone()));
        let (settled, live, idle_since) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicU64::new(0));
        Ok(H2 { sender, driven, settled, live, idle_since, generation })
    }

    /// How many streams it may carry: one, until the peer has said how many.
    pub fn limit(&self) -> usize {
        let driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        match driven.as_ref().map(http2::Connection::current_max_send_streams) {
            None => 0,
            Some(UNKNOWN) if !self.settled.load(Ordering::Relaxed) => 1,
            Some(limit) => limit.min(MAX_STREAMS),
        }
    }

    /// Waits until the peer's limit is known.
    pub async fn settle(&self) {
        let known = || {
            let driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
            driven.as_ref().is_none_or(|connection| connection.current_max_send_streams() != UNKNOWN)
        };
        let look = async {
            while !known() {
                tokio::time::sleep(LOOK_EVERY).await;
            }
        };
        let _ = tokio::time::timeout(SETTLE_WITHIN, look).await;
        self.settled.store(true, Ordering::Relaxed);
    }

    /// True once it takes no more requests.
    pub fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// A handle that sends on it.
    pub fn sender(&self) -> http2::SendRequest<RequestBody> {
        self.sender.clone()
    }
}

async fn drive(driven: Driven) {
    let lock = || driven.lock().unwrap_or_else(PoisonError::into_inner);
    let ended = std::future::poll_fn(|cx| match lock().as_mut() {
        Some(connection) => Pin::new(connection).poll(cx),
        None => std::task::Poll::Ready(Ok(())),
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "HTTP/2 connection ended");
    }
    lock().take();
}

/// One request's place on a connection, from before it is sent to the end of the response's body.
#[derive(Debug)]
pub struct Stream {
    /// The connection.
    pub h2: Arc<H2>,
    /// The way back.
    pub upstream: Arc<Upstream>,
    /// Where the connection goes.
    pub origin: Arc<Origin>,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.upstream.pool.leave(&self.origin, &self.h2);
    }
}

/// HTTP/2 has the authority in the target and no connection-specific fields (RFC 9113 section 8.2.2).
pub fn for_http2(mut request: Request<RequestBody>, origin: &Origin) -> Request<RequestBody> {
    let mut uri = std::mem::take(request.uri_mut()).into_parts();
    let authority = request.headers_mut().remove(header::HOST);
    let authority = authority.and_then(|host| http::uri::Authority::try_from(host.as_bytes()).ok());
    uri.scheme = Some(if origin.tls { http::uri::Scheme::HTTPS } else { http::uri::Scheme::HTTP });
    uri.authority = authority;
    *request.uri_mut() = Uri::from_parts(uri).unwrap_or_default();
    *request.version_mut() = Version::HTTP_2;
    request
}

/// The way back, for a request that was not sent after all.
pub fn from_http2(mut request: Request<RequestBody>) -> Request<RequestBody> {
    if request.version() == Version::HTTP_2 {
        let uri = std::mem::take(request.uri_mut());
        if let Some(host) = uri.authority().and_then(|authority| http::HeaderValue::try_from(authority.as_str()).ok()) {
            request.headers_mut().insert(header::HOST, host);
        }
        *request.uri_mut() = uri.path_and_query().cloned().map_or_else(Uri::default, Uri::from);
        *request.version_mut() = Version::HTTP_11;
    }
    request
}
