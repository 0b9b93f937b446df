//! Absolute-form `https://`: the proxy makes the TLS, and sees everything. The origins are real TLS servers that
//! speak HTTP/1.1, or HTTP/2, or choose.

mod support;

use std::convert::Infallible;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use support::fusebox::{Fusebox, Setup, loopback};
use support::patience::until;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// A CA in a file, and what it signs.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    file: tempfile::NamedTempFile,
}

impl Ca {
    fn new() -> Ca {
        Ca::named("a CA for a test")
    }

    fn named(name: &str) -> Ca {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a CA");
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(certificate.pem().as_bytes()).expect("a PEM file");
        Ca { issuer: Issuer::new(params, key), file }
    }

    fn server(&self, params: CertificateParams, alpn: &[&[u8]]) -> rustls::ServerConfig {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        tls_server(certificate.der().clone(), &key, alpn)
    }

    fn fusebox(&self, rest: &str) -> Fusebox {
        Setup::new(&loopback(rest)).env("FUSEBOX_EGRESS__CA_FILE", &self.file.path().display().to_string()).start()
    }
}

fn tls_server(certificate: CertificateDer<'static>, key: &KeyPair, alpn: &[&[u8]]) -> rustls::ServerConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider);
    let builder = builder.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    let mut config = builder.with_single_cert(vec![certificate], key.into()).expect("a server");
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config
}

fn params(name: &str) -> CertificateParams {
    CertificateParams::new(vec![name.to_owned()]).expect("a name")
}

/// What the origin saw of a request.
#[derive(Clone, Debug)]
struct Seen {
    version: Version,
    authority: String,
    path: String,
    fields: Vec<String>,
}

#[derive(Default)]
struct State {
    seen: Mutex<Vec<Seen>>,
    connections: AtomicUsize,
    status: AtomicUsize,
    /// Streams on one HTTP/2 connection; 0: any number.
    streams: AtomicUsize,
}

/// Bytes in the answer to `/large`: far more than any window or buffer on the way.
const LARGE: usize = 8_000_000;

/// A TLS origin. It echoes bodies, answers with the status that it is told, and says 101 to an upgrade.
struct Origin {
    port: u16,
    state: Arc<State>,
    _runtime: tokio::runtime::Runtime,
}

impl Origin {
    fn new(config: rustls::ServerConfig) -> Origin {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let state = Arc::new(State { status: AtomicUsize::new(200), ..State::default() });
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        runtime.spawn(accept(listener, TlsAcceptor::from(Arc::new(config)), state.clone()));
        Origin { port, state, _runtime: runtime }
    }

    fn url(&self, host: &str, path: &str) -> String {
        format!("https://{host}:{}{path}", self.port)
    }

    fn answers(&self, status: usize) {
        self.state.status.store(status, Ordering::SeqCst);
    }

    fn allows_streams(&self, count: usize) {
        self.state.streams.store(count, Ordering::SeqCst);
    }

    fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().expect("no panic").clone()
    }

    fn connections(&self) -> usize {
        self.state.connections.load(Ordering::SeqCst)
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, state: Arc<State>) {
    while let Ok((tcp, _)) = listener.accept().await {
        let (acceptor, state) = (acceptor.clone(), state.clone());
        tokio::spawn(async move {
            let Ok(tls) = acceptor.accept(tcp).await else { return };
            state.connections.fetch_add(1, Ordering::SeqCst);
            let is_h2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
            let streams = state.streams.load(Ordering::SeqCst);
            let service = service_fn(move |request| serve(request, state.clone()));
            if is_h2 {
                let streams = u32::try_from(streams).ok().filter(|streams| *streams > 0);
                let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .max_concurrent_streams(streams)
                    .serve_connection(TokioIo::new(tls), service)
                    .await;
            } else {
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(tls), service)
                    .with_upgrades()
                    .await;
            }
        });
    }
}

async fn serve(mut request: Request<Incoming>, state: Arc<State>) -> Result<Response<Full<Bytes>>, Infallible> {
    let host = request.headers().get("host").map(|host| host.to_str().expect("text").to_owned());
    let seen = Seen {
        version: request.version(),
        authority: request.uri().authority().map(ToString::to_string).or(host).unwrap_or_default(),
        path: request.uri().path_and_query().map(ToString::to_string).unwrap_or_default(),
        fields: request.headers().keys().map(ToString::to_string).collect(),
    };
    state.seen.lock().expect("no panic").push(seen);
    if request.headers().contains_key("upgrade") {
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgraded.await.expect("an upgrade"));
            let mut buffer = [0; 1024];
            while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                stream.write_all(&buffer[..count]).await.expect("an echo");
            }
        });
        let response = Response::builder().status(101).header("connection", "upgrade").header("upgrade", "websocket");
        return Ok(response.body(Full::default()).expect("a response"));
    }
    if request.uri().path() == "/large" {
        return Ok(Response::new(Full::new(Bytes::from(vec![b'x'; LARGE]))));
    }
    if request.uri().path() == "/slow" {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let status = u16::try_from(state.status.load(Ordering::SeqCst)).expect("a status");
    Ok(Response::builder().status(status).header("retry-after", "77").body(Full::new(body)).expect("a response"))
}

