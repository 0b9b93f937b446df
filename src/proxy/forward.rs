//! Requests, in absolute form or inside a tunnel: admitted, sent on, counted, passed back.

use std::sync::Arc;

use http::{HeaderMap, Request, Response, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::body::{ProxyBody, Tally};
use super::client_io::ClientIo;
use super::refuse::Answer;
use super::{Connection, Place, Settings, answer, failed, headers, target, tunnel};
use crate::clock::since_boot;
use crate::core::outcome::{Outcome, parse_retry_after};
use crate::core::time::MAX_SPAN;
use crate::gate::Permit;
use crate::metrics::{Ending, Way};
use crate::upstream::UpstreamError;
use crate::upstream::body::ResponseBody;
use crate::upstream::stream::UpstreamStream;

/// Serves one request.
pub(super) async fn serve(connection: Arc<Connection>, request: Request<Incoming>) -> Response<ProxyBody> {
    let proxy = &connection.proxy;
    let settings = proxy.settings.load();
    let mut tally = connection.tally(Way::Http, &request, &settings);
    if let Err(refusal) = connection.door(&request, &settings).await {
        return answer(&refusal, tally, false);
    }
    let place = match connection.place_of(&request) {
        Ok(place) => place,
        Err(trouble) => return answer(&trouble, tally, false),
    };
    tally.goes(place.way);
    let permit = match connection.admit(&place).await {
        Ok(permit) => permit,
        Err(refused) => return answer(&Answer::Refused(&refused), tally, false),
    };
    send(&connection, &settings, place, request, permit, tally).await
}

async fn send(
    connection: &Arc<Connection>,
    settings: &Settings,
    place: Arc<Place>,
    mut request: Request<Incoming>,
    mut permit: Permit,
    tally: Tally,
) -> Response<ProxyBody> {
    let proxy = &connection.proxy;
    let version = request.version();
    let upgrade = headers::upgrade_asked(request.headers()).filter(|_| version == Version::HTTP_11);
    let wants_upgrade = upgrade.is_some();
    headers::to_upstream(request.headers_mut(), version, &place.host_field, &proxy.pseudonym, upgrade);
    *request.uri_mut() = target::origin_form(std::mem::take(request.uri_mut()));
    *request.version_mut() = Version::HTTP_11;
    let (sent_at, mut connected_in) = (since_boot(), 0);
    let overhead = sent_at.saturating_sub(tally.started).saturating_sub(permit.waited());
    proxy.metrics.overhead_seconds.observe(overhead as f64 / 1e6);
    if wants_upgrade {
        let client = hyper::upgrade::on(&mut request);
        return match proxy.upstream.send_upgrade(&place.origin, request, || permit.sending()).await {
            Ok(response) => upgraded(connection, settings, &place, response, client, permit, tally),
            Err(error) => failed(connection, &place.site, &error, permit, tally, false),
        };
    }
    let exchange = proxy.upstream.send(&place.origin, request, sent_at, |connecting| {
        permit.sending();
        connected_in = connecting;
    });
    match exchange.await {
        Ok(response) => {
            if let Some(cause) = headers::response_trouble(response.status(), response.headers()) {
                let error = UpstreamError::BadResponse { cause: cause.to_owned() };
                return failed(connection, &place.site, &error, permit, tally, false);
            }
            let took = since_boot().saturating_sub(sent_at).saturating_sub(connected_in);
            proxy.metrics.upstream_seconds.observe(took as f64 / 1e6);
            pass_on(connection, &place, response, permit, tally)
        }
        Err(error) => failed(connection, &place.site, &error, permit, tally, false),
    }
}

/// Counts the answer, before anything that could hide it.
fn count(connection: &Connection, permit: &mut Permit, status: StatusCode, fields: &HeaderMap) {
    let proxy = &connection.proxy;
    proxy.metrics.response(status.as_u16());
    let retry_after = fields.get(header::RETRY_AFTER).and_then(|value| {
        let date = fields.get(header::DATE).map(|date| date.as_bytes());
        parse_retry_after(value.as_bytes(), date, proxy.gate.wall_now(), MAX_SPAN.micros())
    });
    proxy.gate.record(permit, Outcome::Status { code: status.as_u16(), retry_after });
}

/// Passes a response on to the client.
fn pass_on(
    connection: &Connection,
    place: &Place,
    mut response: Response<ResponseBody>,
    mut permit: Permit,
    mut tally: Tally,
) -> Response<ProxyBody> {
    let status = response.status();
    count(connection, &mut permit, status, response.headers());
    if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        return answer(&Answer::UnexpectedProxyAuth(place.site.key.key.as_str()), tally, false);
    }
    let version = response.version();
    headers::to_downstream(response.headers_mut(), version, status, &connection.proxy.pseudonym);
    *response.version_mut() = Version::HTTP_11;
    tally.ends(Ending::Forwarded);
    tally.status(status.as_u16());
    response.map(|body| ProxyBody::upstream(body, tally, permit))
}

/// The origin has answered a request to upgrade: with 101 the connection becomes a tunnel, with anything
/// else it stays HTTP.
fn upgraded(
    connection: &Arc<Connection>,
    settings: &Settings,
    place: &Place,
    mut response: Response<Incoming>,
    client: OnUpgrade,
    mut permit: Permit,
    mut tally: Tally,
) -> Response<ProxyBody> {
    let proxy = &connection.proxy;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        let body_idle = proxy.upstream.settings().timeouts.body_idle;
        let response = response.map(|incoming| ResponseBody::new(incoming, None, body_idle));
        return pass_on(connection, place, response, permit, tally);
    }
    count(connection, &mut permit, response.status(), response.headers());
    let protocol = response.headers().get(header::UPGRADE).cloned();
    let origin = hyper::upgrade::on(&mut response);
    let (version, status) = (response.version(), response.status());
    headers::to_downstream(response.headers_mut(), version, status, &proxy.pseudonym);
    response.headers_mut().insert(header::CONNECTION, header::HeaderValue::from_static("Upgrade"));
    if let Some(protocol) = protocol {
        response.headers_mut().insert(header::UPGRADE, protocol);
    }
    tally.becomes_tunnel();
    tally.ends(Ending::Forwarded);
    tally.status(101);
    let (idle, cut) = (settings.tunnel_idle, proxy.cut.clone());
    proxy.tunnels.spawn(async move {
        let _held = (permit, tally);
        let (Ok(client), Ok(origin)) = (client.await, origin.await) else { return };
        let (Ok(client), Ok(origin)) =
            (client.downcast::<TokioIo<ClientIo>>(), origin.downcast::<TokioIo<UpstreamStream>>())
        else {
            return tracing::error!("an upgraded connection is not one of ours");
        };
        // the origin may have sent its first frames right behind its answer
        let (client_io, origin_io) = (client.io.into_inner(), origin.io.into_inner());
        let run = tunnel::run(client_io, origin_io, [&client.read_buf, &origin.read_buf], idle);
        tokio::select! {
            ended = run => tracing::debug!(?ended, "upgrade ended"),
            () = cut.cancelled() => {}
        }
    });
    response.map(|_| ProxyBody::own(bytes::Bytes::new(), None))
}
