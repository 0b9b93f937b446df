//! Connections over real sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use fusebox::core::key::Host;
use fusebox::core::outcome::{Failure, Outcome};
use fusebox::upstream::dial::Dialer;
use fusebox::upstream::error::UpstreamError;
use fusebox::upstream::guard::{DenyEntry, Guard, OwnListeners};
use fusebox::upstream::resolve::{Resolver, StaticAnswers};
use hickory_resolver::Hosts;
use tokio::net::{TcpListener, TcpStream};

/// A dialer that knows the names in `answers`, may dial `allow`, and waits for `timeout`.
fn dialer(answers: &[(&str, &[&str])], allow: &[&str], timeout: Duration) -> Dialer {
    let answers = answers.iter().map(|(name, ips)| {
        (name.to_string(), ips.iter().map(|ip| ip.parse().expect("an address")).collect::<Vec<IpAddr>>())
    });
    let allow = allow.iter().map(|net| net.parse().expect("a network")).collect();
    Dialer {
        resolver: Arc::new(Resolver::new(
            StaticAnswers::new(answers),
            Hosts::default(),
            Err("none in tests".to_owned()),
        )),
        guard: Arc::new(Guard::new(vec![DenyEntry::Private], allow)),
        own: Arc::new(OwnListeners::default()),
        connect_timeout: timeout,
    }
}

const LOOPBACK: &[&str] = &["127.0.0.0/8", "::1/128"];
const LONG: Duration = Duration::from_secs(20);

fn name(text: &str) -> Host {
    Host::Name(text.into())
}

async fn listener(address: &str) -> (TcpListener, u16) {
    let listener = TcpListener::bind((address, 0)).await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    (listener, port)
}

/// A socket that is bound and does not listen: its port refuses, and nobody else can take it.
fn closed(address: &str, port: u16) -> std::io::Result<(socket2::Socket, u16)> {
    let address = SocketAddr::new(address.parse().expect("an address"), port);
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None)?;
    socket.bind(&address.into())?;
    let port = socket.local_addr()?.as_socket().expect("an address").port();
    Ok((socket, port))
}

/// A listener that answers no further SYN: its backlog is full. Keep what is returned.
async fn black_hole(address: SocketAddr) -> (socket2::Socket, Vec<TcpStream>, u16) {
    let socket =
        socket2::Socket::new(socket2::Domain::for_address(address), socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&address.into()).expect("a free port");
    socket.listen(1).expect("a listener");
    let bound = socket.local_addr().ok().and_then(|bound| bound.as_socket()).expect("an address");
    let mut queued = Vec::new();
    while let Ok(stream) = tokio::time::timeout(Duration::from_millis(300), TcpStream::connect(bound)).await {
        queued.push(stream.expect("a place in the backlog"));
        assert!(queued.len() < 100, "the backlog has no end");
    }
    (socket, queued, bound.port())
}

#[tokio::test]
async fn literals_and_names_connect() {
    let (v4, port) = listener("127.0.0.1").await;
    let dialer = dialer(&[("up.test", &["127.0.0.1"])], LOOPBACK, LONG);
    for host in [Host::V4(Ipv4Addr::LOCALHOST), name("up.test")] {
        let stream = dialer.connect(&host, port).await.unwrap_or_else(|error| panic!("{host}: {error}"));
        assert_eq!(stream.peer_addr().expect("a peer"), v4.local_addr().expect("an address"));
        assert!(stream.nodelay().expect("an option"));
    }
    let (_v6, port) = listener("::1").await;
    let stream = dialer.connect(&Host::V6(Ipv6Addr::LOCALHOST), port).await.expect("IPv6");
    assert!(stream.peer_addr().expect("a peer").is_ipv6());
}

#[tokio::test]
async fn a_closed_port_is_a_refusal_that_counts() {
    let (_held, port) = closed("127.0.0.1", 0).expect("a free port");
    let error = dialer(&[], LOOPBACK, LONG).connect(&Host::V4(Ipv4Addr::LOCALHOST), port).await.expect_err("closed");
    assert!(matches!(error, UpstreamError::Refused), "{error}");
    assert_eq!(error.outcome(), Outcome::Failure(Failure::Connect));
    assert_eq!((error.status().as_u16(), error.proxy_error()), (502, "connection_refused"));
}

