//! Every answer that Fusebox itself gives, in one place and one shape.
//!
//! Status, `Fusebox-*` fields, `Proxy-Status` (RFC 9209) and a problem document (RFC 9457) all come from
//! the one `match` in `Answer::describe`. Nothing in here is ever counted against a domain.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use hyper::ext::ReasonPhrase;
use serde::Serialize;

use crate::clock::rfc3339_ceil;
use crate::core::key::Host;
use crate::core::outcome::Cause;
use crate::core::row::Opener;
use crate::gate::Refused;
use crate::metrics::{Ending, Reason};
use crate::upstream::UpstreamError;

/// The field that says why, on every answer of Fusebox's own and on no other.
pub const FUSEBOX_REASON: HeaderName = HeaderName::from_static("fusebox-reason");
/// The field that names the domain.
pub const FUSEBOX_DOMAIN: HeaderName = HeaderName::from_static("fusebox-domain");
/// RFC 9209.
pub const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// What the proxy says instead of an upstream's answer.
#[derive(Debug)]
pub enum Answer<'a> {
    /// Breaker, budget or places.
    Refused(&'a Refused),
    /// No answer came from upstream.
    Upstream(&'a UpstreamError, &'a Host, &'a str),
    /// The origin of a plain request asked for proxy credentials.
    UnexpectedProxyAuth(&'a str),
    /// The request can't be understood.
    Bad(String),
    /// The port is not one that tunnels may go to.
    PortDenied(u16),
    /// The client's address is not among `allow_clients`.
    ClientDenied,
    /// Credentials are missing or wrong.
    CredentialsWanted,
    /// A request inside a tunnel names another host than the tunnel's.
    Misdirected,
    /// A `CONNECT` inside a tunnel.
    ConnectInside,
    /// The request has been here before.
    Loop,
}

/// What an [`Answer`] says.
struct Description {
    status: StatusCode,
    reason: &'static str,
    error: &'static str,
    title: &'static str,
    detail: String,
    ending: Ending,
}

/// The body: a problem document with Fusebox's own members.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    domain: Option<&'a str>,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    opened_by: Option<Opener>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_status: Option<Cause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
}

impl Answer<'_> {
    /// How the request counts in `requests_total`.
    pub fn ending(&self) -> Ending {
        self.describe().ending
    }

    /// The response. For a `CONNECT` the cause stands in the reason phrase too, since most clients show
    /// nothing else of it.
    pub fn response(&self, to_connect: bool) -> Response<Bytes> {
        let description = self.describe();
        let refused = match self {
            Answer::Refused(refused) => Some(*refused),
            _ => None,
        };
        let problem = Problem {
            r#type: format!(
                "urn:fusebox:problem:{}",
                refused.map_or(description.error, |refused| refused.reason.label())
            ),
            title: description.title,
            status: description.status.as_u16(),
            detail: &description.detail,
            domain: self.domain(),
            reason: description.reason,
            opened_by: refused.and_then(|refused| refused.opened_by),
            last_status: refused.and_then(|refused| refused.last_status),
            retry_at: refused.map(|refused| rfc3339_ceil(refused.retry_at)),
            retry_after: refused.map(|refused| refused.retry_after),
        };
        let body = serde_json::to_vec(&problem).unwrap_or_default();
        let mut response = Response::new(Bytes::from(body));
        *response.status_mut() = description.status;
        let headers = response.headers_mut();
        if let Some(refused) = refused {
            headers.insert(header::RETRY_AFTER, refused.retry_after.into());
        }
        headers.insert(FUSEBOX_REASON, HeaderValue::from_static(description.reason));
        if let Some(domain) = self.domain().and_then(|domain| HeaderValue::from_str(domain).ok()) {
            headers.insert(FUSEBOX_DOMAIN, domain);
        }
        let status = format!("fusebox; error={}; details=\"{}\"", description.error, quotable(&description.detail));
        if let Ok(status) = HeaderValue::try_from(status) {
            headers.insert(PROXY_STATUS, status);
        }
        if matches!(self, Answer::CredentialsWanted) {
            headers.insert(
                header::PROXY_AUTHENTICATE,
                HeaderValue::from_static("Basic realm=\"fusebox\", charset=\"UTF-8\""),
            );
        }
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if to_connect && let Ok(phrase) = ReasonPhrase::try_from(quotable(&description.detail).into_bytes()) {
            response.extensions_mut().insert(phrase);
        }
        response
    }

    fn domain(&self) -> Option<&str> {
        match self {
            Answer::Refused(refused) => Some(refused.domain.as_str()),
            Answer::Upstream(_, _, domain) | Answer::UnexpectedProxyAuth(domain) => Some(domain),
            _ => None,
        }
    }

    fn describe(&self) -> Description {
        let say = |status, reason, error, title, detail: String, ending| Description {
            status,
            reason,
            error,
            title,
            detail,
            ending,
        };
        let bad = |status, error, title, detail| say(status, "bad-request", error, title, detail, Ending::Bad);
        let denied = |status, error, title, detail| say(status, "denied", error, title, detail, Ending::Denied);
        match self {
            Answer::Refused(refused) => {
                let (error, title, detail) = refusal(refused);
                say(StatusCode::SERVICE_UNAVAILABLE, refused.reason.label(), error, title, detail, Ending::Refused)
            }
            Answer::Upstream(error, host, _) => match error {
                UpstreamError::Denied { .. } | UpstreamError::OwnListener { .. } => {
                    denied(error.status(), error.proxy_error(), "Destination not allowed", error.detail(host))
                }
                UpstreamError::RequestStalled => {
                    bad(StatusCode::REQUEST_TIMEOUT, "http_request_error", "Request timed out", error.detail(host))
                }
                UpstreamError::RequestBroken => {
                    bad(StatusCode::BAD_REQUEST, "http_request_error", "Request body broken", error.detail(host))
                }
                _ => say(
                    error.status(),
                    "upstream",
                    error.proxy_error(),
                    "No answer from upstream",
                    error.detail(host),
                    Ending::Failed,
                ),
            },
            Answer::UnexpectedProxyAuth(_) => say(
                StatusCode::BAD_GATEWAY,
                "upstream",
                "http_protocol_error",
                "Not an answer of an origin",
                "the origin answered 407, which only a proxy may".to_owned(),
                Ending::Failed,
            ),
            Answer::Bad(detail) => bad(StatusCode::BAD_REQUEST, "http_request_error", "Bad request", detail.clone()),
            Answer::PortDenied(port) => denied(
                StatusCode::FORBIDDEN,
                "http_request_denied",
                "Port not allowed",
                format!("CONNECT to port {port} is not allowed: add it to [egress] connect_ports"),
            ),
            Answer::ClientDenied => denied(
                StatusCode::FORBIDDEN,
                "http_request_denied",
                "Client not allowed",
                "this client's address is not in [proxy] allow_clients".to_owned(),
            ),
            Answer::CredentialsWanted => denied(
                StatusCode::PROXY_AUTHENTICATION_REQUIRED,
                "http_request_denied",
                "Proxy credentials wanted",
                "this proxy wants a name and a password of [proxy] users".to_owned(),
            ),
            Answer::Misdirected => bad(
                StatusCode::MISDIRECTED_REQUEST,
                "http_request_error",
                "Another host than the tunnel's",
                "a request inside a tunnel may only name the host that the tunnel goes to".to_owned(),
            ),
            Answer::ConnectInside => bad(
                StatusCode::METHOD_NOT_ALLOWED,
                "http_request_error",
                "CONNECT inside a tunnel",
                "there is no CONNECT inside a tunnel: ask the proxy itself".to_owned(),
            ),
            Answer::Loop => bad(
                StatusCode::LOOP_DETECTED,
                "proxy_loop_detected",
                "Proxy loop",
                "this request has come through this proxy before".to_owned(),
            ),
        }
    }
}

