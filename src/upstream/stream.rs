//! One connection to an origin: plain TCP, or TLS over it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::metrics::Metrics;

/// A connected stream, counted while it lives.
#[derive(Debug)]
pub struct UpstreamStream {
    kind: Kind,
    metrics: Arc<Metrics>,
    received: Received,
}

/// How many bytes have come over a connection.
#[derive(Clone, Debug, Default)]
pub struct Received(Arc<AtomicU64>);

impl Received {
    /// The count of this moment.
    pub fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
enum Kind {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl UpstreamStream {
    /// Counts a plain connection.
    pub fn plain(stream: TcpStream, metrics: Arc<Metrics>) -> UpstreamStream {
        UpstreamStream::of(Kind::Plain(stream), metrics)
    }

    /// Counts a TLS connection.
    pub fn tls(stream: TlsStream<TcpStream>, metrics: Arc<Metrics>) -> UpstreamStream {
        UpstreamStream::of(Kind::Tls(Box::new(stream)), metrics)
    }

    fn of(kind: Kind, metrics: Arc<Metrics>) -> UpstreamStream {
        metrics.upstream.inc();
        UpstreamStream { kind, metrics, received: Received::default() }
    }

    /// The count of what comes over it.
    pub fn received(&self) -> Received {
        self.received.clone()
    }
}

impl Drop for UpstreamStream {
    fn drop(&mut self) {
        self.metrics.upstream.dec();
    }
}

impl AsyncRead for UpstreamStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        // nobody else writes it
        let sum = self.received.bytes() + (buf.filled().len() - before) as u64;
        self.received.0.store(sum, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for UpstreamStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Kind::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Kind::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.kind {
            Kind::Plain(stream) => stream.is_write_vectored(),
            Kind::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.kind {
            Kind::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Kind::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
