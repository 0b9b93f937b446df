//! `CONNECT` (acceptance cases T1 and T2, as far as a plain tunnel goes): what is let through, what is refused,
//! and how a client that shows nothing but the status line learns why.

mod support;

use std::time::Duration;

use support::upstream::{Conn, contains};
use support::{Fusebox, Upstream, answer, loopback, ok, status, until};

fn plain() -> Fusebox {
    Fusebox::start(&loopback(""))
}

fn echo() -> Upstream {
    Upstream::raw(Conn::echo)
}

/// What a client of some protocol of its own might say first: neither TLS nor HTTP.
const HELLO: &[u8] = b"\x00\x01binary hello\xff";

#[test]
fn t1_a_tunnel_is_a_clean_200() {
    let (fusebox, upstream) = (plain(), echo());
    let authority = format!("u.test:{}", upstream.port());
    let mut client = fusebox.client();
    let mut packet = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n").into_bytes();
    packet.extend_from_slice(HELLO);
    client.send(&packet);
    let response = client.response("CONNECT");
    assert_eq!(response.status / 100, 2, "{response:?}");
    assert_eq!((response.field("content-length"), response.field("transfer-encoding")), (None, None));
    assert_eq!(response.reason(), None);
    assert_eq!(client.exactly(HELLO.len()), HELLO, "what came in the same packet reaches the origin");
    assert_eq!(upstream.bytes(), HELLO, "and nothing else does");
}

#[test]
fn t1_a_tunnel_carries_a_megabyte_both_ways() {
    let (fusebox, upstream) = (plain(), echo());
    let (mut client, response) = fusebox.tunnel(&format!("u.test:{}", upstream.port()));
    assert_eq!(response.status, 200);
    let chunk: Vec<u8> = (0..64 * 1024_u32).map(|n| (n % 251) as u8).collect();
    for _ in 0..16 {
        client.send(&chunk);
        assert!(client.exactly(chunk.len()) == chunk);
    }
    drop(client);
    until("the origin's side is closed", || upstream.standing() == 0);
    fusebox.await_metric("fusebox_in_flight", 0.0);
    assert_eq!(fusebox.metric("fusebox_blind_tunnels_total"), 1.0);
}

#[test]
fn t1_an_origin_may_speak_first() {
    let upstream = Upstream::raw(|conn| {
        conn.send(b"220 welcome\r\n")?;
        conn.echo()
    });
    let fusebox = plain();
    let (mut client, response) = fusebox.tunnel(&format!("u.test:{}", upstream.port()));
    assert_eq!(response.status, 200);
    assert_eq!(client.through(b"\r\n"), b"220 welcome\r\n");
    client.send("EHLO\r\n");
    assert_eq!(client.through(b"\r\n"), b"EHLO\r\n");
}

#[test]
fn t1_bad_authorities_are_refused_and_nothing_is_dialled() {
    let (fusebox, upstream) = (plain(), echo());
    let targets = [
        "u.test",
        "u.test:",
        "u.test:0",
        "u.test:99999",
        "u.test:44x",
        "u.test:+443",
        "2001:db8::1:443",
        "[::1",
        "[::1]",
        "[fe80::1%25eth0]:443",
        "user@u.test:443",
        "u.test:443/x",
        "http://u.test:443/",
        "u..test:443",
        "127.1:443",
        "0x7f000001:443",
        "u.test%0d%0aX:443",
        ":443",
    ];
    for target in targets {
        let response = fusebox.exchange(format!("CONNECT {target} HTTP/1.1\r\nHost: u.test\r\n\r\n"));
        assert_eq!(response.status, 400, "{target}: {response:?}");
    }
    let breakers = fusebox.admin("GET", "/api/v1/breakers", None).json();
    assert_eq!(breakers["breakers"].as_array().map(Vec::len), Some(0), "{breakers}");
    assert_eq!(fusebox.metric("fusebox_upstream_connections_total"), 0.0);
    assert!(upstream.connections().is_empty());
}