#[test]
fn http2_is_spoken_where_the_origin_offers_it() {
    let ca = Ca::new();
    let origin = Origin::new(ca.server(params("*.u.test"), &[b"h2", b"http/1.1"]));
    let fusebox = ca.fusebox("");
    let mut client = fusebox.client();
    for path in ["/", "/a%2fb//c/../d?x=%2F", "/again"] {
        client.get(&origin.url("a.u.test", path)).assert_forwarded(200);
    }
    let seen = origin.seen();
    assert_eq!(seen.iter().map(|s| s.path.as_str()).collect::<Vec<_>>(), ["/", "/a%2fb//c/../d?x=%2F", "/again"]);
    assert!(seen.iter().all(|s| s.version == Version::HTTP_2), "{seen:?}");
    assert!(seen.iter().all(|s| s.authority == format!("a.u.test:{}", origin.port)), "{seen:?}");
    assert!(
        seen.iter().all(|s| !s.fields.contains(&"host".to_owned()) && s.fields.contains(&"via".to_owned())),
        "{seen:?}"
    );
    // one connection carries them all, other clients' requests too
    fusebox.get(&origin.url("a.u.test", "/other")).assert_forwarded(200);
    assert_eq!(origin.connections(), 1);
    assert_eq!(fusebox.metric("fusebox_requests_total{way=\"https\",outcome=\"forwarded\"}"), 4.0);
}

#[test]
fn http1_is_spoken_to_an_origin_that_knows_no_other() {
    let ca = Ca::new();
    let origin = Origin::new(ca.server(params("u.test"), &[]));
    let fusebox = ca.fusebox("");
    let mut client = fusebox.client();
    for _ in 0..3 {
        client.get(&origin.url("u.test", "/x")).assert_forwarded(200);
    }
    assert!(origin.seen().iter().all(|s| s.version == Version::HTTP_11), "{:?}", origin.seen());
    assert_eq!(origin.connections(), 1);
}

#[test]
fn statuses_over_tls_trip_the_domain_for_every_subdomain() {
    for alpn in [&[b"h2".as_slice()][..], &[]] {
        let ca = Ca::new();
        let origin = Origin::new(ca.server(params("*.u.test"), alpn));
        let fusebox = ca.fusebox("");
        origin.answers(429);
        for host in ["a.u.test", "b.u.test", "c.u.test"] {
            fusebox.get(&origin.url(host, "/")).assert_forwarded(429);
        }
        let refused = fusebox.get(&origin.url("d.u.test", "/"));
        refused.assert_refused("open", "u.test");
        assert!(refused.retry_after().is_some_and(|seconds| (3_500..=3_600).contains(&seconds)), "{refused:?}");
        assert_eq!(origin.seen().len(), 3);
    }
}

#[test]
fn bodies_pass_whole_both_ways() {
    for alpn in [&[b"h2".as_slice()][..], &[]] {
        let ca = Ca::new();
        let origin = Origin::new(ca.server(params("u.test"), alpn));
        let fusebox = ca.fusebox("");
        let body: Vec<u8> = (0..10_000_000u32).map(|n| (n % 251) as u8).collect();
        let mut client = fusebox.client();
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: u.test\r\nContent-Length: {}\r\n\r\n",
            origin.url("u.test", "/"),
            body.len()
        );
        let sent = [head.as_bytes(), &body].concat();
        let response = client.exchange(sent);
        response.assert_forwarded(200);
        assert!(response.body == body, "{} of {} bytes came back", response.body.len(), body.len());
    }
}

#[test]
fn an_upgrade_works_over_tls() {
    let ca = Ca::new();
    let origin = Origin::new(ca.server(params("u.test"), &[b"h2", b"http/1.1"]));
    let fusebox = ca.fusebox("");
    let mut client = fusebox.client();
    let url = origin.url("u.test", "/ws").replace("https://", "wss://");
    client.send(format!("GET {url} HTTP/1.1\r\nHost: u.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"));
    let response = client.head();
    assert_eq!((response.status, response.field("upgrade")), (101, Some("websocket")), "{response:?}");
    client.send("ping over TLS");
    assert_eq!(client.exactly(13), b"ping over TLS");
    drop(client);
    fusebox.await_metric("fusebox_in_flight", 0.0);
}

