//! Why no answer came from an origin, and whose fault that is.
//!
//! One error, five views: what the breaker learns ([`UpstreamError::outcome`]), the status and the
//! RFC 9209 error type that the client gets, the label in metrics, and a sentence for people. All five
//! are exhaustive matches, so a new cause can't be forgotten in one of them.
//!
//! The rule behind `outcome`: only what the origin did may count against it. A resolver that is down, a
//! host without a route, a process without file descriptors and a destination that the guard forbids say
//! nothing about an origin.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::IpAddr;

use http::StatusCode;

use crate::core::outcome::{Failure, Outcome};

/// A fetch that got no response head.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The name does not exist, or has no address (NXDOMAIN or NODATA).
    #[error("no such name")]
    NoSuchName,
    /// The resolver gave no usable answer: nothing is known about the name.
    #[error("resolver: {0}")]
    ResolverTrouble(ResolverTrouble),
    /// The egress guard forbids the address.
    #[error("{address} is {why}")]
    Denied {
        /// The address that would have been dialled.
        address: IpAddr,
        /// What it is: `a loopback address`.
        why: &'static str,
    },
    /// The address is one of this proxy's own listeners.
    #[error("{address} is a listener of this proxy")]
    OwnListener {
        /// The address that would have been dialled.
        address: IpAddr,
    },
    /// The origin refused the connection.
    #[error("connection refused")]
    Refused,
    /// The origin reset the connection while it was being made.
    #[error("connection reset")]
    Reset,
    /// This one host can't be reached.
    #[error("host unreachable")]
    Unreachable,
    /// There is no route: our own network is down, or has none of the address's family.
    #[error("no route")]
    NoRoute,
    /// No connection in time.
    #[error("connect timeout")]
    ConnectTimeout,
    /// Connected, but no TLS session in time.
    #[error("TLS handshake timeout")]
    TlsTimeout,
    /// The origin's certificate was not accepted.
    #[error("certificate {cause}")]
    Certificate {
        /// Completes "the certificate …": `has expired`.
        cause: String,
    },
    /// The origin ended the TLS session with an alert (RFC 8446 section 6.2).
    #[error("TLS alert {alert}")]
    TlsAlert {
        /// The alert's name: `HandshakeFailure`.
        alert: String,
    },
    /// What the origin sent is not TLS, or not as it must be.
    #[error("TLS: {cause}")]
    TlsProtocol {
        /// What was wrong.
        cause: String,
    },
    /// A shortage on this machine: no file descriptors, no local ports, no permission.
    #[error("local: {0}")]
    Local(io::Error),
    /// Connected, but no response head in time.
    #[error("response timeout")]
    ResponseTimeout,
    /// The origin closed or reset the connection before its response head was complete.
    #[error("connection closed before a response")]
    ConnectionClosed,
    /// The origin closed or reset the connection in the middle of its response head.
    #[error("response head broke off")]
    ResponseIncomplete,
    /// The origin turned an HTTP/2 stream away without looking at the request (RFC 9113 section 8.7).
    #[error("HTTP/2 stream refused")]
    StreamRefused,
    /// The origin gave up an HTTP/2 stream, or the connection with it.
    #[error("HTTP/2: {reason}")]
    StreamReset {
        /// The error code in words.
        reason: String,
    },
    /// What the origin sent is not HTTP.
    #[error("malformed response: {cause}")]
    BadResponse {
        /// What was wrong.
        cause: String,
    },
    /// The response head is over `[limits] max_header_bytes` or `max_headers`.
    #[error("response head too large")]
    HeaderTooLarge,
    /// A kept-alive connection turned out to be closed, and the request can't be sent twice.
    #[error("kept-alive connection was closed")]
    StaleConnection,
    /// The client's body stood still.
    #[error("request body stalled")]
    RequestStalled,
    /// The client's body broke off, or is not framed as it must be.
    #[error("request body broken")]
    RequestBroken,
}

/// In which way the resolver failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResolverTrouble {
    /// No answer in time.
    #[error("no answer in time")]
    Timeout,
    /// An answer that is none: SERVFAIL, REFUSED, or no connection to the server.
    #[error("{0}")]
    Failed(String),
    /// The system's configuration names no server that could be asked.
    #[error("none is configured ({0})")]
    NotConfigured(String),
}