#[test]
fn t2_a_refused_connect_says_why_in_its_status_line() {
    let (fusebox, upstream) = (plain(), echo());
    fusebox.open("u.test", "1h");
    let (_client, response) = fusebox.tunnel(&format!("u.test:{}", upstream.port()));
    response.assert_refused("open", "u.test");
    assert!(response.phrase.contains("open") && response.phrase.contains("u.test"), "{:?}", response.phrase);
    assert!(response.whole);
    let after = response.retry_after().expect("Retry-After");
    assert!((3_590..=3_600).contains(&after), "{after}");
    assert!(upstream.connections().is_empty());
}

#[test]
fn t2_failures_of_a_tunnel_are_told_apart() {
    let fusebox = plain();
    let refused = fusebox.tunnel(&format!("u.test:{}", support::fusebox::closed_port())).1;
    refused.assert_own(502, "upstream");
    assert!(
        refused.field("proxy-status").is_some_and(|value| value.contains("error=connection_refused")),
        "{refused:?}"
    );
    assert!(!refused.phrase.is_empty() && refused.phrase != "Bad Gateway", "{:?}", refused.phrase);
    let unknown = fusebox.tunnel("nothing.invalid:443").1;
    assert!(matches!(unknown.status, 502 | 504), "{unknown:?}");
    let proxy_status = unknown.field("proxy-status").unwrap_or_default();
    assert!(proxy_status.contains("error=dns_"), "{proxy_status}");
    let denied = fusebox.tunnel("10.0.0.1:443").1;
    denied.assert_own(403, "denied");
    assert!(denied.text().contains("egress"), "{denied:?}");
}

#[test]
fn connect_goes_to_few_ports_by_default() {
    let fusebox = Fusebox::start("[egress]\nallow = [\"127.0.0.0/8\"]\n[egress.resolve]\n\"*.test\" = \"127.0.0.1\"");
    let upstream = echo();
    for port in [25, upstream.port()] {
        let response = fusebox.tunnel(&format!("u.test:{port}")).1;
        response.assert_own(403, "denied");
        assert!(response.text().contains("connect_ports"), "{response:?}");
    }
    assert!(upstream.connections().is_empty());
    // absolute-form requests are not bound by it
    let web = Upstream::answering(ok("yes"));
    fusebox.get(&web.url("u.test", "/")).assert_forwarded(200);
}

#[test]
fn each_side_of_a_tunnel_ends_by_itself() {
    let upstream = Upstream::raw(|conn| {
        conn.hang()?;
        conn.send(b"all read, and an answer after your end")
    });
    let fusebox = plain();
    let (mut client, response) = fusebox.tunnel(&format!("u.test:{}", upstream.port()));
    assert_eq!(response.status, 200);
    client.send(HELLO).finish();
    assert_eq!(client.rest(), b"all read, and an answer after your end");
    fusebox.await_metric("fusebox_in_flight", 0.0);
}

#[test]
fn the_origin_may_end_first() {
    let upstream = Upstream::raw(|conn| {
        conn.send(b"bye")?;
        conn.half_close()?;
        conn.hang()
    });
    let fusebox = plain();
    let (mut client, response) = fusebox.tunnel(&format!("u.test:{}", upstream.port()));
    assert_eq!(response.status, 200);
    assert_eq!(client.rest(), b"bye");
    client.send(HELLO).finish();
    until("the origin has read it", || contains(&upstream.bytes(), HELLO));
    until("the origin's side is closed", || upstream.standing() == 0);
}

#[test]
fn a_tunnel_costs_one_unit() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nrequests_per_10s = 1\nretry_jitter = \"0s\""));
    let upstream = echo();
    let authority = format!("u.test:{}", upstream.port());
    let (mut client, response) = fusebox.tunnel(&authority);
    assert_eq!(response.status, 200);
    for _ in 0..5 {
        client.send(HELLO);
        assert_eq!(client.exactly(HELLO.len()), HELLO);
    }
    let refused = fusebox.tunnel(&authority).1;
    refused.assert_refused("throttled", "u.test");
    assert!(refused.retry_after().is_some_and(|after| after <= 10), "{refused:?}");
    assert!(refused.phrase.contains("u.test"), "{:?}", refused.phrase);
}