#[test]
fn a_bad_certificate_is_a_502_that_names_the_cause_and_no_request_leaves() {
    let ca = Ca::new();
    let stranger = Ca::named("a CA that nobody knows");
    let mut expired = params("u.test");
    expired.not_before = rcgen::date_time_ymd(2020, 1, 1);
    expired.not_after = rcgen::date_time_ymd(2020, 2, 1);
    let cases = [
        (ca.server(expired, &[]), "has expired"),
        (ca.server(params("other.test"), &[]), "is for another name: other.test"),
        (stranger.server(params("u.test"), &[]), "has an unknown issuer"),
    ];
    let fusebox = ca.fusebox("[domains.\"counted.test\"]\nerrors = [\"tls\"]\nmax_errors = 0");
    for (config, cause) in cases {
        let origin = Origin::new(config);
        let response = fusebox.get(&origin.url("u.test", "/"));
        response.assert_own(502, "upstream");
        let status = response.field("proxy-status").unwrap_or_default();
        assert!(status.contains("error=tls_certificate_error") && status.contains(cause), "{status}");
        assert_eq!(response.field("retry-after"), None);
        assert!(origin.seen().is_empty());
        assert_eq!(fusebox.state("u.test"), "closed", "TLS failures do not count by default");
    }
    let origin = Origin::new(stranger.server(params("counted.test"), &[]));
    fusebox.get(&origin.url("counted.test", "/")).assert_own(502, "upstream");
    fusebox.get(&origin.url("counted.test", "/")).assert_refused("open", "counted.test");
}

#[test]
fn an_http2_connection_that_went_away_is_replaced() {
    let ca = Ca::new();
    let config = ca.server(params("u.test"), &[b"h2"]);
    let fusebox = ca.fusebox("");
    let origin = Origin::new(config.clone());
    let port = origin.port;
    let mut client = fusebox.client();
    client.get(&origin.url("u.test", "/")).assert_forwarded(200);
    drop(origin);
    // the same port again, as after a restart of the origin
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let state = Arc::new(State { status: AtomicUsize::new(200), ..State::default() });
    let bound = || runtime.block_on(TcpListener::bind(("127.0.0.1", port))).ok();
    let listener = support::patience::eventually("the port is free again", bound);
    runtime.spawn(accept(listener, TlsAcceptor::from(Arc::new(config)), state));
    client.get(&format!("https://u.test:{port}/")).assert_forwarded(200);
    runtime.shutdown_timeout(Duration::from_millis(100));
    until("the connection is not kept", || fusebox.metric("fusebox_connections{side=\"upstream\"}") == 0.0);
}

#[test]
fn a_reader_that_stands_still_holds_up_no_other_on_the_same_connection() {
    let ca = Ca::new();
    let origin = Origin::new(ca.server(params("u.test"), &[b"h2"]));
    let fusebox = ca.fusebox("");
    fusebox.get(&origin.url("u.test", "/")).assert_forwarded(200);
    // each of them takes in the head and then nothing more
    let stalled: Vec<_> = (0..10)
        .map(|_| {
            let mut client = support::Client::connect_narrow(fusebox.proxy());
            client.send(support::client::get_request(&origin.url("u.test", "/large")));
            assert_eq!(client.head().status, 200);
            client
        })
        .collect();
    for _ in 0..3 {
        let response = fusebox.get(&origin.url("u.test", "/large"));
        response.assert_forwarded(200);
        assert_eq!(response.body.len(), LARGE);
    }
    assert_eq!(origin.connections(), 1);
    drop(stalled);
}

/// Asks for the same many times at once.
fn all_at_once(fusebox: &Fusebox, url: &str, count: usize) {
    std::thread::scope(|scope| {
        for _ in 0..count {
            scope.spawn(|| fusebox.get(url).assert_forwarded(200));
        }
    });
}

#[test]
fn more_requests_than_streams_take_more_connections_and_not_more_time() {
    let ca = Ca::new();
    let origin = Origin::new(ca.server(params("u.test"), &[b"h2"]));
    origin.allows_streams(2);
    let fusebox = ca.fusebox("[timeouts]\nresponse_head = \"2500ms\"\n[limits]\nmax_idle_per_host = 2");
    // neither with an origin that nothing is known about, nor with one that is known, is any of them too late
    for _ in 0..2 {
        all_at_once(&fusebox, &origin.url("u.test", "/slow"), 10);
        // with nothing to do, no more of them stand than may
        until("two are kept", || fusebox.metric("fusebox_connections{side=\"upstream\"}") == 2.0);
    }
    assert!(origin.connections() >= 5, "{}", origin.connections());
}

