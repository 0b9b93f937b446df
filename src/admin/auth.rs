//! Who may use the admin port, and from where.
//!
//! ```text
//! /metrics /healthz /readyz ── Host ours, or an address? ──────────────────> answered
//! everything else ── Host ours? ── /login ──> compares the token itself
//!                      │ 403       token? ── a write: Origin ours? ──> done
//!                                    │ 401             │ 403
//! ```
//!
//! A page in a browser is the attacker to think of. By rebinding its name to a loopback address it can talk to
//! this port as its own origin; it then names itself in `Host`, which is refused. From its own origin it
//! can send requests but not read answers, and its requests carry no token: the cookie is
//! `SameSite=Strict`, and a write needs an `Origin` that is ours besides, since another port of the same
//! machine is the same site.
//!
//! Metrics and health are read by programs that call us by an address (Prometheus, a kubelet), and need no
//! token. An address can't be rebound, so any will do for a `Host` there; a name must be ours.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header, uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;

use super::Admin;
use super::extract::Params;
use super::problem::Problem;

/// What the name of [`login`]'s cookie begins with. The port follows: cookies know none, and two Fuseboxes on
/// one machine must not overwrite each other's.
const COOKIE: &str = "fusebox_";

/// Answered without a token.
const OPEN: [&str; 3] = ["/metrics", "/healthz", "/readyz"];

/// No inline script, no foreign content, no frame around it.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; \
connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The fields that every answer has, errors included.
const ON_EVERY_ANSWER: [(HeaderName, HeaderValue); 5] = [
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Adds what every answer has.
pub(super) async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in ON_EVERY_ANSWER {
        response.headers_mut().insert(name, value);
    }
    response
}

/// Lets through what may go on.
pub(super) async fn guard(State(admin): State<Arc<Admin>>, request: Request, next: Next) -> Response {
    match judge(&admin, &request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

fn judge(admin: &Admin, request: &Request) -> Result<(), Problem> {
    let (path, headers) = (request.uri().path(), request.headers());
    let is_open = OPEN.contains(&path);
    if is_open && headers.get(header::HOST).is_none_or(|host| host.is_empty()) {
        // a browser always names a host; some checks of health don't
        return Ok(());
    }
    let host = host_of(request.uri(), headers)
        .filter(|host| is_ours(host, admin.listen, &admin.hosts.load()) || (is_open && address_of(host).is_some()));
    let Some(host) = host else {
        return Err(Problem::forbidden(
            "this Host is not one that the admin port answers to: use a loopback name or the listen address, or add the name \
             to [admin] hosts",
        ));
    };
    if is_open || path == "/login" {
        return Ok(());
    }
    let by_cookie = match headers.get(header::AUTHORIZATION) {
        Some(value) if is_bearer(admin, value) => false,
        None if cookies(headers, admin.listen).any(|value| admin.token.is_session(value)) => true,
        _ => return Err(Problem::unauthorized()),
    };
    let is_write = ![Method::GET, Method::HEAD, Method::OPTIONS].contains(request.method());
    if is_write && !is_from_us(headers, &host, by_cookie) {
        return Err(Problem::forbidden(
            "this write does not come from Fusebox's own page: its Origin is another one, or is not told",
        ));
    }
    Ok(())
}

/// The one host that the request names, with its port. An absolute target decides over the field
/// (RFC 9112 section 3.2.2); where both are given they must agree.
fn host_of(target: &Uri, headers: &HeaderMap) -> Option<uri::Authority> {
    let mut fields = headers.get_all(header::HOST).iter();
    let field = match (fields.next(), fields.next()) {
        (Some(field), None) => field.to_str().ok()?.parse::<uri::Authority>().ok()?,
        _ => return None,
    };
    let agrees = target.authority().is_none_or(|authority| *authority == field);
    (agrees && !field.as_str().contains('@')).then_some(field)
}

fn is_ours(host: &uri::Authority, listen: SocketAddr, hosts: &[String]) -> bool {
    let name = host.host();
    if address_of(host).is_some_and(|address| address.is_loopback() || address == listen.ip().to_canonical()) {
        return true;
    }
    name.eq_ignore_ascii_case("localhost") || hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn address_of(host: &uri::Authority) -> Option<IpAddr> {
    let name = host.host();
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    bare.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

fn cookie_name(listen: SocketAddr) -> String {
    format!("{COOKIE}{}", listen.port())
}

fn is_bearer(admin: &Admin, value: &HeaderValue) -> bool {
    let Some((scheme, token)) = value.to_str().ok().and_then(|text| text.split_once(' ')) else { return false };
    scheme.eq_ignore_ascii_case("bearer") && admin.token.is(token.trim().as_bytes())
}

fn cookies(headers: &HeaderMap, listen: SocketAddr) -> impl Iterator<Item = &str> {
    let ours = cookie_name(listen);
    let fields = headers.get_all(header::COOKIE).iter().filter_map(|field| field.to_str().ok());
    let pairs = fields.flat_map(|field| field.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(move |(name, _)| *name == ours).map(|(_, value)| value)
}

/// True if no page of another origin can have sent this write. What a browser says of the origin counts
/// for any credential; with the cookie, which a browser adds by itself, it has to say something.
fn is_from_us(headers: &HeaderMap, host: &uri::Authority, by_cookie: bool) -> bool {
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if let Some(site) = site
        && site != b"same-origin"
        // typed in or started by a tool: there is no page that sent it
        && (by_cookie || site != b"none")
    {
        return false;
    }
    match headers.get(header::ORIGIN) {
        Some(origin) => origin.to_str().is_ok_and(|origin| is_origin_of(origin, host)),
        None => site.is_some() || !by_cookie,
    }
}

fn is_origin_of(origin: &str, host: &uri::Authority) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let Ok(authority) = authority.parse::<uri::Authority>() else { return false };
    // behind a proxy that ends TLS the page's scheme is https
    let usual = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return false,
    };
    let port = |authority: &uri::Authority| authority.port_u16().unwrap_or(usual);
    authority.host().eq_ignore_ascii_case(host.host()) && port(&authority) == port(host)
}

/// What the link of `fusebox page` carries.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(super) struct Login {
    /// The admin token.
    #[serde(default)]
    token: String,
}

/// Trade the token for a cookie.
///
/// Answers the link that `fusebox page` prints, and leads on to the page.
#[utoipa::path(get, path = "/login", params(Login), tag = "page", security(()), responses(
    (status = 303, description = "A cookie is set; go on to `/`"),
))]
pub(super) async fn login(State(admin): State<Arc<Admin>>, Params(login): Params<Login>) -> Result<Response, Problem> {
    if !admin.token.is(login.token.as_bytes()) {
        return Err(Problem::unauthorized());
    }
    let (name, session) = (cookie_name(admin.listen), admin.token.session());
    let cookie = format!("{name}={session}; HttpOnly; SameSite=Strict; Path=/");
    let fields = [(header::SET_COOKIE, cookie), (header::LOCATION, "/".to_owned())];
    Ok((StatusCode::SEE_OTHER, fields).into_response())
}
