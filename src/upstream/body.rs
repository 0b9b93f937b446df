//! Bodies on their way: the request's, with an eye on its progress, and the response's, which drives the
//! connection that it comes from.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::Upstream;
use super::h2::Stream;
use super::pool::{H1, Origin};
use crate::clock::since_boot;
use crate::core::time::{Micros, Span};
use crate::deadline::Deadline;

/// Boxed error of a body.
pub type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// How far a request body has got.
#[derive(Debug, Default)]
pub struct Progress {
    /// When the last frame moved, by [`since_boot`].
    moved: AtomicU64,
    done: AtomicBool,
    starved: AtomicBool,
}

impl Progress {
    /// True once the last frame was handed over.
    pub fn is_done(&self) -> bool {
        self.done.load(Ordering::Relaxed)
    }

    /// True if the body waits for the client, not for the upstream.
    pub fn is_starved(&self) -> bool {
        self.starved.load(Ordering::Relaxed)
    }

    /// Microseconds since something moved.
    pub fn idle_for(&self) -> u64 {
        since_boot().saturating_sub(self.moved.load(Ordering::Relaxed))
    }
}

/// A request body.
#[derive(Debug)]
pub enum RequestBody {
    /// None.
    Empty,
    /// The client's, as it comes.
    Client(Incoming, Arc<Progress>),
}

impl RequestBody {
    /// The client's body. Bodies that are empty from the start need no watching.
    pub fn of(incoming: Incoming) -> (RequestBody, Option<Arc<Progress>>) {
        if incoming.is_end_stream() {
            return (RequestBody::Empty, None);
        }
        let progress = Arc::new(Progress { moved: since_boot().into(), ..Progress::default() });
        (RequestBody::Client(incoming, progress.clone()), Some(progress))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let RequestBody::Client(incoming, progress) = self.get_mut() else { return Poll::Ready(None) };
        let polled = Pin::new(&mut *incoming).poll_frame(cx);
        progress.starved.store(polled.is_pending(), Ordering::Relaxed);
        let frame = ready!(polled);
        progress.moved.store(since_boot(), Ordering::Relaxed);
        if frame.is_none() || incoming.is_end_stream() {
            progress.done.store(true, Ordering::Relaxed);
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            RequestBody::Empty => true,
            RequestBody::Client(incoming, _) => incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            RequestBody::Empty => SizeHint::with_exact(0),
            RequestBody::Client(incoming, _) => incoming.size_hint(),
        }
    }
}

/// The connection behind a response.
#[derive(Debug)]
pub enum Lease {
    /// Given back to the pool when the body has ended.
    H1 {
        /// The way back.
        upstream: Arc<Upstream>,
        /// Where the connection goes.
        origin: Arc<Origin>,
        /// The connection.
        h1: H1,
    },
    /// One of its streams.
    H2(Stream),
}

/// A response body that drives its own connection, and fails when nothing moves for too long.
#[derive(Debug)]
pub struct ResponseBody {
    incoming: Incoming,
    lease: Option<Lease>,
    /// Set from the first time that there was nothing to pass on.
    idle: Option<Deadline>,
    idle_limit: Span,
    /// When `idle` is met, by [`since_boot`]; none while there is something to pass on.
    due: Option<Micros>,
    /// The request's body, which may be under way still.
    upload: Option<Arc<Progress>>,
    ended: bool,
    broken: bool,
}

/// A deadline that is found to have passed this many microseconds ago was passed unasked: the body's reader
/// was away, and the time says nothing about the origin.
const UNASKED: u64 = 1_000_000;

/// Why a response body ended early.
#[derive(Debug, thiserror::Error)]
#[error("no byte moved for {0}")]
struct Stalled(Span);

impl ResponseBody {
    /// The body of a response that came over `lease` (none: a connection of its own).
    pub fn new(incoming: Incoming, lease: Option<Lease>, idle_limit: Span) -> ResponseBody {
        let ended = incoming.is_end_stream();
        ResponseBody { incoming, lease, idle: None, idle_limit, due: None, upload: None, ended, broken: false }
    }

    /// Has the response wait while the request's body moves.
    pub fn beside(mut self, upload: Option<Arc<Progress>>) -> ResponseBody {
        self.upload = upload;
        self
    }

    /// True if the body broke off.
    pub fn is_broken(&self) -> bool {
        self.broken
    }

    fn poll_incoming(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        if let Some(Lease::H1 { h1, .. }) = &mut self.lease
            && !self.ended
            && let Poll::Ready(Err(error)) = h1.connection.poll_without_shutdown(cx)
        {
            // what arrived before the break is still in the channel
            tracing::trace!(%error, "upstream connection ended");
        }
        match Pin::new(&mut self.incoming).poll_frame(cx) {
            Poll::Ready(frame) => Poll::Ready(frame.map(|frame| frame.map_err(Into::into))),
            Poll::Pending => self.poll_stalled(cx),
        }
    }

    fn poll_stalled(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let limit = self.idle_limit;
        let idle = self.idle.get_or_insert_with(|| Deadline::after(limit));
        // while there was something to pass on, the client's pace was the pace, not the origin's
        let due = self.due.get_or_insert_with(|| {
            idle.reset(limit);
            since_boot() + limit.micros()
        });
        while idle.poll(cx).is_ready() {
            let now = since_boot();
            let was_asked = now.saturating_sub(*due) < UNASKED;
            // its end counts too: the time starts anew with its last byte
            let moved = self.upload.as_ref().map_or(0, |upload| limit.micros().saturating_sub(upload.idle_for()));
            let left = if was_asked { moved } else { limit.micros() };
            if left == 0 {
                return Poll::Ready(Some(Err(Box::new(Stalled(limit)))));
            }
            idle.reset(Span(left));
            *due = now + left;
        }
        Poll::Pending
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = ready!(this.poll_incoming(cx));
        match &frame {
            Some(Err(_)) => {
                this.broken = true;
                this.lease = None;
            }
            Some(Ok(_)) => {
                this.due = None;
                this.ended = this.incoming.is_end_stream();
            }
            None => this.ended = true,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for ResponseBody {
    fn drop(&mut self) {
        if let Some(Lease::H1 { upstream, origin, h1 }) = self.lease.take_if(|_| self.ended) {
            upstream.pool.give_back(&origin, h1);
        }
    }
}