impl UpstreamError {
    /// What the breaker learns from it.
    pub const fn outcome(&self) -> Outcome {
        match self {
            UpstreamError::NoSuchName
            | UpstreamError::ResolverTrouble(_)
            | UpstreamError::Denied { .. }
            | UpstreamError::OwnListener { .. }
            | UpstreamError::NoRoute
            | UpstreamError::Local(_)
            | UpstreamError::BadResponse { .. }
            | UpstreamError::HeaderTooLarge
            | UpstreamError::StaleConnection
            | UpstreamError::RequestStalled
            | UpstreamError::RequestBroken => Outcome::NotCounted,
            UpstreamError::Refused
            | UpstreamError::Reset
            | UpstreamError::Unreachable
            | UpstreamError::ConnectTimeout
            | UpstreamError::ConnectionClosed
            | UpstreamError::ResponseIncomplete
            | UpstreamError::StreamRefused
            | UpstreamError::StreamReset { .. } => Outcome::Failure(Failure::Connect),
            UpstreamError::ResponseTimeout => Outcome::Failure(Failure::Timeout),
            UpstreamError::TlsTimeout
            | UpstreamError::Certificate { .. }
            | UpstreamError::TlsAlert { .. }
            | UpstreamError::TlsProtocol { .. } => Outcome::Failure(Failure::Tls),
        }
    }

    /// The status that the client gets (RFC 9110 sections 15.5.4, 15.6.3 and 15.6.5).
    pub const fn status(&self) -> StatusCode {
        match self {
            UpstreamError::Denied { .. } | UpstreamError::OwnListener { .. } => StatusCode::FORBIDDEN,
            UpstreamError::ResolverTrouble(ResolverTrouble::Timeout)
            | UpstreamError::ConnectTimeout
            | UpstreamError::TlsTimeout
            | UpstreamError::ResponseTimeout => StatusCode::GATEWAY_TIMEOUT,
            UpstreamError::NoSuchName
            | UpstreamError::ResolverTrouble(_)
            | UpstreamError::Refused
            | UpstreamError::Reset
            | UpstreamError::Unreachable
            | UpstreamError::NoRoute
            | UpstreamError::Certificate { .. }
            | UpstreamError::TlsAlert { .. }
            | UpstreamError::TlsProtocol { .. }
            | UpstreamError::Local(_)
            | UpstreamError::ConnectionClosed
            | UpstreamError::ResponseIncomplete
            | UpstreamError::StreamRefused
            | UpstreamError::StreamReset { .. }
            | UpstreamError::BadResponse { .. }
            | UpstreamError::StaleConnection
            | UpstreamError::HeaderTooLarge => StatusCode::BAD_GATEWAY,
            UpstreamError::RequestStalled => StatusCode::REQUEST_TIMEOUT,
            UpstreamError::RequestBroken => StatusCode::BAD_REQUEST,
        }
    }

