//! HTTP/1 messages as they are on the wire: read exactly, kept whole.

use std::io::{self, Read};

/// The start line, the fields and the raw bytes of a message head.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// Every byte up to and with the blank line.
    pub raw: Vec<u8>,
    /// The first line, without its end.
    pub start: String,
    /// The fields in order, names as they were written.
    pub fields: Vec<(String, String)>,
}

impl Head {
    fn parse(raw: Vec<u8>) -> Head {
        let text = String::from_utf8_lossy(&raw).into_owned();
        let mut lines = text.split("\r\n");
        let start = lines.next().unwrap_or_default().to_owned();
        let fields = lines.filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect();
        Head { raw, start, fields }
    }

    /// The values of a field.
    pub fn all(&self, name: &str) -> Vec<&str> {
        self.fields.iter().filter(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str()).collect()
    }

    /// The first value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    fn is_chunked(&self) -> bool {
        self.all("transfer-encoding").iter().any(|value| value.to_ascii_lowercase().contains("chunked"))
    }

    fn length(&self) -> Option<usize> {
        self.field("content-length").and_then(|value| value.parse().ok())
    }
}

/// A request as an origin got it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub head: Head,
    pub method: String,
    pub target: String,
    /// The body, its coding taken off.
    pub body: Vec<u8>,
    pub trailers: Vec<u8>,
    /// Which connection it came on, from 0.
    pub connection: usize,
    /// Which request on its connection it was, from 0.
    pub turn: usize,
}

impl Request {
    /// The `Host` field without its port.
    pub fn host(&self) -> &str {
        let host = self.head.field("host").unwrap_or_default();
        host.rsplit_once(':').map_or(host, |(host, _)| host)
    }

    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.field(name)
    }
}

/// A response as a client got it.
#[derive(Clone, Debug, Default)]
pub struct Response {
    pub head: Head,
    pub status: u16,
    /// The reason phrase.
    pub phrase: String,
    pub body: Vec<u8>,
    pub trailers: Vec<u8>,
    /// True if the body ended as its framing says it should.
    pub whole: bool,
}

impl Response {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.head.field(name)
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// `Fusebox-Reason`.
    pub fn reason(&self) -> Option<&str> {
        self.field("fusebox-reason")
    }

    /// `Retry-After` in seconds.
    pub fn retry_after(&self) -> Option<u64> {
        self.field("retry-after").and_then(|value| value.parse().ok())
    }

    /// Fails unless this is a refusal of Fusebox's own, in the shape that every refusal has.
    #[track_caller]
    pub fn assert_refused(&self, reason: &str, domain: &str) {
        assert_eq!((self.status, self.reason()), (503, Some(reason)), "{self:?}");
        assert_eq!(self.field("fusebox-domain"), Some(domain), "{self:?}");
        assert_eq!(self.field("cache-control"), Some("no-store"), "{self:?}");
        assert_eq!(self.field("content-type"), Some("application/problem+json"), "{self:?}");
        let problem = self.json();
        assert_eq!(problem["status"], 503, "{problem}");
        assert_eq!(problem["reason"], reason, "{problem}");
        assert_eq!(problem["domain"], domain, "{problem}");
        let after = self.retry_after().unwrap_or_else(|| panic!("no Retry-After: {self:?}"));
        assert!(after >= 1, "{self:?}");
        assert_eq!(problem["retry_after"], after, "{problem}");
        assert!(problem["retry_at"].as_str().is_some_and(|at| at.ends_with('Z')), "{problem}");
        let error = match reason {
            "open" => "error=destination_unavailable",
            "throttled" => "error=http_request_denied",
            _ => "error=connection_limit_reached",
        };
        let proxy_status = self.field("proxy-status").unwrap_or_default();
        assert!(proxy_status.starts_with("fusebox") && proxy_status.contains(error), "{proxy_status}");
    }

    /// Fails unless this is Fusebox's own answer with this status and reason.
    #[track_caller]
    pub fn assert_own(&self, status: u16, reason: &str) {
        assert_eq!((self.status, self.reason()), (status, Some(reason)), "{self:?}");
        assert_eq!(self.field("retry-after"), None, "{self:?}");
        assert!(self.field("proxy-status").is_some_and(|value| value.starts_with("fusebox")), "{self:?}");
        assert_eq!(self.json()["status"], status, "{self:?}");
    }

