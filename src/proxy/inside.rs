//! What comes through a `CONNECT`: plain HTTP is read as requests to that host, all else is tunnelled.
//!
//! Some clients send `http://` URLs through a tunnel too. Their statuses can be seen, so they are. The first
//! bytes tell: a line that ends in an HTTP/1 version is a request. A server that speaks first, a client
//! that speaks anything else, and one that says nothing get a tunnel.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::BytesMut;
use http::{Request, header};
use hyper::body::Incoming;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::Place;
use super::refuse::Answer;
use crate::core::key::Authority;
use crate::core::outcome::Outcome;
use crate::gate::{Gate, Permit, Refused};

/// A request line is not looked at for longer than this.
const LONGEST_LINE: usize = 64 * 1024;
/// How long a probe waits for the client's first byte: then the connection is all there is to judge by.
const SILENCE: Duration = Duration::from_millis(300);

/// A tunnel whose requests are read.
#[derive(Debug)]
pub(super) struct Inside {
    pub place: Arc<Place>,
    /// What the tunnel was charged pays for the first request.
    first: Mutex<Option<Permit>>,
}

impl Inside {
    pub fn new(place: Arc<Place>, permit: Permit) -> Inside {
        Inside { place, first: Mutex::new(Some(permit)) }
    }

    /// The place that a request inside goes to: always the tunnel's, and another may not be named.
    pub fn place_of(&self, request: &Request<Incoming>) -> Result<Arc<Place>, Answer<'static>> {
        let host = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or_default());
        let target = request.uri().authority().map(|authority| authority.as_str());
        let default = if request.uri().scheme_str() == Some("https") { 443 } else { 80 };
        if [host, target].into_iter().flatten().all(|authority| self.is_same(authority, default)) {
            return Ok(self.place.clone());
        }
        Err(Answer::Misdirected)
    }

    fn is_same(&self, authority: &str, default_port: u16) -> bool {
        let site = &self.place.site;
        // a Host field without the port is what some clients make of a tunnel's
        Authority::parse(authority).is_ok_and(|named| {
            named.host == site.host && [site.port, default_port].contains(&named.port.unwrap_or(site.port))
        })
    }

    pub async fn admit(&self, gate: &Gate) -> Result<Permit, Box<Refused>> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        match first {
            Some(permit) => Ok(permit),
            None => gate.admit(&self.place.site).await,
        }
    }
}

/// What the first bytes turned out to be.
pub(super) enum Kind {
    /// Requests.
    Http,
    /// Anything else.
    Opaque,
}

/// Reads the client's first bytes into `first` until it is clear what they are.
pub(super) async fn sniff(
    client: &mut TcpStream,
    upstream: &TcpStream,
    first: &mut BytesMut,
    gate: &Gate,
    permit: &mut Permit,
) -> Kind {
    loop {
        match request_line(first) {
            Some(true) => return Kind::Http,
            Some(false) => return Kind::Opaque,
            None => {}
        }
        tokio::select! {
            read = client.read_buf(first) => match read {
                Ok(count) if count > 0 => {}
                _ => return Kind::Opaque,
            },
            _ = upstream.readable() => return Kind::Opaque,
            () = tokio::time::sleep(SILENCE), if permit.is_probe() && first.is_empty() => {
                gate.record(permit, Outcome::Connected);
                return Kind::Opaque;
            }
        }
    }
}

/// True if the bytes begin with an HTTP/1 request line, false if they do not, `None` if more are needed.
fn request_line(bytes: &[u8]) -> Option<bool> {
    let method = bytes.iter().take_while(|byte| byte.is_ascii_uppercase()).count();
    match bytes.get(method) {
        _ if method > 24 => return Some(false),
        None => return None,
        Some(b' ') if method > 0 => {}
        Some(_) => return Some(false),
    }
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) => {
            let line = bytes[..end].trim_ascii_end();
            Some(line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0"))
        }
        None if bytes.len() > LONGEST_LINE => Some(false),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::request_line;

    #[test]
    fn only_a_request_line_is_http() {
        for text in ["GET / HTTP/1.1\r\nHost: a", "M HTTP/1.0\n", "POST http://a.test/ HTTP/1.1\r\n"] {
            assert_eq!(request_line(text.as_bytes()), Some(true), "{text}");
        }
        for text in [
            "\x16\x03\x01\x02",
            "SSH-2.0-x\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM",
            "EHLO a\r\n",
            " GET / HTTP/1.1\r\n",
            "get / HTTP/1.1\r\n",
        ] {
            assert_eq!(request_line(text.as_bytes()), Some(false), "{text}");
        }
        for text in ["", "GE", "GET /long HTTP/1"] {
            assert_eq!(request_line(text.as_bytes()), None, "{text}");
        }
    }
}
