//! The client's connection, with the time limits that only the stream itself can keep.
//!
//! Between requests a connection may be idle for `keep_alive`; from the first byte of a request, or of the
//! connection, to the end of the head may pass `request_head`. hyper knows neither moment, the stream
//! does: it sees the first byte, and the service tells it when a request has arrived and when it is done.
//! And a client that takes nothing of its answer for `body_idle` is given up.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::Settings;
use crate::core::time::Span;
use crate::deadline::Deadline;
use crate::metrics::Metrics;

/// Where a connection stands, told by the service and read by the stream.
#[derive(Clone, Debug)]
pub struct Phase(Arc<Told>);

#[derive(Debug)]
struct Told {
    phase: AtomicU8,
    has_body: AtomicBool,
}

const HEAD: u8 = 0;
const SERVING: u8 = 1;
const IDLE: u8 = 2;
const LINGERING: u8 = 3;
const WRITING: u8 = 4;

impl Phase {
    /// A connection that has said nothing yet: its first head is due.
    pub fn new() -> Phase {
        Phase(Arc::new(Told { phase: AtomicU8::new(HEAD), has_body: AtomicBool::new(false) }))
    }

    /// A request has arrived; nothing is due from the client but, perhaps, the rest of its body.
    pub fn serving(&self, has_body: bool) {
        self.0.has_body.store(has_body, Ordering::Relaxed);
        self.0.phase.store(SERVING, Ordering::Relaxed);
    }

    /// The answer is on its way; the next request may come.
    pub fn idle(&self) {
        self.0.phase.store(IDLE, Ordering::Relaxed);
    }

    fn now(&self) -> u8 {
        self.0.phase.load(Ordering::Relaxed)
    }
}

/// What is said to a client whose head did not arrive in time, before the connection is closed.
const TIMED_OUT: &[u8] = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nFusebox-Reason: bad-request\r\n\
Proxy-Status: fusebox; error=http_request_error; details=\"the request did not arrive within timeouts.request_head\"\r\n\
Cache-Control: no-store\r\nContent-Length: 0\r\n\r\n";

/// How long a client that was answered early may go on sending before its connection is cut.
const LINGER: Span = Span::seconds(2);

/// A client's place among `max_connections`, and in the gauge: kept for as long as the connection stands, whatever
/// becomes of it.
#[derive(Debug)]
pub struct Seat {
    metrics: Arc<Metrics>,
    _place: OwnedSemaphorePermit,
}

impl Seat {
    /// Takes a place.
    pub fn new(metrics: Arc<Metrics>, place: OwnedSemaphorePermit) -> Seat {
        metrics.downstream.inc();
        Seat { metrics, _place: place }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.metrics.downstream.dec();
    }
}

/// A client's connection.
///
/// A connection that is closed with bytes unread is reset, and a reset can overtake the answer. So after a
/// request with a body, which may have been answered before all of it had come, what still comes is read
/// and thrown away for a while (RFC 9112 section 9.6).
#[derive(Debug)]
pub struct ClientIo {
    stream: TcpStream,
    seat: Seat,
    /// What was read already, and comes first.
    first: Bytes,
    phase: Phase,
    request_head: Span,
    keep_alive: Span,
    body_idle: Span,
    /// What the client is waited for, and until when.
    waiting: u8,
    deadline: Deadline,
    heard: bool,
}

impl ClientIo {
    /// Wraps an accepted connection.
    pub fn new(stream: TcpStream, seat: Seat, first: Bytes, phase: Phase, settings: &Settings) -> ClientIo {
        let Settings { request_head, keep_alive, body_idle, .. } = *settings;
        let deadline = Deadline::after(request_head);
        ClientIo {
            stream,
            seat,
            first,
            phase,
            request_head,
            keep_alive,
            body_idle,
            waiting: HEAD,
            deadline,
            heard: false,
        }
    }

    /// The connection itself, and its place.
    pub fn into_parts(self) -> (TcpStream, Seat) {
        (self.stream, self.seat)
    }

    /// Bytes have come: if a request was being waited for, its head has begun.
    fn heard(&mut self) {
        self.heard = true;
        if self.phase.now() == IDLE {
            self.phase.0.phase.store(HEAD, Ordering::Relaxed);
            self.wait_for(HEAD, self.request_head);
        }
    }

    fn poll_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let phase = self.phase.now();
        if self.waiting == WRITING {
            return Poll::Pending;
        }
        if phase == SERVING {
            self.waiting = SERVING;
            return Poll::Pending;
        }
        if phase != self.waiting {
            self.wait_for(phase, if phase == IDLE { self.keep_alive } else { self.request_head });
        }
        ready!(self.deadline.poll(cx));
        if phase == HEAD && self.heard {
            // best effort: nothing else is being written while a head is due
            let _ = self.stream.try_write(TIMED_OUT);
        }
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    fn wait_for(&mut self, what: u8, limit: Span) {
        self.waiting = what;
        self.deadline.reset(limit);
    }

    /// A write that can't go on waits for the client to read, but not for ever.
    ///
    /// A socket says that it can be written to only when a good part of its buffer is free, so a client that
    /// takes little by little is not heard of for long: when the time is up, the socket is tried itself.
    fn poll_written(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
        rest: &[u8],
    ) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            if self.waiting == WRITING {
                self.waiting = SERVING;
            }
            return written;
        }
        if self.waiting != WRITING {
            self.wait_for(WRITING, self.body_idle);
        }
        ready!(self.deadline.poll(cx));
        self.waiting = SERVING;
        match SockRef::from(&self.stream).send(rest) {
            Ok(count) if count > 0 => Poll::Ready(Ok(count)),
            _ => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.waiting != LINGERING {
            self.wait_for(LINGERING, LINGER);
        }
        let mut scrap = [0; 8 * 1024];
        loop {
            let mut scrap = ReadBuf::new(&mut scrap);
            match Pin::new(&mut self.stream).poll_read(cx, &mut scrap) {
                Poll::Ready(Ok(())) if !scrap.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => {
                    return self.deadline.poll(cx).map(Ok);
                }
            }
        }
    }
}

impl AsyncRead for ClientIo {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if !this.first.is_empty() {
            let count = this.first.len().min(buf.remaining());
            buf.put_slice(&this.first.split_to(count));
            this.heard();
            return Poll::Ready(Ok(()));
        }
        let before = buf.filled().len();
        match Pin::new(&mut this.stream).poll_read(cx, buf) {
            Poll::Pending => this.poll_deadline(cx),
            ready => {
                if buf.filled().len() > before {
                    this.heard();
                }
                ready
            }
        }
    }
}

impl AsyncWrite for ClientIo {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.poll_written(cx, written, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        let rest = bufs.iter().find(|buf| !buf.is_empty()).map_or(&[][..], |buf| buf);
        this.poll_written(cx, written, rest)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(Pin::new(&mut this.stream).poll_shutdown(cx))?;
        if this.phase.0.has_body.load(Ordering::Relaxed) { this.poll_linger(cx) } else { Poll::Ready(Ok(())) }
    }
}