    /// Fails unless this came from an origin.
    #[track_caller]
    pub fn assert_forwarded(&self, status: u16) {
        assert_eq!((self.status, self.reason()), (status, None), "{self:?}");
    }
}

/// Bytes from a stream, with what was read too far kept for the next message.
#[derive(Debug)]
pub struct Reader<S> {
    pub stream: S,
    pub buffer: Vec<u8>,
}

impl<S: Read> Reader<S> {
    pub fn new(stream: S) -> Reader<S> {
        Reader { stream, buffer: Vec::new() }
    }

    /// Reads more. 0 is the end.
    pub fn fill(&mut self) -> io::Result<usize> {
        let mut chunk = [0; 16 * 1024];
        let count = self.stream.read(&mut chunk)?;
        self.buffer.extend_from_slice(&chunk[..count]);
        Ok(count)
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        self.buffer.drain(..count).collect()
    }

    /// Takes exactly `count` bytes.
    pub fn exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < count {
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.take(count))
    }

    /// Takes everything up to and with `end`.
    pub fn through(&mut self, end: &[u8]) -> io::Result<Vec<u8>> {
        let mut searched = 0;
        loop {
            let found = self.buffer[searched..].windows(end.len()).position(|window| window == end);
            if let Some(found) = found {
                return Ok(self.take(searched + found + end.len()));
            }
            searched = self.buffer.len().saturating_sub(end.len() - 1);
            if self.fill()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// Takes everything up to the end of the stream.
    pub fn remainder(&mut self) -> io::Result<Vec<u8>> {
        while self.fill()? > 0 {}
        Ok(std::mem::take(&mut self.buffer))
    }

    fn chunked(&mut self) -> io::Result<(Vec<u8>, Vec<u8>)> {
        let mut body = Vec::new();
        loop {
            let line = self.through(b"\r\n")?;
            let size = String::from_utf8_lossy(&line).split(';').next().unwrap_or_default().trim().to_owned();
            let size = usize::from_str_radix(&size, 16).map_err(io::Error::other)?;
            if size == 0 {
                break;
            }
            body.extend(self.exactly(size)?);
            self.exactly(2)?;
        }
        let mut trailers = Vec::new();
        loop {
            let line = self.through(b"\r\n")?;
            if line == b"\r\n" {
                return Ok((body, trailers));
            }
            trailers.extend(line);
        }
    }

    /// Reads a request's head. `None` is the end of the stream before its first byte.
    pub fn request_head(&mut self) -> io::Result<Option<Request>> {
        if self.buffer.is_empty() && self.fill()? == 0 {
            return Ok(None);
        }
        let head = Head::parse(self.through(b"\r\n\r\n")?);
        let mut words = head.start.split(' ');
        let method = words.next().unwrap_or_default().to_owned();
        let target = words.next().unwrap_or_default().to_owned();
        Ok(Some(Request { method, target, head, ..Request::default() }))
    }

    /// Reads the body that belongs to a request's head.
    pub fn request_body(&mut self, request: &mut Request) -> io::Result<()> {
        if request.head.is_chunked() {
            (request.body, request.trailers) = self.chunked()?;
        } else if let Some(length) = request.head.length() {
            request.body = self.exactly(length)?;
        }
        Ok(())
    }

    /// Reads a response's head. Interim responses are left to the caller.
    pub fn response_head(&mut self) -> io::Result<Response> {
        let head = Head::parse(self.through(b"\r\n\r\n")?);
        let mut words = head.start.splitn(3, ' ');
        let status = words.nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let phrase = words.next().unwrap_or_default().to_owned();
        Ok(Response { head, status, phrase, ..Response::default() })
    }

    /// Reads the body of the answer to `method` that belongs to a response's head.
    pub fn response_body(&mut self, response: &mut Response, method: &str) -> io::Result<()> {
        let none = method == "HEAD" || matches!(response.status, 100..=199 | 204 | 304);
        let tunnel = method == "CONNECT" && response.status / 100 == 2;
        if none || tunnel {
            response.whole = true;
        } else if response.head.is_chunked() {
            (response.body, response.trailers) = self.chunked()?;
            response.whole = true;
        } else if let Some(length) = response.head.length() {
            response.body = self.exactly(length)?;
            response.whole = true;
        } else {
            response.body = self.remainder()?;
            response.whole = true;
        }
        Ok(())
    }
}