#[test]
fn a_tunnel_holds_its_place_until_it_ends() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nmax_in_flight = 1"));
    let upstream = echo();
    let authority = format!("u.test:{}", upstream.port());
    let (client, response) = fusebox.tunnel(&authority);
    assert_eq!(response.status, 200);
    let busy = fusebox.tunnel(&authority).1;
    busy.assert_refused("busy", "u.test");
    assert_eq!(busy.retry_after(), Some(1));
    drop(client);
    until("the place is free", || fusebox.tunnel(&authority).1.status == 200);
}

#[test]
fn a_blind_tunnel_may_be_the_probe() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nmax_errors = 1\nopen_for = \"1s\""));
    let web = Upstream::answering(status(500));
    fusebox.get(&web.url("u.test", "/"));
    fusebox.get(&web.url("u.test", "/"));
    assert_eq!(fusebox.state("u.test"), "open");
    let upstream = echo();
    until("half-open", || fusebox.state("u.test") == "half_open");
    let (_client, response) = fusebox.tunnel(&format!("u.test:{}", upstream.port()));
    assert_eq!(response.status, 200);
    // its TCP connection is the success
    until("closed", || fusebox.state("u.test") == "closed");
    assert_eq!(fusebox.metric("fusebox_probes_total{result=\"success\"}"), 1.0);
}

#[test]
fn connect_failures_count_where_errors_names_them() {
    let fusebox = Fusebox::start(&loopback("[domains.\"c.test\"]\nerrors = [\"connect\"]\nmax_errors = 2"));
    let port = support::fusebox::closed_port();
    for domain in ["c.test", "d.test"] {
        for _ in 0..3 {
            fusebox.tunnel(&format!("{domain}:{port}")).1.assert_own(502, "upstream");
        }
    }
    let refused = fusebox.tunnel(&format!("c.test:{port}")).1;
    refused.assert_refused("open", "c.test");
    assert_eq!(refused.json()["last_status"], "connect", "{refused:?}");
    assert!(fusebox.row("d.test").is_none());
}

#[test]
fn plain_http_inside_a_tunnel_is_seen() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nmax_errors = 1\nrequests_per_10s = \"none\""));
    let upstream = Upstream::http(|request| {
        let bytes = if request.target == "/bad" { status(500) } else { answer("200 OK", &[], &request.target) };
        vec![support::Step::Send(bytes)]
    });
    let authority = format!("u.test:{}", upstream.port());
    let (mut client, response) = fusebox.tunnel(&authority);
    assert_eq!(response.status, 200);
    let inside = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    assert_eq!(client.exchange(inside("/one")).text(), "/one");
    assert_eq!(client.exchange(inside("/bad")).status, 500);
    assert_eq!(client.exchange(inside("/bad")).status, 500);
    assert_eq!(fusebox.state("u.test"), "open", "statuses inside are seen");
    client.exchange(inside("/two")).assert_refused("open", "u.test");
    let other = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    fusebox.exchange(other).assert_refused("open", "u.test");
}

#[test]
fn a_tunnel_pays_for_the_first_plain_request_inside() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nrequests_per_10s = 1\nretry_jitter = \"0s\""));
    let upstream = Upstream::answering(ok("yes"));
    let authority = format!("u.test:{}", upstream.port());
    let (mut client, response) = fusebox.tunnel(&authority);
    assert_eq!(response.status, 200);
    let request = format!("GET / HTTP/1.1\r\nHost: {authority}\r\n\r\n");
    client.exchange(&request).assert_forwarded(200);
    client.exchange(&request).assert_refused("throttled", "u.test");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn a_silent_tunnel_is_cut() {
    let fusebox = Fusebox::start(&loopback("[timeouts]\ntunnel_idle = \"500ms\""));
    let upstream = echo();
    let (mut client, response) = fusebox.tunnel(&format!("u.test:{}", upstream.port()));
    assert_eq!(response.status, 200);
    assert!(client.is_closed());
    until("the origin's side is closed", || upstream.standing() == 0);
    let (mut busy, _) = fusebox.tunnel(&format!("u.test:{}", upstream.port()));
    for _ in 0..5 {
        busy.send(HELLO);
        assert_eq!(busy.exactly(HELLO.len()), HELLO);
        // less than the limit, again and again: together more than it
        std::thread::sleep(Duration::from_millis(200));
    }
}
