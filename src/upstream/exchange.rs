//! One request and its response head, over a kept-alive connection or a new one.
//!
//! A request that meets a connection which the origin has just closed, or an HTTP/2 stream that it refuses,
//! is sent once more if nobody can be hurt by it: nothing of it was sent, or its method is idempotent, it has no
//! body and nothing of an answer was seen (RFC 9110 section 9.2.2).

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use http::{Method, Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::body::{Lease, Progress, RequestBody, ResponseBody};
use super::classify::classify;
use super::h2::{H2, Stream, for_http2, from_http2};
use super::pool::{H1, Origin, Pooled, Turn};
use super::stream::UpstreamStream;
use super::tls::Alpn;
use super::{Settings, Timeouts, Upstream, UpstreamError};
use crate::clock::since_boot;
use crate::core::time::{Micros, Span};
use crate::deadline::Deadline;

/// An exchange that failed, with the request if it may be sent again.
struct Failed {
    error: UpstreamError,
    unsent: Option<Box<Request<RequestBody>>>,
}

impl From<UpstreamError> for Failed {
    fn from(error: UpstreamError) -> Failed {
        Failed { error, unsent: None }
    }
}

impl Upstream {
    /// Sends a request in origin-form to `origin` and waits for the response head.
    ///
    /// `now` is read by [`since_boot`]. `sending` is called before anything may reach
    /// the origin, with the time that a new connection took.
    pub async fn send(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        request: Request<Incoming>,
        now: Micros,
        mut sending: impl FnMut(u64),
    ) -> Result<Response<ResponseBody>, UpstreamError> {
        let (parts, incoming) = request.into_parts();
        let (body, progress) = RequestBody::of(incoming);
        let repeatable = progress.is_none() && is_idempotent(&parts.method);
        let mut request = Request::from_parts(parts, body);
        // in this order: a reload in between makes a connection look older than it is, never newer
        let generation = self.pool.generation();
        let settings = self.settings.load();
        let mut pooled = self.pool.take(origin, repeatable, now);
        let mut repeated = false;
        loop {
            let is_reused = pooled.is_some();
            let connection = match pooled.take() {
                Some(pooled) => pooled,
                None => self.obtain(origin, &settings, generation).await?,
            };
            let may_come_back = matches!(connection, Pooled::H2(_)) || (is_reused && repeatable);
            let spare = (progress.is_none() && !repeated && may_come_back).then(|| Box::new(copy(&request)));
            if is_reused {
                sending(0);
                self.metrics.connections_reused.inc();
            } else {
                sending(since_boot().saturating_sub(now));
            }
            let failed = match self.exchange(origin, connection, request, progress.as_ref(), &settings).await {
                Ok(response) => return Ok(response),
                Err(failed) => failed,
            };
            if repeated {
                return Err(failed.error);
            }
            let again = match failed.error {
                // the origin says that it has not looked at it: any method may be sent again
                UpstreamError::StreamRefused => failed.unsent.or(spare).ok_or(failed.error),
                UpstreamError::ConnectionClosed if is_reused => {
                    failed.unsent.or(spare.filter(|_| repeatable)).ok_or(UpstreamError::StaleConnection)
                }
                error => Err(error),
            };
            request = *again?;
            repeated = true;
        }
    }

    /// Sends a request that asks for an upgrade, on an HTTP/1 connection of its own.
    pub async fn send_upgrade(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        request: Request<Incoming>,
        mut sending: impl FnMut(),
    ) -> Result<Response<Incoming>, UpstreamError> {
        let settings = self.settings.load();
        let Pooled::H1(H1 { connection, mut sender, .. }) =
            self.connect(origin, Alpn::H1Only, &settings, self.pool.generation()).await?
        else {
            return Err(UpstreamError::ConnectionClosed);
        };
        sending();
        tokio::spawn(connection.with_upgrades());
        let (parts, incoming) = request.into_parts();
        let (body, progress) = RequestBody::of(incoming);
        let response = sender.try_send_request(Request::from_parts(parts, body));
        let head = await_head(response, None, progress.as_ref(), &settings.timeouts).await;
        head.map_err(|failed| failed.error)
    }

    /// Keeps a connection that was made for a tunnel, for the requests inside it.
    ///
    /// # Errors
    ///
    /// If it is closed already.
    pub async fn adopt(&self, origin: &Origin, tcp: TcpStream) -> Result<(), UpstreamError> {
        let stream = UpstreamStream::plain(tcp, self.metrics.clone());
        let generation = self.pool.generation();
        if let Pooled::H1(h1) = http1_over(stream, &self.settings.load(), generation).await? {
            self.pool.give_back(origin, h1);
        }
        Ok(())
    }

    /// A connection that is being made, if it is likely to have room; else a new one.
    async fn obtain(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        settings: &Settings,
        generation: u64,
    ) -> Result<Pooled, UpstreamError> {
        let patience = settings.dialer.connect_timeout + settings.timeouts.tls.into();
        let until = tokio::time::Instant::now() + patience;
        let dial = loop {
            let mut done = match self.pool.turn(origin) {
                _ if !origin.tls => break None,
                Turn::Dial(dial) => break Some(dial),
                Turn::Wait(done) => done,
            };
            let waited = tokio::time::timeout_at(until, done.changed()).await;
            if let Some(h2) = self.pool.take_h2(origin) {
                return Ok(Pooled::H2(h2));
            }
            if waited.is_err() {
                break None;
            }
        };
        let connected = self.connect(origin, Alpn::H2OrH1, settings, generation).await;
        let Ok(Pooled::H2(h2)) = &connected else {
            // whoever waits dials for itself
            self.pool.learn(origin, None);
            return connected;
        };
        // this request needs no more than one stream; those who wait want to know how many there are
        let (upstream, origin, h2) = (self.clone(), origin.clone(), h2.clone());
        tokio::spawn(async move {
            h2.settle().await;
            upstream.pool.learn(&origin, Some(h2.limit()));
            drop(dial);
        });
        connected
    }

    async fn connect(
        &self,
        origin: &Origin,
        alpn: Alpn,
        settings: &Settings,
        generation: u64,
    ) -> Result<Pooled, UpstreamError> {
        let tcp = settings.dialer.connect(&origin.host, origin.port).await?;
        self.metrics.connections_new.inc();
        if !origin.tls {
            return http1_over(UpstreamStream::plain(tcp, self.metrics.clone()), settings, generation).await;
        }
        let tls = settings.tls.connect(tcp, &origin.host, alpn, settings.timeouts.tls.into()).await?;
        let is_h2 = super::tls::negotiated_h2(&tls);
        let stream = UpstreamStream::tls(tls, self.metrics.clone());
        if !is_h2 {
            return http1_over(stream, settings, generation).await;
        }
        let h2 = H2::over(stream, settings, generation).await.map_err(|error| classify(&error))?;
        let h2 = Arc::new(h2);
        self.pool.share(origin, &h2);
        Ok(Pooled::H2(h2))
    }

    async fn exchange(
        self: &Arc<Self>,
        origin: &Arc<Origin>,
        connection: Pooled,
        request: Request<RequestBody>,
        progress: Option<&Arc<Progress>>,
        settings: &Settings,
    ) -> Result<Response<ResponseBody>, Failed> {
        let timeouts = &settings.timeouts;
        let (response, lease) = match connection {
            Pooled::H1(mut h1) => {
                let before = h1.received.bytes();
                let response = h1.sender.try_send_request(request);
                let response = await_head(response, Some(&mut h1), progress, timeouts).await;
                let response = response.map_err(|failed| match failed.error {
                    // hyper tells the two apart no more than by its silence
                    UpstreamError::ConnectionClosed if h1.received.bytes() > before => {
                        UpstreamError::ResponseIncomplete.into()
                    }
                    _ => failed,
                })?;
                (response, Lease::H1 { upstream: self.clone(), origin: origin.clone(), h1 })
            }
            Pooled::H2(h2) => {
                let stream = Stream { h2, upstream: self.clone(), origin: origin.clone() };
                let mut sender = stream.h2.sender();
                if let Err(error) = sender.ready().await {
                    self.pool.unshare(origin, &stream.h2);
                    return Err(Failed { error: classify(&error), unsent: Some(Box::new(request)) });
                }
                let response = sender.try_send_request(for_http2(request, origin));
                let response = await_head(response, None, progress, timeouts).await?;
                if response.headers().len() > settings.head.fields {
                    return Err(UpstreamError::HeaderTooLarge.into());
                }
                (response, Lease::H2(stream))
            }
        };
        let body = |incoming| ResponseBody::new(incoming, Some(lease), timeouts.body_idle).beside(progress.cloned());
        Ok(response.map(body))
    }
}

async fn http1_over(stream: UpstreamStream, settings: &Settings, generation: u64) -> Result<Pooled, UpstreamError> {
    let received = stream.received();
    let handshake = http1::Builder::new()
        .max_headers(settings.head.fields)
        .max_header_size(settings.head.bytes)
        // a proxy repairs these in responses, it does not reject them (RFC 9112 sections 5.1 and 5.2)
        .allow_spaces_after_header_name_in_responses(true)
        .allow_obsolete_multiline_headers_in_responses(true)
        .handshake(TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(|error| classify(&error))?;
    let deadline = Deadline::after(settings.timeouts.response_head);
    Ok(Pooled::H1(H1 { connection: Box::new(connection), sender, received, generation, deadline }))
}

/// Drives the connection until the response head is there.
///
/// While the request's body is under way, only its standing still counts; the time for the response head
/// starts when the body has ended.
async fn await_head<F>(
    response: F,
    mut h1: Option<&mut H1>,
    progress: Option<&Arc<Progress>>,
    timeouts: &Timeouts,
) -> Result<Response<Incoming>, Failed>
where
    F: Future<Output = Result<Response<Incoming>, TrySendError<Request<RequestBody>>>>,
{
    let mut response = pin!(response);
    let mut uploading = progress.filter(|progress| !progress.is_done());
    let first = if uploading.is_some() { timeouts.body_idle } else { timeouts.response_head };
    let mut own = None;
    match &mut h1 {
        Some(h1) => h1.deadline.reset(first),
        None => own = Some(Deadline::after(first)),
    }
    poll_fn(|cx| {
        if let Some(h1) = &mut h1 {
            // an error shows in the response too, with the request if it was not sent
            let _ = h1.connection.poll_without_shutdown(cx);
        }
        if let Poll::Ready(result) = response.as_mut().poll(cx) {
            return Poll::Ready(result.map_err(|mut failed| {
                let unsent = failed.take_message().map(|request| Box::new(from_http2(request)));
                Failed { error: classify(failed.error()), unsent }
            }));
        }
        let Some(deadline) = own.as_mut().or(h1.as_mut().map(|h1| &mut h1.deadline)) else { return Poll::Pending };
        if uploading.is_some_and(|progress| progress.is_done()) {
            uploading = None;
            deadline.reset(timeouts.response_head);
        }
        while deadline.poll(cx).is_ready() {
            match uploading.map(|progress| (timeouts.body_idle.micros().saturating_sub(progress.idle_for()), progress))
            {
                Some((left, _)) if left > 0 => deadline.reset(Span(left)),
                Some((_, progress)) if progress.is_starved() => {
                    return Poll::Ready(Err(UpstreamError::RequestStalled.into()));
                }
                _ => return Poll::Ready(Err(UpstreamError::ResponseTimeout.into())),
            }
        }
        Poll::Pending
    })
    .await
}

/// Methods that may be sent twice without harm (RFC 9110 section 9.2.2).
fn is_idempotent(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::PUT | Method::DELETE | Method::OPTIONS | Method::TRACE)
}

/// A copy of a request without a body.
fn copy(request: &Request<RequestBody>) -> Request<RequestBody> {
    let mut copy = Request::new(RequestBody::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.version_mut() = request.version();
    *copy.headers_mut() = request.headers().clone();
    copy
}
