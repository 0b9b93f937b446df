//! The body of an answer, and what happens when it has ended.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, SizeHint};

use super::client_io::Phase;
use super::headers::to_downstream_trailers;
use crate::clock::since_boot;
use crate::core::time::Micros;
use crate::gate::Permit;
use crate::metrics::{Ending, Metrics, Way};
use crate::upstream::body::{BodyError, ResponseBody};

/// What stands in the access log about one request.
#[derive(Clone, Debug)]
pub struct AccessLine {
    /// Method and target, without query and user name.
    pub request: String,
    /// The client's address.
    pub client: std::net::SocketAddr,
    /// The status that the client got.
    pub status: u16,
}

/// One request, from its arrival to its end, however that comes about: counted once, when it is dropped.
#[derive(Debug)]
pub struct Tally {
    metrics: Arc<Metrics>,
    way: Way,
    ending: Ending,
    /// When the request arrived, by [`since_boot`].
    pub started: Micros,
    /// Set if an access log is wanted.
    pub line: Option<Box<AccessLine>>,
    /// Whether the request had a body, which may not have been read.
    pub has_body: bool,
    /// Told when the request is over, unless the connection has become a tunnel.
    phase: Option<Phase>,
}

impl Tally {
    /// A request has arrived.
    pub fn new(metrics: Arc<Metrics>, way: Way, phase: Phase, has_body: bool) -> Tally {
        metrics.in_flight.inc();
        phase.serving(has_body);
        Tally { metrics, way, ending: Ending::Aborted, started: since_boot(), line: None, has_body, phase: Some(phase) }
    }

    /// The way in, once the target is read.
    pub fn goes(&mut self, way: Way) {
        self.way = way;
    }

    /// What became of it. Until this is called it counts as aborted by the client.
    pub fn ends(&mut self, ending: Ending) {
        self.ending = ending;
    }

    /// Notes the status for the access log.
    pub fn status(&mut self, status: u16) {
        if let Some(line) = &mut self.line {
            line.status = status;
        }
    }

    /// The connection is a tunnel from now on: no next request is due on it.
    pub fn becomes_tunnel(&mut self) {
        self.phase = None;
    }

    fn body_ended(&mut self, broken: bool, complete: bool) {
        if broken {
            self.metrics.broken_bodies.inc();
        } else if !complete {
            self.ending = Ending::Aborted;
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        self.metrics.in_flight.dec();
        self.metrics.requests[(self.way, self.ending)].inc();
        if let Some(phase) = &self.phase {
            phase.idle();
        }
        if let Some(line) = &self.line {
            let millis = since_boot().saturating_sub(self.started) as f64 / 1e3;
            tracing::info!(
                target: "fusebox::access",
                client = %line.client,
                status = line.status,
                outcome = self.ending.label(),
                millis,
                "{}",
                line.request
            );
        }
    }
}

/// The body of any answer.
#[derive(Debug)]
pub struct ProxyBody {
    kind: Kind,
    tally: Option<Tally>,
    _permit: Option<Permit>,
}

#[derive(Debug)]
enum Kind {
    Own(Full<Bytes>),
    Upstream {
        body: ResponseBody,
        complete: bool,
        /// Why the body broke off, kept back until what came before has been sent.
        broke: Option<BodyError>,
    },
}

impl ProxyBody {
    /// A body of Fusebox's own.
    pub fn own(text: Bytes, tally: Option<Tally>) -> ProxyBody {
        ProxyBody { kind: Kind::Own(Full::new(text)), tally, _permit: None }
    }

    /// An upstream's body. The permit is held until its end.
    pub fn upstream(body: ResponseBody, tally: Tally, permit: Permit) -> ProxyBody {
        let complete = body.is_end_stream();
        ProxyBody { kind: Kind::Upstream { body, complete, broke: None }, tally: Some(tally), _permit: Some(permit) }
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut self.get_mut().kind {
            Kind::Own(body) => Pin::new(body).poll_frame(cx).map_err(|never| match never {}),
            Kind::Upstream { body, complete, broke } => {
                if let Some(error) = broke.take() {
                    return Poll::Ready(Some(Err(error)));
                }
                let mut frame = ready!(Pin::new(&mut *body).poll_frame(cx));
                if let Some(Err(error)) = frame {
                    // hyper throws away what it has not flushed when a body fails: let it flush first
                    *broke = Some(error);
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                *complete = frame.is_none() || body.is_end_stream();
                if let Some(Ok(frame)) = &mut frame
                    && let Some(trailers) = frame.trailers_mut()
                {
                    to_downstream_trailers(trailers);
                }
                Poll::Ready(frame)
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Own(body) => body.is_end_stream(),
            Kind::Upstream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Own(body) => body.size_hint(),
            Kind::Upstream { body, .. } => body.size_hint(),
        }
    }
}

impl Drop for ProxyBody {
    fn drop(&mut self) {
        if let (Kind::Upstream { body, complete, .. }, Some(tally)) = (&self.kind, &mut self.tally) {
            tally.body_ended(body.is_broken(), *complete);
        }
    }
}
