//! `CONNECT`: an opaque tunnel. The gate, the budget and connect failures apply; what is inside can't be seen,
//! unless it is plain HTTP.

use std::pin::Pin;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::body::{ProxyBody, Tally};
use super::client_io::{ClientIo, Seat};
use super::inside::{self, Inside, Kind};
use super::refuse::Answer;
use super::target::{self, Target};
use super::{Connection, Place, answer, failed, listener, tunnel};
use crate::core::outcome::Outcome;
use crate::gate::{Permit, Site};
use crate::metrics::{Ending, Way};
use crate::upstream::pool::Origin;

/// Serves one `CONNECT`. Boxed, since what may be served inside a tunnel has the type of what serves it.
pub(super) fn serve(
    connection: Arc<Connection>,
    request: Request<Incoming>,
) -> Pin<Box<dyn Future<Output = Response<ProxyBody>> + Send>> {
    Box::pin(open(connection, request))
}

async fn open(connection: Arc<Connection>, mut request: Request<Incoming>) -> Response<ProxyBody> {
    let proxy = connection.proxy.clone();
    let settings = proxy.settings.load();
    let mut tally = connection.tally(Way::Connect, &request, &settings);
    if let Err(refusal) = connection.door(&request, &settings).await {
        return answer(&refusal, tally, true);
    }
    let (host, port) = match target::authority(request.uri()) {
        Ok(target) => target,
        Err(trouble) => return answer(&Answer::Bad(trouble), tally, true),
    };
    if !settings.connect_ports.allow(port) {
        return answer(&Answer::PortDenied(port), tally, true);
    }
    let site = Arc::new(proxy.gate.site(host, port));
    let mut permit = match proxy.gate.admit(&site).await {
        Ok(permit) => permit,
        Err(refused) => return answer(&Answer::Refused(&refused), tally, true),
    };
    let upstream = match proxy.upstream.settings().dialer.connect(&site.host, site.port).await {
        Ok(upstream) => upstream,
        Err(error) => return failed(&connection, &site, &error, permit, tally, true),
    };
    permit.sending();
    proxy.metrics.connections_new.inc();
    tally.becomes_tunnel();
    tally.ends(Ending::Forwarded);
    tally.status(200);
    let client = hyper::upgrade::on(&mut request);
    let cut = proxy.cut.clone();
    let tunnel = Tunnel { connection, site, upstream, permit, tally };
    proxy.tunnels.spawn(async move {
        let Ok(client) = client.await else { return };
        let Ok(client) = client.downcast::<TokioIo<ClientIo>>() else {
            return tracing::error!("an upgraded connection is not one of ours");
        };
        let first = BytesMut::from(client.read_buf);
        tokio::select! {
            () = tunnel.run(client.io.into_inner(), first) => {}
            () = cut.cancelled() => {}
        }
    });
    Response::new(ProxyBody::own(Bytes::new(), None))
}

/// A tunnel that has been made and said yes to.
struct Tunnel {
    connection: Arc<Connection>,
    site: Arc<Site>,
    upstream: TcpStream,
    permit: Permit,
    tally: Tally,
}

impl Tunnel {
    async fn run(mut self, client: ClientIo, mut first: BytesMut) {
        let (mut client, seat) = client.into_parts();
        let proxy = self.connection.proxy.clone();
        let idle = proxy.settings.load().tunnel_idle;
        let gauge = UpstreamGauge::new(&proxy.metrics);
        let sniffed = inside::sniff(&mut client, &self.upstream, &mut first, &proxy.gate, &mut self.permit);
        match tokio::time::timeout(idle.into(), sniffed).await {
            Ok(Kind::Http) => {
                drop(gauge);
                self.serve_inside(client, seat, first.freeze()).await;
            }
            Ok(Kind::Opaque) => {
                // nothing more will be seen: that it connects is all the success there is
                proxy.gate.record(&mut self.permit, Outcome::Connected);
                mention(&self.connection, &self.site);
                let ended = tunnel::run(client, self.upstream, [&first, &[]], idle).await;
                tracing::debug!(?ended, "tunnel ended");
            }
            Err(_) => tracing::debug!("a tunnel in which nobody spoke ended"),
        }
    }

    /// Serves the requests inside; the connection that the tunnel has made serves the first of them.
    async fn serve_inside(self, client: TcpStream, seat: Seat, first: Bytes) {
        let Tunnel { connection, site, upstream, permit, tally } = self;
        drop(tally);
        let proxy = connection.proxy.clone();
        let target = Target { tls: false, host: site.host.clone(), port: site.port };
        let Some(host_field) = target.host_field() else { return };
        let origin = Arc::new(Origin { tls: false, host: target.host, port: target.port });
        if let Err(error) = proxy.upstream.adopt(&origin, upstream).await {
            tracing::debug!(%error, "a tunnel's connection can't be kept");
        }
        let place = Arc::new(Place { site, origin, host_field, way: Way::Http });
        let inside = Inside::new(place, permit);
        listener::serve_http(proxy, client, seat, first, connection.client, Some(inside)).await;
    }
}

/// Counts a blind tunnel, and says so once per domain and hour.
fn mention(connection: &Connection, site: &Site) {
    connection.proxy.metrics.blind_tunnels.inc();
    let domain = &site.key.key;
    if connection.proxy.mention_blind(domain) {
        tracing::info!(
            event = "blind_tunnel",
            %domain,
            "{domain}: tunnelled blindly, so no status inside can trip its breaker; fetch https:// URLs through the proxy in absolute form to have them seen"
        );
    }
}

/// Counts a tunnel's upstream connection while it lives.
struct UpstreamGauge(Arc<crate::metrics::Metrics>);

impl UpstreamGauge {
    fn new(metrics: &Arc<crate::metrics::Metrics>) -> UpstreamGauge {
        metrics.upstream.inc();
        UpstreamGauge(metrics.clone())
    }
}

impl Drop for UpstreamGauge {
    fn drop(&mut self) {
        self.0.upstream.dec();
    }
}