    /// The error type in `Proxy-Status` (RFC 9209 section 2.3).
    pub const fn proxy_error(&self) -> &'static str {
        match self {
            UpstreamError::ResolverTrouble(ResolverTrouble::Timeout) => "dns_timeout",
            UpstreamError::NoSuchName | UpstreamError::ResolverTrouble(_) => "dns_error",
            UpstreamError::Denied { .. } | UpstreamError::OwnListener { .. } => "destination_ip_prohibited",
            UpstreamError::Refused => "connection_refused",
            UpstreamError::Reset
            | UpstreamError::StaleConnection
            | UpstreamError::ConnectionClosed
            | UpstreamError::StreamRefused
            | UpstreamError::StreamReset { .. } => "connection_terminated",
            UpstreamError::Unreachable | UpstreamError::NoRoute => "destination_ip_unroutable",
            UpstreamError::ConnectTimeout | UpstreamError::TlsTimeout => "connection_timeout",
            UpstreamError::Certificate { .. } => "tls_certificate_error",
            UpstreamError::TlsAlert { .. } => "tls_alert_received",
            UpstreamError::TlsProtocol { .. } => "tls_protocol_error",
            UpstreamError::Local(_) => "proxy_internal_error",
            UpstreamError::ResponseTimeout => "http_response_timeout",
            UpstreamError::ResponseIncomplete => "http_response_incomplete",
            UpstreamError::BadResponse { .. } => "http_protocol_error",
            UpstreamError::HeaderTooLarge => "http_response_header_section_size",
            UpstreamError::RequestStalled | UpstreamError::RequestBroken => "http_request_error",
        }
    }

    /// Every `kind` that `upstream_failures_total` may have; what was never tried is not among them.
    pub const KINDS: [&'static str; 20] = [
        "no_such_name",
        "dns_timeout",
        "dns_error",
        "refused",
        "reset",
        "unreachable",
        "no_route",
        "connect_timeout",
        "tls_timeout",
        "tls_certificate",
        "tls_alert",
        "tls_protocol",
        "local",
        "response_timeout",
        "closed",
        "bad_response",
        "header_too_large",
        "stale_connection",
        "request_stalled",
        "request_broken",
    ];

    /// The `kind` label in metrics: one of a fixed set.
    pub const fn kind(&self) -> &'static str {
        match self {
            UpstreamError::NoSuchName => "no_such_name",
            UpstreamError::ResolverTrouble(ResolverTrouble::Timeout) => "dns_timeout",
            UpstreamError::ResolverTrouble(_) => "dns_error",
            UpstreamError::Denied { .. } => "denied",
            UpstreamError::OwnListener { .. } => "own_listener",
            UpstreamError::Refused => "refused",
            UpstreamError::Reset => "reset",
            UpstreamError::Unreachable => "unreachable",
            UpstreamError::NoRoute => "no_route",
            UpstreamError::ConnectTimeout => "connect_timeout",
            UpstreamError::TlsTimeout => "tls_timeout",
            UpstreamError::Certificate { .. } => "tls_certificate",
            UpstreamError::TlsAlert { .. } => "tls_alert",
            UpstreamError::TlsProtocol { .. } => "tls_protocol",
            UpstreamError::Local(_) => "local",
            UpstreamError::ResponseTimeout => "response_timeout",
            UpstreamError::ConnectionClosed => "closed",
            UpstreamError::ResponseIncomplete => "incomplete",
            UpstreamError::StreamRefused => "stream_refused",
            UpstreamError::StreamReset { .. } => "stream_reset",
            UpstreamError::BadResponse { .. } => "bad_response",
            UpstreamError::HeaderTooLarge => "header_too_large",
            UpstreamError::StaleConnection => "stale_connection",
            UpstreamError::RequestStalled => "request_stalled",
            UpstreamError::RequestBroken => "request_broken",
        }
    }

    /// One sentence for people that names the host, the cause and, where there is one, the key to change.
    ///
    /// It may quote what the origin sent: whoever puts it into a header or a page has to escape it.
    pub fn detail(&self, host: &impl fmt::Display) -> String {
        match self {
            UpstreamError::NoSuchName => format!("the name {host} does not exist or has no address"),
            UpstreamError::ResolverTrouble(trouble) => format!("{host} could not be looked up: resolver: {trouble}"),
            UpstreamError::Denied { address, why } => format!(
                "{host} leads to {address}, which is {why}: [egress] deny forbids it; add it to [egress] allow to let it pass"
            ),
            UpstreamError::OwnListener { address } => {
                format!("{host} leads to {address}, a listener of this proxy itself, which it never dials")
            }
            UpstreamError::Refused => format!("{host} refused the connection"),
            UpstreamError::Reset => format!("{host} reset the connection before it was set up"),
            UpstreamError::Unreachable => format!("{host} can't be reached from this network"),
            UpstreamError::NoRoute => format!("there is no route to {host}: this machine's own network may be down"),
            UpstreamError::ConnectTimeout => {
                format!("{host} did not accept a connection in time ([timeouts] connect)")
            }
            UpstreamError::TlsTimeout => format!("{host} did not finish the TLS handshake in time ([timeouts] tls)"),
            UpstreamError::Certificate { cause } => format!("the certificate of {host} {cause}"),
            UpstreamError::TlsAlert { alert } => match alert.as_str() {
                "CertificateRequired" => format!("{host} wants a client certificate (TLS alert {alert})"),
                _ => format!("{host} ended the TLS session with the alert {alert}"),
            },
            UpstreamError::TlsProtocol { cause } => format!("{host} does not speak TLS as it must: {cause}"),
            UpstreamError::Local(error) => {
                format!("this proxy's machine could not make a connection to {host}: {error}")
            }
            UpstreamError::ResponseTimeout => {
                format!("{host} sent no response head in time ([timeouts] response_head)")
            }
            UpstreamError::ConnectionClosed => format!("{host} closed the connection before its response head"),
            UpstreamError::ResponseIncomplete => {
                format!("{host} closed the connection in the middle of its response head")
            }
            UpstreamError::StreamRefused => format!("{host} refused an HTTP/2 stream, unprocessed"),
            UpstreamError::StreamReset { reason } => format!("{host} gave up an HTTP/2 stream: {reason}"),
            UpstreamError::BadResponse { cause } => format!("{host} sent a malformed response: {cause}"),
            UpstreamError::HeaderTooLarge => {
                format!("the response head of {host} is over [limits] max_header_bytes or max_headers")
            }
            UpstreamError::StaleConnection => {
                format!(
                    "{host} closed a kept-alive connection just as this request was sent, which can't be sent twice"
                )
            }
            UpstreamError::RequestStalled => {
                "the request body stood still for too long ([timeouts] body_idle)".to_owned()
            }
            UpstreamError::RequestBroken => "the request body broke off or is malformed".to_owned(),
        }
    }

    /// What a failed `connect(2)` says. Unknown errors are taken as our own: they must not count against an origin.
    pub fn of_connect(error: io::Error) -> UpstreamError {
        match error.kind() {
            io::ErrorKind::ConnectionRefused => UpstreamError::Refused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => UpstreamError::Reset,
            io::ErrorKind::HostUnreachable => UpstreamError::Unreachable,
            io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => UpstreamError::NoRoute,
            io::ErrorKind::TimedOut => UpstreamError::ConnectTimeout,
            _ => UpstreamError::Local(error),
        }
    }

    /// What a TLS error says.
    pub fn of_tls(error: &rustls::Error) -> UpstreamError {
        match error {
            rustls::Error::InvalidCertificate(fault) => UpstreamError::Certificate { cause: certificate_fault(fault) },
            rustls::Error::NoCertificatesPresented => {
                UpstreamError::Certificate { cause: "is missing: none was sent".to_owned() }
            }
            rustls::Error::AlertReceived(alert) => UpstreamError::TlsAlert { alert: format!("{alert:?}") },
            rustls::Error::InvalidMessage(_) => {
                UpstreamError::TlsProtocol { cause: format!("what it sent is no TLS ({error})") }
            }
            rustls::Error::FailedToGetCurrentTime | rustls::Error::FailedToGetRandomBytes => {
                UpstreamError::Local(io::Error::other(error.clone()))
            }
            other => UpstreamError::TlsProtocol { cause: other.to_string() },
        }
    }

    /// The TLS error that hides in the causes of another error, if one does.
    ///
    /// With TLS 1.3 an origin rejects a missing client certificate only after the client's side of the
    /// handshake is done (RFC 8446 section 4.4.2.4): the alert surfaces in the first read, wrapped by the
    /// HTTP library. HTTP/2 keeps no more of it than its text.
    pub fn of_tls_within(error: &(dyn StdError + 'static)) -> Option<UpstreamError> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(tls) = error.downcast_ref::<rustls::Error>() {
                return Some(UpstreamError::of_tls(tls));
            }
            if let Some(io) = error.downcast_ref::<io::Error>() {
                let inner = io.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
                if let Some(tls) = inner {
                    return Some(UpstreamError::of_tls(tls));
                }
            }
            if let Some((_, alert)) = error.to_string().split_once("received fatal alert: ") {
                return Some(UpstreamError::TlsAlert { alert: alert.to_owned() });
            }
            cause = error.source();
        }
        None
    }
}

