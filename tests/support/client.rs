//! A client that sends what it is told to, byte for byte.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use super::message::{Reader, Response};
use super::patience::{PATIENCE, now};

/// One connection, for as many exchanges as wanted.
#[derive(Debug)]
pub struct Client {
    reader: Reader<TcpStream>,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Client {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time limit");
        Client { reader: Reader::new(stream) }
    }

    /// A connection whose receive buffer is small, so that it soon holds the sender back.
    pub fn connect_narrow(address: SocketAddr) -> Client {
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        socket.set_recv_buffer_size(8 * 1024).expect("a small buffer");
        socket.connect(&address.into()).expect("a connection");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        stream.set_write_timeout(Some(PATIENCE)).expect("a time limit");
        Client { reader: Reader::new(stream) }
    }

    pub fn local(&self) -> SocketAddr {
        self.reader.stream.local_addr().expect("an address")
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> &mut Client {
        self.reader.stream.write_all(bytes.as_ref()).expect("bytes go out");
        self
    }

    /// Sends, and does not mind if the other side has closed.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.reader.stream.write_all(bytes.as_ref())
    }

    /// Says that nothing more will come; still reads.
    pub fn finish(&mut self) {
        self.reader.stream.shutdown(Shutdown::Write).expect("half-close");
    }

    /// The answer to `method`, its body included; interim answers are passed over.
    #[track_caller]
    pub fn response(&mut self, method: &str) -> Response {
        let mut response = self.head();
        if let Err(error) = self.reader.response_body(&mut response, method) {
            panic!("the body of the answer: {error}: {response:?}");
        }
        response
    }

    /// The answer's head, interim ones passed over.
    #[track_caller]
    pub fn head(&mut self) -> Response {
        loop {
            let response = match self.reader.response_head() {
                Ok(response) => response,
                Err(error) => panic!("no answer: {error}: {:?}", String::from_utf8_lossy(&self.reader.buffer)),
            };
            if !matches!(response.status, 100 | 102..=199) {
                return response;
            }
        }
    }

    /// The answer, as far as it comes: `whole` tells if that was all of it.
    pub fn broken_response(&mut self, method: &str) -> Response {
        let mut response = self.head();
        let result = self.reader.response_body(&mut response, method);
        response.whole = result.is_ok();
        response
    }

    /// Sends a request and reads its answer.
    #[track_caller]
    pub fn exchange(&mut self, request: impl AsRef<[u8]>) -> Response {
        let method = String::from_utf8_lossy(request.as_ref()).split(' ').next().unwrap_or_default().to_owned();
        self.send(request);
        self.response(&method)
    }

    /// Sends a plain GET for a URL.
    #[track_caller]
    pub fn get(&mut self, url: &str) -> Response {
        self.exchange(get_request(url))
    }

    /// Exactly this many bytes of a tunnel or body.
    #[track_caller]
    pub fn exactly(&mut self, count: usize) -> Vec<u8> {
        match self.reader.exactly(count) {
            Ok(bytes) => bytes,
            Err(error) => panic!("{error}: {:?}", String::from_utf8_lossy(&self.reader.buffer)),
        }
    }

    /// Everything through `end`.
    #[track_caller]
    pub fn through(&mut self, end: &[u8]) -> Vec<u8> {
        match self.reader.through(end) {
            Ok(bytes) => bytes,
            Err(error) => panic!("{error}: {:?}", String::from_utf8_lossy(&self.reader.buffer)),
        }
    }

    /// Everything up to the end of the connection, however it ends.
    pub fn rest(&mut self) -> Vec<u8> {
        // an error is an end too, and what came before it has come
        self.reader.remainder().unwrap_or_else(|_| std::mem::take(&mut self.reader.buffer))
    }

    /// Bytes that come within `span` without being waited for.
    pub fn within(&mut self, span: Duration) -> Vec<u8> {
        let end = now() + span;
        loop {
            let left = end.saturating_duration_since(now());
            if left.is_zero() {
                break;
            }
            self.reader.stream.set_read_timeout(Some(left)).expect("a time limit");
            if !matches!(self.reader.fill(), Ok(count) if count > 0) {
                break;
            }
        }
        self.reader.stream.set_read_timeout(Some(PATIENCE)).expect("a time limit");
        std::mem::take(&mut self.reader.buffer)
    }

    /// True if the other side ends the connection, without another byte, while we wait.
    pub fn is_closed(&mut self) -> bool {
        if !self.reader.buffer.is_empty() {
            return false;
        }
        let mut byte = [0];
        match self.reader.stream.read(&mut byte) {
            Ok(count) => count == 0,
            Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
        }
    }
}

/// A plain GET in absolute form.
pub fn get_request(url: &str) -> String {
    let host = url.split('/').nth(2).unwrap_or_default();
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n")
}

/// Fetches a URL through the proxy, on a connection of its own.
#[track_caller]
pub fn get(proxy: SocketAddr, url: &str) -> Response {
    Client::connect(proxy).get(url)
}