fn refusal(refused: &Refused) -> (&'static str, &'static str, String) {
    let domain = &refused.domain;
    match refused.reason {
        Reason::Open => {
            let cause = match (refused.opened_by, refused.last_status) {
                (Some(Opener::Manual), _) => ": opened by hand".to_owned(),
                (_, Some(cause)) => format!(": {cause}"),
                _ => String::new(),
            };
            ("destination_unavailable", "Circuit open", format!("circuit open for {domain}{cause}"))
        }
        Reason::Throttled => {
            ("http_request_denied", "Request budget spent", format!("request budget spent for {domain}"))
        }
        Reason::Busy => (
            "connection_limit_reached",
            "Too many requests in flight",
            format!("too many requests in flight to {domain}"),
        ),
    }
}

/// A text as it may stand in a quoted string and in a reason phrase: printable ASCII, and no quote.
fn quotable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '"' => '\'',
            '\\' => '/',
            ' '..='~' => c,
            _ => '?',
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::key::DomainKey;

    fn refused(reason: Reason) -> Refused {
        Refused {
            domain: DomainKey::from_stored("medium.com"),
            reason,
            retry_at: 1_780_279_800_000_000,
            retry_after: 3412,
            opened_by: Some(Opener::Auto),
            last_status: Some(Cause::Status(429)),
        }
    }

    fn text(response: &Response<Bytes>) -> String {
        let mut text = format!("{}\n", response.status());
        for (name, value) in response.headers() {
            text += &format!("{name}: {}\n", value.to_str().expect("text"));
        }
        text + &String::from_utf8_lossy(response.body())
    }

    #[test]
    fn an_open_circuit_says_so() {
        insta::assert_snapshot!(text(&Answer::Refused(&refused(Reason::Open)).response(false)));
    }

    #[test]
    fn a_failure_upstream_says_so() {
        let host = Host::parse("a.test").expect("a host");
        let answer = Answer::Upstream(&UpstreamError::ResponseTimeout, &host, "a.test");
        insta::assert_snapshot!(text(&answer.response(false)));
    }

    #[test]
    fn a_refused_connect_says_why_in_its_reason_phrase() {
        let response = Answer::Refused(&refused(Reason::Open)).response(true);
        let phrase = response.extensions().get::<ReasonPhrase>().expect("a phrase");
        assert_eq!(phrase.as_bytes(), b"circuit open for medium.com: 429");
    }

    #[test]
    fn what_is_echoed_stays_text() {
        assert_eq!(quotable("a\"b\\c\r\nd\u{e9}\0"), "a'b/c??d??");
    }

    #[test]
    fn every_answer_has_the_fields_of_one() {
        let host = Host::parse("a.test").expect("a host");
        let answers = [
            Answer::Refused(&refused(Reason::Throttled)),
            Answer::Refused(&refused(Reason::Busy)),
            Answer::Upstream(&UpstreamError::Refused, &host, "a.test"),
            Answer::UnexpectedProxyAuth("a.test"),
            Answer::Bad("x".to_owned()),
            Answer::PortDenied(25),
            Answer::ClientDenied,
            Answer::CredentialsWanted,
            Answer::Misdirected,
            Answer::ConnectInside,
            Answer::Loop,
        ];
        for answer in answers {
            let response = answer.response(false);
            for name in [FUSEBOX_REASON, PROXY_STATUS, header::CACHE_CONTROL, header::CONTENT_TYPE] {
                assert!(response.headers().contains_key(&name), "{answer:?} lacks {name}");
            }
            let problem: serde_json::Value = serde_json::from_slice(response.body()).expect("JSON");
            assert_eq!(problem["status"], response.status().as_u16());
            assert_eq!(problem["reason"], response.headers()[FUSEBOX_REASON].to_str().expect("text"));
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), matches!(answer, Answer::Refused(_)));
        }
    }
}