/// Completes "the certificate …" for people.
fn certificate_fault(fault: &rustls::CertificateError) -> String {
    use rustls::CertificateError as Fault;
    match fault {
        Fault::Expired | Fault::ExpiredContext { .. } => "has expired".to_owned(),
        Fault::NotValidYet | Fault::NotValidYetContext { .. } => "is not valid yet".to_owned(),
        Fault::Revoked => "was revoked".to_owned(),
        Fault::UnknownIssuer => {
            "has an unknown issuer: it is self-signed, its chain is incomplete, or its root belongs into [egress] ca_file"
                .to_owned()
        }
        Fault::NotValidForName => "is for another name".to_owned(),
        Fault::NotValidForNameContext { presented, .. } if presented.is_empty() => {
            "is for another name: it names no host at all".to_owned()
        }
        Fault::NotValidForNameContext { presented, .. } => format!("is for another name: {}", names_shown(presented)),
        Fault::InvalidPurpose | Fault::InvalidPurposeContext { .. } => "is not meant for servers".to_owned(),
        Fault::BadSignature => "has a bad signature".to_owned(),
        Fault::BadEncoding => "can't be read".to_owned(),
        Fault::Other(other) if other.to_string().contains("CaUsedAsEndEntity") => {
            "is self-signed: it is a CA's own, used as a server's".to_owned()
        }
        other => format!("is not acceptable: {other}"),
    }
}

/// A certificate can name hundreds of hosts; these many are shown.
const NAMES_SHOWN: usize = 3;

/// The first of the names in a certificate. rustls gives them as `DnsName("other.test")`.
fn names_shown(presented: &[String]) -> String {
    let bare = |name: &'_ String| name.split('"').nth(1).unwrap_or(name).to_owned();
    let names: Vec<_> = presented.iter().take(NAMES_SHOWN).map(bare).collect();
    let more = if presented.len() > NAMES_SHOWN { ", …" } else { "" };
    format!("{}{more}", names.join(", "))
}