#[tokio::test]
async fn one_dead_address_does_not_matter() {
    // the port has to be free on three addresses at once: again, if another test has it on one of them
    let (_held, port) = loop {
        let (live, port) = listener("127.0.0.1").await;
        if let (Ok(v4), Ok(v6)) = (closed("127.0.0.2", port), closed("::1", port)) {
            break ((live, v4, v6), port);
        }
    };
    let dialer = dialer(&[("half.test", &["127.0.0.2", "::1", "127.0.0.1"])], LOOPBACK, LONG);
    let stream = dialer.connect(&name("half.test"), port).await.expect("the live address");
    assert_eq!(stream.peer_addr().expect("a peer").ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
}

#[tokio::test]
async fn one_silent_address_costs_a_quarter_of_a_second() {
    let (_held, port) = loop {
        let (socket, queued, port) = black_hole("127.0.0.2:0".parse().expect("an address")).await;
        if let Ok(live) = TcpListener::bind(("127.0.0.1", port)).await {
            break ((socket, queued, live), port);
        }
    };
    let dialer = dialer(&[("half.test", &["127.0.0.2", "127.0.0.1"])], LOOPBACK, LONG);
    let connected = tokio::time::timeout(Duration::from_secs(5), dialer.connect(&name("half.test"), port)).await;
    let stream = connected.expect("in time").expect("the live address");
    assert_eq!(stream.peer_addr().expect("a peer").ip(), IpAddr::V4(Ipv4Addr::LOCALHOST));
}

#[tokio::test]
async fn silence_is_a_timeout_and_a_refusal_tells_more() {
    let (_held, port) = loop {
        let (socket, queued, port) = black_hole("127.0.0.2:0".parse().expect("an address")).await;
        if let Ok(refusing) = closed("127.0.0.3", port) {
            break ((socket, queued, refusing), port);
        }
    };
    let dialer = dialer(&[("mixed.test", &["127.0.0.3", "127.0.0.2"])], LOOPBACK, Duration::from_millis(400));
    let error = dialer.connect(&Host::V4(Ipv4Addr::new(127, 0, 0, 2)), port).await.expect_err("silence");
    assert!(matches!(error, UpstreamError::ConnectTimeout), "{error}");
    assert_eq!((error.status().as_u16(), error.proxy_error()), (504, "connection_timeout"));
    let error = dialer.connect(&name("mixed.test"), port).await.expect_err("nobody there");
    assert!(matches!(error, UpstreamError::Refused), "{error}");
}

#[tokio::test]
async fn denied_addresses_are_left_out_and_reported_when_none_is_left() {
    let (v4, port) = listener("127.0.0.1").await;
    let answers: &[(&str, &[&str])] =
        &[("rebound.test", &["10.0.0.1", "127.0.0.1"]), ("inner.test", &["169.254.169.254", "10.0.0.1"])];
    let dialer = dialer(answers, &["127.0.0.1/32"], LONG);
    dialer.connect(&name("rebound.test"), port).await.expect("the permitted address");
    let error = dialer.connect(&name("inner.test"), port).await.expect_err("all denied");
    assert!(
        matches!(error, UpstreamError::Denied { address, .. } if address == IpAddr::from([169, 254, 169, 254])),
        "{error}"
    );
    assert_eq!((error.status().as_u16(), error.outcome()), (403, Outcome::NotCounted));
    assert!(error.detail(&"inner.test").contains("[egress] allow"), "{}", error.detail(&"inner.test"));

    v4.accept().await.expect("the one connection that was allowed");
    let more = tokio::time::timeout(Duration::from_millis(50), v4.accept()).await;
    assert!(more.is_err(), "a denied address was dialled");
}

#[tokio::test]
async fn own_listeners_stay_closed_whatever_is_allowed() {
    let (_v4, port) = listener("127.0.0.1").await;
    let strict = dialer(&[], &[], LONG);
    let host = Host::V4(Ipv4Addr::LOCALHOST);
    assert!(matches!(strict.connect(&host, port).await, Err(UpstreamError::Denied { .. })));

    for listening in ["127.0.0.1", "0.0.0.0"] {
        let own = OwnListeners::new([SocketAddr::new(listening.parse().expect("an address"), port)]);
        let dialer = Dialer { own: Arc::new(own), ..dialer(&[], LOOPBACK, LONG) };
        let error = dialer.connect(&host, port).await.expect_err("our own listener");
        assert!(matches!(error, UpstreamError::OwnListener { .. }), "{error}");
        assert_eq!((error.status().as_u16(), error.outcome()), (403, Outcome::NotCounted));
    }
}

#[tokio::test]
async fn a_resolver_in_trouble_is_no_connect_failure() {
    let error = dialer(&[], LOOPBACK, LONG).connect(&name("unknown.test"), 80).await.expect_err("no resolver");
    assert!(matches!(error, UpstreamError::ResolverTrouble(_)), "{error}");
    assert_eq!(error.outcome(), Outcome::NotCounted);
}
