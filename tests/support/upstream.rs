//! A scripted origin on a port of its own: it does what the script says and remembers everything.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::message::{Reader, Request};
use super::patience::{Latch, PATIENCE, eventually, now};

/// What an origin does next.
#[derive(Clone, Debug)]
pub enum Step {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Waits. For delays that are part of the case, not for luck.
    Pause(Duration),
    /// Waits until the test says so.
    Await(Latch),
    /// Says nothing, until the other side closes.
    Hang,
    /// Sends these bytes again and again, until they can't be sent.
    Forever(Vec<u8>),
    /// Reads the request's body now. Without this step it is read before the script is asked.
    ReadBody,
    /// Sends back what comes, until the other side ends.
    Echo,
    /// Says that nothing more will come, and reads on.
    HalfClose,
    /// Closes.
    Close,
    /// Closes with a reset.
    Reset,
}

type Script = dyn Fn(&Request) -> Vec<Step> + Send + Sync;
type Handler = dyn Fn(&mut Conn) -> io::Result<()> + Send + Sync;

/// One connection, as it is remembered.
#[derive(Clone, Debug)]
pub struct Connected {
    pub opened: Instant,
    pub closed: Option<Instant>,
    /// Every byte that came.
    pub bytes: Vec<u8>,
}

#[derive(Debug, Default)]
struct Memory {
    connections: Vec<Connected>,
    requests: Vec<(Instant, Request)>,
}

type Shared = Arc<Mutex<Memory>>;

fn lock(memory: &Mutex<Memory>) -> MutexGuard<'_, Memory> {
    memory.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream whose every byte is remembered.
#[derive(Debug)]
pub struct Recorded {
    stream: TcpStream,
    memory: Shared,
    index: usize,
}

impl Read for Recorded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.stream.read(buffer);
        let mut memory = lock(&self.memory);
        let connected = &mut memory.connections[self.index];
        match &result {
            Ok(0) => drop(connected.closed.get_or_insert_with(now)),
            Ok(count) => connected.bytes.extend_from_slice(&buffer[..*count]),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(_) => drop(connected.closed.get_or_insert_with(now)),
        }
        result
    }
}

impl Write for Recorded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// A connection to the origin, in the hands of its handler.
#[derive(Debug)]
pub struct Conn {
    pub reader: Reader<Recorded>,
    pub index: usize,
}

impl Conn {
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.reader.stream.stream.write_all(bytes)
    }

    pub fn half_close(&mut self) -> io::Result<()> {
        self.reader.stream.stream.shutdown(Shutdown::Write)
    }

    /// Reads until the other side ends.
    pub fn hang(&mut self) -> io::Result<()> {
        self.reader.remainder().map(drop)
    }

    pub fn echo(&mut self) -> io::Result<()> {
        loop {
            let bytes = std::mem::take(&mut self.reader.buffer);
            self.send(&bytes)?;
            if self.reader.fill()? == 0 {
                return Ok(());
            }
        }
    }

    /// Closes with a reset instead of an end.
    pub fn reset(&mut self) {
        let socket = socket2::SockRef::from(&self.reader.stream.stream);
        let _ = socket.set_linger(Some(Duration::ZERO));
    }

    fn follow(&mut self, steps: Vec<Step>, request: &mut Request) -> io::Result<bool> {
        for step in steps {
            match step {
                Step::Send(bytes) => self.send(&bytes)?,
                Step::Pause(span) => std::thread::sleep(span),
                Step::Await(latch) => latch.wait(),
                Step::ReadBody => self.reader.request_body(request)?,
                Step::Echo => return self.echo().map(|()| false),
                Step::HalfClose => self.half_close()?,
                Step::Close => return Ok(false),
                Step::Hang => return self.hang().map(|()| false),
                Step::Reset => {
                    self.reset();
                    return Ok(false);
                }
                Step::Forever(bytes) => loop {
                    if let Err(error) = self.send(&bytes) {
                        lock(&self.reader.stream.memory).connections[self.index].closed.get_or_insert_with(now);
                        return Err(error);
                    }
                },
            }
        }
        Ok(true)
    }
}

/// The origin.
pub struct Upstream {
    address: SocketAddr,
    memory: Shared,
    script: Arc<Mutex<Arc<Script>>>,
    stopped: Arc<AtomicBool>,
}

impl Upstream {
    /// An HTTP origin that does what `script` says to each request.
    pub fn http(script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) -> Upstream {
        Upstream::http_on("127.0.0.1:0", script).expect("a free port")
    }

    /// The same on a certain address.
    ///
    /// # Errors
    ///
    /// If there is no such address here.
    pub fn http_on(
        address: &str,
        script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static,
    ) -> io::Result<Upstream> {
        let script: Arc<Mutex<Arc<Script>>> = Arc::new(Mutex::new(Arc::new(script)));
        let current = script.clone();
        let handler = move |conn: &mut Conn| serve_http(conn, &current);
        Upstream::listen(address, Arc::new(handler), script)
    }

    /// An HTTP origin that answers the same to everything.
    pub fn answering(bytes: Vec<u8>) -> Upstream {
        Upstream::http(move |_| vec![Step::Send(bytes.clone())])
    }

    /// An origin of any other protocol.
    pub fn raw(handler: impl Fn(&mut Conn) -> io::Result<()> + Send + Sync + 'static) -> Upstream {
        let script: Arc<Mutex<Arc<Script>>> = Arc::new(Mutex::new(Arc::new(|_: &Request| Vec::new())));
        Upstream::listen("127.0.0.1:0", Arc::new(handler), script).expect("a free port")
    }

