//! Accept loops, connection limits, drain.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::client_io::{ClientIo, Phase, Seat};
use super::inside::Inside;
use super::{Connection, Proxy};
use crate::core::time::Span;
use crate::metrics::{Ending, Way};

/// Pause after an `accept` that failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Binds a listener that can be bound again right after a stop, with connections still in TIME_WAIT.
///
/// # Errors
///
/// As `bind` and `listen` give them.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { tokio::net::TcpSocket::new_v4()? } else { tokio::net::TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1_024)
}

/// Accepts and serves until the proxy is to stop; then lets requests finish, and cuts what is left after `drain`.
pub async fn run(proxy: Arc<Proxy>, listener: TcpListener, most: usize, drain: impl Fn() -> Span) {
    let places = Arc::new(Semaphore::new(most));
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            biased;
            () = proxy.stop.cancelled() => break,
            accepted = accept(&listener, &places) => accepted,
        };
        match accepted {
            Ok((stream, client, place)) => {
                let _ = stream.set_nodelay(true);
                let seat = Seat::new(proxy.metrics.clone(), place);
                connections.spawn(serve_http(proxy.clone(), stream, seat, Bytes::new(), client, None));
            }
            Err(error) if is_about_one_connection(&error) => {}
            Err(error) => {
                proxy.metrics.accept_errors.inc();
                tracing::warn!(%error, "connections can't be accepted; trying again");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    connections.close();
    proxy.tunnels.close();
    let finished = async {
        connections.wait().await;
        proxy.tunnels.wait().await;
    };
    if tokio::time::timeout(drain().into(), finished).await.is_err() {
        tracing::warn!(
            tunnels = proxy.tunnels.len(),
            requests = connections.len(),
            "drain time is up: cutting what is left"
        );
        proxy.cut.cancel();
    }
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    // beyond the limit clients wait in the backlog: nobody is turned away
    let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
    let (stream, client) = listener.accept().await?;
    Ok((stream, client, place))
}

fn is_about_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Serves requests on a client's connection, or `inside` a tunnel of his. `first` was read already.
pub(super) async fn serve_http(
    proxy: Arc<Proxy>,
    stream: TcpStream,
    seat: Seat,
    first: Bytes,
    client: SocketAddr,
    inside: Option<Inside>,
) {
    let settings = proxy.settings.load_full();
    let phase = Phase::new();
    let io = ClientIo::new(stream, seat, first, phase.clone(), &settings);
    let (stop, cut, metrics) = (proxy.stop.clone(), proxy.cut.clone(), proxy.metrics.clone());
    let connection = Arc::new(Connection { proxy, client, phase, memo: Mutex::default(), inside });
    let service = service_fn(move |request| {
        let connection = connection.clone();
        async move { Ok::<_, Infallible>(connection.serve(request).await) }
    });
    let mut served = std::pin::pin!(
        hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(None)
            .max_headers(settings.max_headers)
            .max_header_size(settings.max_header_bytes)
            .serve_connection(TokioIo::new(io), service)
            .with_upgrades()
    );
    drop(settings);
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = stop.cancelled() => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                result = served.as_mut() => result,
                () = cut.cancelled() => Ok(()),
            }
        }
    };
    if let Err(error) = result {
        if error.is_parse() {
            // answered with a bare 400 or 431, before there was a request
            metrics.requests[(Way::Http, Ending::Bad)].inc();
        }
        tracing::debug!(%client, %error, "client connection ended");
    }
}