#[test]
fn an_idle_http2_connection_is_closed_where_none_may_be_kept() {
    let ca = Ca::new();
    let origin = Origin::new(ca.server(params("u.test"), &[b"h2"]));
    let fusebox = ca.fusebox("[limits]\nmax_idle = 0");
    fusebox.get(&origin.url("u.test", "/")).assert_forwarded(200);
    until("none is kept", || fusebox.metric("fusebox_connections{side=\"upstream\"}") == 0.0);
    // those who come together share one, though none stands when they come
    all_at_once(&fusebox, &origin.url("u.test", "/slow"), 8);
    assert_eq!(origin.connections(), 2);
}

#[test]
fn after_a_reload_no_older_connection_is_used() {
    for alpn in [&[b"h2".as_slice()][..], &[]] {
        let ca = Ca::new();
        let origin = Origin::new(ca.server(params("u.test"), alpn));
        let fusebox = ca.fusebox("");
        let mut client = fusebox.client();
        for _ in 0..2 {
            client.get(&origin.url("u.test", "/")).assert_forwarded(200);
        }
        assert_eq!(origin.connections(), 1);
        fusebox.write_config(&loopback("").replace("[\"127.0.0.0/8\"", "[\"127.0.0.9/32\""));
        until("what was allowed is forbidden", || client.get(&origin.url("u.test", "/")).status == 403);
        assert_eq!(origin.connections(), 1);
    }
}

/// An HTTP/2 origin that does to streams what their path says, and counts them.
fn h2_origin(config: rustls::ServerConfig) -> (u16, Arc<AtomicUsize>, tokio::runtime::Runtime) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let (count, acceptor) = (Arc::new(AtomicUsize::new(0)), TlsAcceptor::from(Arc::new(config)));
    let counted = count.clone();
    runtime.spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, counted) = (acceptor.clone(), counted.clone());
            tokio::spawn(async move {
                let tls = acceptor.accept(tcp).await.expect("TLS");
                let mut connection = h2::server::handshake(tls).await.expect("HTTP/2");
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    let turn = counted.fetch_add(1, Ordering::SeqCst);
                    let mut response = Response::new(());
                    match request.uri().path() {
                        "/refused" if turn == 0 => respond.send_reset(h2::Reason::REFUSED_STREAM),
                        "/always-refused" => respond.send_reset(h2::Reason::REFUSED_STREAM),
                        "/broken" => respond.send_reset(h2::Reason::INTERNAL_ERROR),
                        path => {
                            if path == "/long" {
                                let long = "x".repeat(70_000).try_into().expect("a value");
                                response.headers_mut().insert("x-long", long);
                            }
                            for n in 0..if path == "/many" { 300 } else { 0 } {
                                response.headers_mut().append("x-many", n.into());
                            }
                            let _ = respond.send_response(response, true);
                        }
                    }
                }
            });
        }
    });
    (port, count, runtime)
}

#[test]
fn what_an_origin_does_to_a_stream_is_told_apart() {
    let ca = Ca::new();
    let cases = [
        // path, status, streams, what is said, what is counted
        ("GET", "/refused", 200, 2, "", 0),
        ("POST", "/refused", 200, 2, "", 0),
        ("GET", "/always-refused", 502, 2, "connection_terminated", 1),
        ("GET", "/broken", 502, 1, "connection_terminated", 1),
        ("GET", "/long", 502, 1, "http_response_header_section_size", 0),
        ("GET", "/many", 502, 1, "http_response_header_section_size", 0),
    ];
    for warm in [false, true] {
        for (method, path, status, streams, error, errors) in cases {
            let (port, count, _runtime) = h2_origin(ca.server(params("u.test"), &[b"h2"]));
            let fusebox = ca.fusebox("[defaults]\nerrors = [\"connect\"]\nmax_errors = 1000");
            if warm {
                fusebox.get(&format!("https://u.test:{port}/")).assert_forwarded(200);
                count.store(0, Ordering::SeqCst);
            }
            let mut client = fusebox.client();
            client.send(format!("{method} https://u.test:{port}{path} HTTP/1.1\r\nHost: u.test:{port}\r\n\r\n"));
            let response = client.response(method);
            assert_eq!(response.status, status, "{path}: {response:?}");
            assert!(response.field("proxy-status").unwrap_or_default().contains(error), "{path}: {response:?}");
            assert_eq!(count.load(Ordering::SeqCst), streams, "{method} {path}, warm: {warm}");
            let counted = fusebox.row("u.test").map_or(0, |_| fusebox.errors("u.test"));
            assert_eq!(counted, errors, "{path}");
        }
    }
}