    fn listen(address: &str, handler: Arc<Handler>, script: Arc<Mutex<Arc<Script>>>) -> io::Result<Upstream> {
        let address: SocketAddr = address.parse().expect("an address");
        let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(1_024)?;
        let listener = TcpListener::from(socket);
        let address = listener.local_addr()?;
        let (memory, stopped) = (Shared::default(), Arc::new(AtomicBool::new(false)));
        let (remembered, stop) = (memory.clone(), stopped.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                accept(stream, remembered.clone(), handler.clone());
            }
        });
        Ok(Upstream { address, memory, script, stopped })
    }

    /// From now on this is what is done to a request.
    pub fn becomes(&self, script: impl Fn(&Request) -> Vec<Step> + Send + Sync + 'static) {
        *self.script.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(script);
    }

    /// From now on everything is answered with this.
    pub fn answers(&self, bytes: Vec<u8>) {
        self.becomes(move |_| vec![Step::Send(bytes.clone())]);
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// A URL at this origin: `host` and a path.
    pub fn url(&self, host: &str, path: &str) -> String {
        format!("http://{host}:{}{path}", self.port())
    }

    /// Every request so far.
    pub fn requests(&self) -> Vec<Request> {
        lock(&self.memory).requests.iter().map(|(_, request)| request.clone()).collect()
    }

    /// When each request so far came.
    pub fn times(&self) -> Vec<Instant> {
        lock(&self.memory).requests.iter().map(|(at, _)| *at).collect()
    }

    /// How many requests came.
    pub fn count(&self) -> usize {
        lock(&self.memory).requests.len()
    }

    /// How many came for one host.
    pub fn count_for(&self, host: &str) -> usize {
        lock(&self.memory).requests.iter().filter(|(_, request)| request.host() == host).count()
    }

    /// How many came for each host.
    pub fn counts(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        for (_, request) in &lock(&self.memory).requests {
            *counts.entry(request.host().to_owned()).or_default() += 1;
        }
        counts
    }

    /// The latest request; waits for it.
    #[track_caller]
    pub fn last(&self) -> Request {
        eventually("a request at the origin", || lock(&self.memory).requests.last().map(|(_, request)| request.clone()))
    }

    /// Waits until this many requests have come in all.
    #[track_caller]
    pub fn await_count(&self, count: usize) {
        eventually(&format!("{count} requests at the origin"), || (self.count() >= count).then_some(()));
    }

    pub fn connections(&self) -> Vec<Connected> {
        lock(&self.memory).connections.clone()
    }

    /// Connections that the other side has not ended.
    pub fn standing(&self) -> usize {
        lock(&self.memory).connections.iter().filter(|connected| connected.closed.is_none()).count()
    }

    /// Every byte that ever came.
    pub fn bytes(&self) -> Vec<u8> {
        lock(&self.memory).connections.iter().flat_map(|connected| connected.bytes.clone()).collect()
    }

    /// True if these bytes came, anywhere.
    pub fn saw(&self, needle: &str) -> bool {
        lock(&self.memory).connections.iter().any(|connected| contains(&connected.bytes, needle.as_bytes()))
    }

    /// Forgets what came so far.
    pub fn forget(&self) {
        lock(&self.memory).requests.clear();
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

/// True if `needle` is in `hay`.
pub fn contains(hay: &[u8], needle: &[u8]) -> bool {
    hay.windows(needle.len()).any(|window| window == needle)
}

fn accept(stream: TcpStream, memory: Shared, handler: Arc<Handler>) {
    let _ = stream.set_nodelay(true);
    let _ = stream.set_read_timeout(Some(PATIENCE * 2));
    let _ = stream.set_write_timeout(Some(PATIENCE * 2));
    let index = {
        let mut memory = lock(&memory);
        memory.connections.push(Connected { opened: now(), closed: None, bytes: Vec::new() });
        memory.connections.len() - 1
    };
    std::thread::spawn(move || {
        let recorded = Recorded { stream, memory: memory.clone(), index };
        let mut conn = Conn { reader: Reader::new(recorded), index };
        let _ = handler(&mut conn);
        // the end is remembered before it can be seen from outside
        lock(&memory).connections[index].closed.get_or_insert_with(now);
    });
}

fn serve_http(conn: &mut Conn, script: &Mutex<Arc<Script>>) -> io::Result<()> {
    let mut turn = 0;
    while let Some(mut request) = conn.reader.request_head()? {
        (request.connection, request.turn) = (conn.index, turn);
        turn += 1;
        let script = script.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let expects = request.field("expect").is_some();
        if !expects {
            conn.reader.request_body(&mut request)?;
        }
        let steps = script(&request);
        lock(&conn.reader.stream.memory).requests.push((now(), request.clone()));
        if !conn.follow(steps, &mut request)? {
            return Ok(());
        }
    }
    Ok(())
}

/// An answer with a body and its length.
pub fn answer(status: &str, fields: &[(&str, &str)], body: &str) -> Vec<u8> {
    let mut text = format!("HTTP/1.1 {status}\r\n");
    for (name, value) in fields {
        text += &format!("{name}: {value}\r\n");
    }
    text += &format!("Content-Length: {}\r\n\r\n{body}", body.len());
    text.into_bytes()
}

/// 200 with a body.
pub fn ok(body: &str) -> Vec<u8> {
    answer("200 OK", &[], body)
}

/// An empty answer with this status.
pub fn status(code: u16) -> Vec<u8> {
    answer(&format!("{code} Said So"), &[], "")
}
