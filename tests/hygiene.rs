//! What an origin or a client may not make the proxy pass on, hold or spend.

mod support;

use std::time::Duration;
use support::client::Client;
use support::fusebox::{Fusebox, Setup, loopback};
use support::patience::throughout;
use support::upstream::{Step, Upstream, answer, ok};

fn plain() -> Fusebox {
    Fusebox::start(&loopback(""))
}

#[test]
fn a_switch_of_protocols_that_nobody_asked_for_is_a_502_and_counts_for_nothing() {
    let upstream =
        Upstream::answering(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n".to_vec());
    let fusebox = plain();
    fusebox.get(&upstream.url("u.test", "/")).assert_own(502, "upstream");
    assert_eq!(fusebox.errors("u.test"), 0);
}

#[test]
fn a_transfer_coding_that_is_not_undone_is_not_passed_on_as_plain() {
    let fusebox = plain();
    for coding in ["gzip", "gzip, chunked"] {
        let head =
            format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {coding}\r\nConnection: close\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
        let upstream = Upstream::answering(head.into_bytes());
        let response = fusebox.get(&upstream.url("u.test", "/"));
        response.assert_own(502, "upstream");
        assert!(
            response.field("proxy-status").is_some_and(|said| said.contains("http_protocol_error")),
            "{response:?}"
        );
    }
}

#[test]
fn a_length_that_is_said_twice_is_passed_on_once() {
    for length in ["2, 2", "2\r\nContent-Length: 2"] {
        let upstream =
            Upstream::answering(format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\nok").into_bytes());
        let response = plain().get(&upstream.url("u.test", "/"));
        response.assert_forwarded(200);
        assert_eq!((response.field("content-length"), response.text().as_str()), (Some("2"), "ok"));
    }
}

#[test]
fn an_upgrade_to_h2c_goes_no_further() {
    let upstream = Upstream::answering(ok("plain"));
    let fusebox = plain();
    let url = upstream.url("u.test", "/");
    let request = format!(
        "GET {url} HTTP/1.1\r\nHost: u.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
    );
    fusebox.exchange(request).assert_forwarded(200);
    let seen = upstream.last();
    assert_eq!((seen.field("upgrade"), seen.field("connection"), seen.field("http2-settings")), (None, None, None));
}

#[test]
fn a_trailer_can_not_speak_for_fusebox() {
    let body = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Fusebox-Reason, X-Sum\r\n\r\n\
                2\r\nok\r\n0\r\nFusebox-Reason: open\r\nX-Sum: 7\r\n\r\n";
    let upstream = Upstream::answering(body.as_bytes().to_vec());
    let url = upstream.url("u.test", "/");
    let request = format!("GET {url} HTTP/1.1\r\nHost: u.test\r\nTE: trailers\r\nConnection: TE, close\r\n\r\n");
    let fusebox = plain();
    let mut client = fusebox.client();
    client.send(request);
    let answer = String::from_utf8_lossy(&client.rest()).to_lowercase();
    assert!(answer.contains("\r\nx-sum: 7\r\n"), "{answer}");
    assert!(!answer.contains("\r\nfusebox-reason:"), "{answer}");
}

#[test]
fn a_refusal_before_the_body_has_come_announces_the_close() {
    let fusebox = plain();
    fusebox.open("u.test", "1h");
    let mut client = fusebox.client();
    client.send("POST http://u.test/ HTTP/1.1\r\nHost: u.test\r\nContent-Length: 1000000\r\n\r\nonly this much");
    let response = client.response("POST");
    response.assert_refused("open", "u.test");
    assert_eq!(response.field("connection"), Some("close"));
    assert!(client.is_closed());
}

#[test]
fn chunked_uploads_keep_their_connection() {
    let upstream = Upstream::http(|_| vec![Step::Send(answer("200 OK", &[], "got it"))]);
    let fusebox = plain();
    let mut client = fusebox.client();
    for _ in 0..3 {
        let url = upstream.url("u.test", "/");
        let request =
            format!("POST {url} HTTP/1.1\r\nHost: u.test\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n");
        let response = client.exchange(request);
        response.assert_forwarded(200);
        assert_eq!(response.field("connection"), None);
    }
    assert_eq!(upstream.count(), 3);
}

#[test]
fn tunnels_hold_their_place_among_the_connections() {
    let fusebox = Fusebox::start(&loopback("[limits]\nmax_connections = 2"));
    let upstream = Upstream::raw(|conn| conn.echo());
    let authority = format!("u.test:{}", upstream.port());
    let mut tunnels: Vec<Client> = (0..2).map(|_| fusebox.tunnel(&authority).0).collect();
    for tunnel in &mut tunnels {
        tunnel.send("\x16\x03\x01 not HTTP");
        assert_eq!(tunnel.exactly(12), b"\x16\x03\x01 not HTTP");
    }
    assert_eq!(fusebox.metric("fusebox_connections{side=\"downstream\"}"), 2.0);
    // the third waits in the backlog until a tunnel ends
    let mut third = fusebox.client();
    third.send("GET /nowhere HTTP/1.1\r\nHost: u.test\r\n\r\n");
    throughout("no third connection", Duration::from_millis(300), || {
        fusebox.metric("fusebox_connections{side=\"downstream\"}") <= 2.0
    });
    drop(tunnels.pop());
    assert_eq!(third.response("GET").status, 400);
}

#[test]
fn guessing_passwords_costs_bounded_memory() {
    let hash = support::fusebox::run(
        {
            let mut command = support::fusebox::command();
            command.arg("hash-password");
            command
        },
        "right\n",
    );
    let user = format!("bob:{}", hash.out.trim());
    let fusebox = Setup::new(&loopback(&format!("[proxy]\nusers = ['{user}']"))).start();
    std::thread::scope(|scope| {
        for guess in 0..60 {
            let fusebox = &fusebox;
            scope.spawn(move || {
                use base64::Engine;
                let credentials = base64::engine::general_purpose::STANDARD.encode(format!("bob:{guess}"));
                let request = format!(
                    "GET http://u.test/ HTTP/1.1\r\nHost: u.test\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
                );
                assert_eq!(fusebox.exchange(request).status, 407);
            });
        }
    });
    let status = std::fs::read_to_string(format!("/proc/{}/status", fusebox.pid())).expect("a status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < 300 * 1024, "{peak} KiB");
}

#[test]
fn a_client_that_takes_little_by_little_is_not_given_up() {
    let body = vec![b'x'; 24_000_000];
    let upstream =
        Upstream::answering([b"HTTP/1.1 200 OK\r\nContent-Length: 24000000\r\n\r\n".as_slice(), &body].concat());
    let fusebox = Fusebox::start(&loopback("[timeouts]\nbody_idle = \"600ms\""));
    let mut client = Client::connect_narrow(fusebox.proxy());
    client.send(format!("GET {} HTTP/1.1\r\nHost: u.test\r\n\r\n", upstream.url("u.test", "/")));
    assert_eq!(client.head().status, 200);
    for _ in 0..6 {
        // less than a third of a send buffer at a time, for longer than the limit in all
        client.exactly(400_000);
        std::thread::sleep(Duration::from_millis(300));
    }
    client.exactly(24_000_000 - 6 * 400_000);
}
