//! HTTP/1.1 on the wire (acceptance cases W): what reaches the origin, what reaches the client, byte for byte.

mod support;

use std::time::Duration;

use support::upstream::contains;
use support::{Client, Fusebox, Latch, Step, Upstream, answer, eventually, loopback, now, ok, status, until};

/// A Fusebox in front of nothing in particular.
fn plain() -> Fusebox {
    Fusebox::start(&loopback("[defaults]\nmax_errors = 1000"))
}

fn post(upstream: &Upstream, fields: &str, body: &str) -> String {
    let authority = format!("u.test:{}", upstream.port());
    format!("POST http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n{fields}\r\n{body}")
}

#[test]
fn w1_empty_paths_and_odd_paths_keep_their_bytes() {
    let (fusebox, upstream) = (plain(), Upstream::answering(ok("yes")));
    let cases = [
        ("", "/"),
        ("?a=1&b=YQ%3D%3D", "/?a=1&b=YQ%3D%3D"),
        ("/?", "/?"),
        ("/a%2fb//c/../d?x=%2F", "/a%2fb//c/../d?x=%2F"),
        ("/%7euser/;p=1?q=a+b&c=%zz", "/%7euser/;p=1?q=a+b&c=%zz"),
    ];
    for (written, expected) in cases {
        let url = upstream.url("u.test", written);
        let response = fusebox.exchange(format!("GET {url} HTTP/1.1\r\nHost: u.test:{}\r\n\r\n", upstream.port()));
        response.assert_forwarded(200);
        assert_eq!(response.text(), "yes");
        assert_eq!(upstream.last().head.start, format!("GET {expected} HTTP/1.1"));
    }
}

#[test]
fn w2_the_host_field_is_made_from_the_target() {
    let (fusebox, upstream) = (plain(), Upstream::answering(status(500)));
    let url = upstream.url("a.test", "/x");
    fusebox.exchange(format!("GET {url} HTTP/1.1\r\nHost: b.test\r\n\r\n")).assert_forwarded(500);
    let seen = upstream.last();
    assert_eq!(seen.head.start, "GET /x HTTP/1.1");
    assert_eq!(seen.head.all("host"), [format!("a.test:{}", upstream.port())]);
    assert_eq!(fusebox.errors("a.test"), 1);
    assert!(fusebox.row("b.test").is_none());
}

#[test]
fn w2_user_names_in_urls_go_no_further() {
    let fusebox = Fusebox::start(&loopback("[log]\naccess = true"));
    let upstream = Upstream::answering(status(500));
    let url = format!("http://bob:pw4711@a.test:{}/x", upstream.port());
    let response = fusebox.exchange(format!("GET {url} HTTP/1.1\r\nHost: a.test:{}\r\n\r\n", upstream.port()));
    if response.status != 400 {
        response.assert_forwarded(500);
        assert_eq!(upstream.last().host(), "a.test");
    }
    let breakers = fusebox.admin("GET", "/api/v1/breakers", None).text();
    for place in [fusebox.log().text(), fusebox.metrics(), breakers] {
        assert!(!place.contains("bob") && !place.contains("pw4711"), "{place}");
    }
    assert!(!upstream.saw("bob") && !upstream.saw("pw4711"));
}

#[test]
fn w2_ipv6_literals_are_dialled_as_such() {
    let Ok(upstream) = Upstream::http_on("[::1]:0", |_| vec![Step::Send(ok("six"))]) else {
        return eprintln!("skipped: there is no ::1 here");
    };
    let fusebox = plain();
    let authority = format!("[::1]:{}", upstream.port());
    let response = fusebox.get(&format!("http://{authority}/"));
    response.assert_forwarded(200);
    assert_eq!(upstream.last().head.all("host"), [authority]);
}

#[test]
fn w2_no_host_and_two_hosts_are_bad() {
    let (fusebox, upstream) = (plain(), Upstream::answering(ok("")));
    let url = upstream.url("u.test", "/");
    let authority = format!("u.test:{}", upstream.port());
    for fields in
        [String::new(), format!("Host: {authority}\r\nHost: {authority}\r\n"), "Host: a.test, b.test\r\n".into()]
    {
        let response = fusebox.exchange(format!("GET {url} HTTP/1.1\r\n{fields}\r\n"));
        assert_eq!(response.status, 400, "{fields:?}: {response:?}");
    }
    assert!(upstream.bytes().is_empty());
    assert!(fusebox.row("u.test").is_none());
}

#[test]
fn w3_length_beside_chunks_smuggles_nothing() {
    let (fusebox, upstream) = (plain(), Upstream::answering(ok("")));
    let port = upstream.port();
    let body = format!("0\r\n\r\nGET http://u.test:{port}/smuggled HTTP/1.1\r\nHost: u.test:{port}\r\n\r\n");
    for fields in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked\t\r\nContent-Length: 60\r\n",
    ] {
        let mut client = fusebox.client();
        let response = client.exchange(post(&upstream, fields, &body));
        assert!(matches!(response.status, 200 | 400), "{fields:?}: {response:?}");
        assert!(client.is_closed(), "the connection stands after {fields:?}");
    }
    assert!(!upstream.saw("/smuggled"));
    for request in upstream.requests() {
        assert!(request.head.all("content-length").is_empty() || request.head.all("transfer-encoding").is_empty());
    }
}

#[test]
fn w3_framing_that_can_be_read_in_two_ways_is_bad() {
    let (fusebox, upstream) = (plain(), Upstream::answering(status(500)));
    let cases = [
        "Content-Length: 5\r\nContent-Length: 6\r\n",
        "Transfer-Encoding: xchunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "X-Folded: one\r\n two\r\nContent-Length: 5\r\n",
        "Transfer-Encoding : chunked\r\n",
        "Content-Length: +3\r\n",
        "Content-Length: 3, 4\r\n",
        "Content-Length: 0x5\r\n",
        "Content-Length: -1\r\n",
        "Content-Length: 99999999999999999999999999\r\n",
    ];
    for fields in cases {
        let mut client = fusebox.client();
        let response = client.exchange(post(&upstream, fields, "12345"));
        assert_eq!(response.status, 400, "{fields:?}: {response:?}");
        client.rest();
    }
    let authority = format!("u.test:{}", upstream.port());
    let old = format!(
        "POST http://{authority}/ HTTP/1.0\r\nHost: {authority}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    );
    assert_eq!(fusebox.exchange(old).status, 400);
    assert!(upstream.bytes().is_empty(), "{}", String::from_utf8_lossy(&upstream.bytes()));
    assert!(fusebox.row("u.test").is_none());
}

#[test]
fn w3_the_same_length_twice_is_one_length_or_bad() {
    let (fusebox, upstream) = (plain(), Upstream::answering(ok("")));
    let response = fusebox.exchange(post(&upstream, "Content-Length: 3\r\nContent-Length: 3\r\n", "abc"));
    if response.status == 200 {
        let seen = upstream.last();
        assert_eq!((seen.head.all("content-length"), seen.body.as_slice()), (vec!["3"], b"abc".as_slice()));
    } else {
        assert_eq!(response.status, 400);
    }
}

#[test]
fn w3_broken_chunks_never_end_well() {
    let (fusebox, upstream) = (plain(), Upstream::answering(ok("")));
    for body in ["zz\r\nabc\r\n0\r\n\r\n", "3\r\nabcdef\r\n0\r\n\r\n", "ffffffffffffffffff\r\n", "-1\r\n\r\n"] {
        let mut client = fusebox.client();
        client.send(post(&upstream, "Transfer-Encoding: chunked\r\n", body));
        let answer = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(answer.is_empty() || !answer.starts_with("HTTP/1.1 2"), "{body:?}: {answer}");
    }
    assert_eq!(upstream.count(), 0, "an origin must not see such a body as complete");
}

#[test]
fn w7_no_body_where_there_is_none() {
    let upstream = Upstream::http(|request| {
        let head = |head: &str| vec![Step::Send(format!("{head}\r\n\r\n").into_bytes())];
        match request.target.as_str() {
            "/head" => head("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked"),
            "/head-length" => head("HTTP/1.1 200 OK\r\nContent-Length: 77"),
            "/304-length" => head("HTTP/1.1 304 Not Modified\r\nContent-Length: 1234\r\nETag: \"e\""),
            "/304" => head("HTTP/1.1 304 Not Modified"),
            "/204" => head("HTTP/1.1 204 No Content\r\nContent-Length: 5"),
            _ => vec![Step::Send(ok("the end"))],
        }
    });
    let fusebox = plain();
    let mut client = fusebox.client();
    let mut ask = |method: &str, path: &str| {
        let authority = format!("u.test:{}", upstream.port());
        client.exchange(format!("{method} http://{authority}{path} HTTP/1.1\r\nHost: {authority}\r\n\r\n"))
    };
    ask("HEAD", "/head").assert_forwarded(200);
    let head = ask("HEAD", "/head-length");
    assert!(matches!(head.field("content-length"), None | Some("77")), "{head:?}");
    let not_modified = ask("GET", "/304-length");
    assert_eq!((not_modified.status, not_modified.field("etag")), (304, Some("\"e\"")));
    assert!(matches!(not_modified.field("content-length"), None | Some("1234")), "{not_modified:?}");
    let bare = ask("GET", "/304");
    assert_eq!(bare.status, 304);
    assert_eq!((bare.field("content-length"), bare.field("transfer-encoding")), (None, None), "{bare:?}");
    let empty = ask("GET", "/204");
    assert_eq!((empty.status, empty.field("content-length"), empty.field("transfer-encoding")), (204, None, None));
    // the same connection is still readable: nothing was behind any of these heads
    assert_eq!(ask("GET", "/").text(), "the end");
}

fn websocket(scheme: &str, upstream: &Upstream) -> String {
    let authority = format!("u.test:{}", upstream.port());
    format!(
        "GET {scheme}://{authority}/ws HTTP/1.1\r\nHost: {authority}\r\nConnection: keep-alive, Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
}

const SWITCHING: &[u8] = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

#[test]
fn w10_an_upgrade_is_a_pipe() {
    let upstream = Upstream::http(|_| {
        let mut hello = SWITCHING.to_vec();
        hello.extend_from_slice(b"first frame");
        vec![Step::Send(hello), Step::Echo]
    });
    let fusebox = plain();
    for scheme in ["http", "ws"] {
        let mut client = fusebox.client();
        client.send(websocket(scheme, &upstream));
        let response = client.head();
        assert_eq!(response.status, 101, "{response:?}");
        assert_eq!(response.field("upgrade"), Some("websocket"));
        assert_eq!(response.field("sec-websocket-accept"), Some("s3pPLMBiTxaQ9kYGzzhZRbK+xOo="));
        assert_eq!(client.exactly(11), b"first frame");
        let chunk: Vec<u8> = (0..64 * 1024_u32).map(|n| (n % 251) as u8).collect();
        for _ in 0..16 {
            client.send(&chunk);
            assert!(client.exactly(chunk.len()) == chunk, "the echo is not what was sent");
        }
        drop(client);
        until("the origin's side is closed", || upstream.standing() == 0);
    }
    let seen = upstream.last();
    assert_eq!(seen.head.all("upgrade"), ["websocket"]);
    assert!(seen.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("upgrade")), "{seen:?}");
    fusebox.await_metric("fusebox_in_flight", 0.0);
    assert_eq!(fusebox.errors("u.test"), 0);
}

#[test]
fn w10_an_upgrade_costs_one_unit_and_may_be_declined() {
    let upstream = Upstream::answering(answer("403 Forbidden", &[], "not here"));
    let fusebox = Fusebox::start(&loopback("[defaults]\nrequests_per_10s = 1"));
    let mut client = fusebox.client();
    let declined = client.exchange(websocket("http", &upstream));
    declined.assert_forwarded(403);
    assert_eq!(declined.text(), "not here");
    // still HTTP, and the one unit is spent
    client.get(&upstream.url("u.test", "/")).assert_refused("throttled", "u.test");
    assert_eq!(upstream.count(), 1);
}

#[test]
fn w11_events_do_not_wait_for_the_end() {
    let latch = Latch::new();
    let more = latch.clone();
    let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    let upstream = Upstream::http(move |_| {
        vec![
            Step::Send(head.clone()),
            Step::Send(b"9\r\ndata: 1\n\n\r\n".to_vec()),
            Step::Await(more.clone()),
            Step::Send(b"9\r\ndata: 2\n\n\r\n0\r\n\r\n".to_vec()),
        ]
    });
    let fusebox = plain();
    let mut client = fusebox.client();
    client.send(support::client::get_request(&upstream.url("u.test", "/events")));
    assert_eq!(client.head().status, 200);
    let first = client.through(b"data: 1\n\n");
    assert!(!latch.is_open() && !first.is_empty(), "the first event comes while the second is not sent yet");
    latch.open();
    client.through(b"data: 2\n\n");
    client.through(b"0\r\n\r\n");
}

#[test]
fn w11_coded_bodies_pass_byte_for_byte() {
    let zipped: Vec<u8> = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3].into_iter().chain((0..=255).rev()).collect();
    let mut bytes = format!(
        "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nX-Odd: a\u{e9}\r\nContent-Length: {}\r\n\r\n",
        zipped.len()
    )
    .into_bytes();
    bytes.extend_from_slice(&zipped);
    let (fusebox, upstream) = (plain(), Upstream::answering(bytes));
    let response = fusebox.get(&upstream.url("u.test", "/"));
    assert_eq!((response.field("content-encoding"), response.body == zipped), (Some("gzip"), true));
}

#[test]
fn w11_a_slow_reader_holds_the_origin_back() {
    let upstream = Upstream::http(|_| {
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n".to_vec();
        vec![Step::Send(head), Step::Forever(vec![7; 256 * 1024])]
    });
    let fusebox = plain();
    let before = fusebox.rss();
    let mut clients: Vec<Client> = (0..4).map(|_| Client::connect_narrow(fusebox.proxy())).collect();
    for client in &mut clients {
        client.send(support::client::get_request(&upstream.url("u.test", "/")));
        assert_eq!(client.head().status, 200);
    }
    // what is read of 1 GB makes room for more of it; what is not read stays where it is
    for client in &mut clients {
        client.exactly(32 * 1024 * 1024);
    }
    support::patience::throughout("memory is bounded", Duration::from_secs(1), || {
        fusebox.rss().saturating_sub(before) < 48 * 1024 * 1024
    });
}

#[test]
fn w13_a_client_that_leaves_takes_the_upstream_with_it() {
    let upstream = Upstream::http(|request| match request.target.as_str() {
        "/for-ever" => {
            let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
            vec![
                Step::Send(head),
                Step::Forever(format!("10000\r\n{}\r\n", "hello, go on ...".repeat(4_096)).into_bytes()),
            ]
        }
        _ => vec![Step::Hang],
    });
    let fusebox = plain();
    fusebox.get(&format!("http://127.0.0.1:{}/warm", support::fusebox::closed_port())).assert_own(502, "upstream");
    let baseline = fusebox.descriptors();
    for path in ["/for-ever", "/silence"] {
        let (seen, before) = (upstream.count(), fusebox.metric("fusebox_requests_total{outcome=\"aborted\"}"));
        let clients: Vec<Client> = (0..100)
            .map(|_| {
                let mut client = fusebox.client();
                client.send(support::client::get_request(&upstream.url("u.test", path)));
                if path == "/for-ever" {
                    client.through(b"hello");
                }
                client
            })
            .collect();
        upstream.await_count(seen + 100);
        let left = now();
        drop(clients);
        until("the origin's connections are closed", || upstream.standing() == 0);
        eprintln!("{path}: closed after {:?}", left.elapsed());
        fusebox.await_metric("fusebox_in_flight", 0.0);
        fusebox.await_metric("fusebox_requests_total{outcome=\"aborted\"}", before + 100.0);
    }
    assert_eq!(fusebox.errors("u.test"), 0);
    until("descriptors are back", || fusebox.descriptors() <= baseline + 4);
}

#[test]
fn a_body_that_breaks_off_never_looks_whole() {
    let upstream = Upstream::http(|request| match request.target.as_str() {
        "/chunked" => vec![
            Step::Send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n".to_vec()),
            Step::Close,
        ],
        "/reset" => {
            vec![Step::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhello".to_vec()), Step::Reset]
        }
        _ => vec![Step::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhello".to_vec()), Step::Close],
    });
    let fusebox = plain();
    for path in ["/chunked", "/length", "/reset"] {
        let mut client = fusebox.client();
        client.send(support::client::get_request(&upstream.url("u.test", path)));
        let answer = String::from_utf8_lossy(&client.rest()).into_owned();
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("hello"), "{path}: {answer:?}");
        assert!(!answer.contains("\r\n0\r\n\r\n"), "{path}: {answer:?}");
        assert!(path == "/chunked" || answer.contains("\r\ncontent-length: 99\r\n"), "{path}: {answer:?}");
    }
    fusebox.await_metric("fusebox_broken_bodies_total", 3.0);
    assert_eq!(fusebox.errors("u.test"), 0);
}

#[test]
fn http_1_0_clients_are_served() {
    let upstream = Upstream::http(|_| {
        vec![Step::Send(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n".to_vec(),
        )]
    });
    let fusebox = plain();
    let mut client = fusebox.client();
    client.send(format!("GET {} HTTP/1.0\r\n\r\n", upstream.url("u.test", "/old")));
    let response = client.response("GET");
    assert_eq!((response.status, response.field("transfer-encoding")), (200, None), "{response:?}");
    assert_eq!(response.text(), "abcdef");
    assert!(client.is_closed());
    assert_eq!(upstream.last().head.start, "GET /old HTTP/1.1");
}

#[test]
fn chunks_go_both_ways_and_trailers_break_nothing() {
    let upstream = Upstream::http(|_| {
        let coded = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n\
                     4;ext=1\r\nWiki\r\n5\r\npedia\r\n0\r\nX-Sum: 9\r\n\r\n";
        vec![Step::Send(coded.as_bytes().to_vec())]
    });
    let fusebox = plain();
    let mut client = fusebox.client();
    let body = "4\r\nsent\r\n3\r\nup!\r\n0\r\nX-Up: 1\r\n\r\n";
    for _ in 0..2 {
        let response = client.exchange(post(&upstream, "Transfer-Encoding: chunked\r\nTrailer: X-Up\r\n", body));
        response.assert_forwarded(200);
        assert_eq!(response.text(), "Wikipedia");
        assert_eq!(upstream.last().body, b"sentup!");
        // the connection may be closed after a chunked request, but never left unreadable
        if response.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            client = fusebox.client();
        }
    }
}

#[test]
fn a_large_body_arrives_whole_both_ways() {
    let upstream = Upstream::http(|request| {
        let mut bytes = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", request.body.len()).into_bytes();
        bytes.extend_from_slice(&request.body);
        vec![Step::Send(bytes)]
    });
    let fusebox = plain();
    let body: String = (0..3_000_000_u32).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    let mut client = fusebox.client();
    let response = client.exchange(post(&upstream, &format!("Content-Length: {}\r\n", body.len()), &body));
    response.assert_forwarded(200);
    assert!(response.body == body.as_bytes());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let upstream = Upstream::http(|request| vec![Step::Send(ok(&request.target))]);
    let fusebox = plain();
    let mut client = fusebox.client();
    let paths: Vec<String> = (0..10).map(|n| format!("/{n}")).collect();
    let all: String = paths.iter().map(|path| support::client::get_request(&upstream.url("u.test", path))).collect();
    client.send(all);
    for path in paths {
        assert_eq!(client.response("GET").text(), path);
    }
}

#[test]
fn a_head_that_is_too_large_is_431() {
    let fusebox = Fusebox::start(&loopback("[limits]\nmax_header_bytes = 16384\nmax_headers = 50"));
    let upstream = Upstream::answering(ok(""));
    let authority = format!("u.test:{}", upstream.port());
    let line = format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\n");
    let large = format!("{line}X-Large: {}\r\n\r\n", "x".repeat(40_000));
    let many: String = (0..200).map(|n| format!("X-{n}: 1\r\n")).collect();
    for request in [large, format!("{line}{many}\r\n")] {
        let mut client = fusebox.client();
        let _ = client.try_send(&request);
        let response = client.response("GET");
        assert_eq!(response.status, 431, "{response:?}");
    }
    assert_eq!(upstream.count(), 0);
}

#[test]
fn an_answer_whose_head_is_too_large_is_502_and_not_counted() {
    let fusebox = Fusebox::start(&loopback("[limits]\nmax_header_bytes = 16384"));
    let upstream = Upstream::answering(answer("500 No", &[("X-Large", &"x".repeat(60_000))], ""));
    fusebox.get(&upstream.url("u.test", "/")).assert_own(502, "upstream");
    assert_eq!(fusebox.errors("u.test"), 0);
}

#[test]
fn who_asks_before_sending_is_refused_before_sending() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nmax_errors = 1\nerrors = [\"500\"]"));
    let upstream = Upstream::http(|request| {
        if request.field("expect").is_some() {
            let go = b"HTTP/1.1 100 Continue\r\n\r\n".to_vec();
            return vec![Step::Send(go), Step::ReadBody, Step::Send(ok("got it"))];
        }
        vec![Step::Send(status(500))]
    });
    let fields = "Content-Length: 5\r\nExpect: 100-continue\r\n";
    let mut client = fusebox.client();
    client.send(post(&upstream, fields, ""));
    assert!(client.through(b"\r\n\r\n").starts_with(b"HTTP/1.1 100 "), "the origin or the proxy says go on");
    client.send("hello");
    assert_eq!(client.response("POST").text(), "got it");
    fusebox.get(&upstream.url("u.test", "/"));
    fusebox.get(&upstream.url("u.test", "/"));
    assert_eq!(fusebox.state("u.test"), "open");
    let mut client = fusebox.client();
    client.send(post(&upstream, fields, ""));
    let first = client.through(b"\r\n");
    assert!(first.starts_with(b"HTTP/1.1 503 "), "{}", String::from_utf8_lossy(&first));
}

#[test]
fn a_407_from_an_origin_is_no_answer() {
    let refuses = answer("407 Who", &[("Proxy-Authenticate", "Basic realm=\"phish\"")], "");
    let (fusebox, upstream) = (plain(), Upstream::answering(refuses));
    let response = fusebox.get(&upstream.url("u.test", "/"));
    response.assert_own(502, "upstream");
    assert_eq!(response.field("proxy-authenticate"), None);
}

#[test]
fn a_request_that_comes_back_is_a_loop() {
    let (fusebox, upstream) = (plain(), Upstream::answering(ok("")));
    let url = upstream.url("u.test", "/");
    let response = fusebox.get(&url);
    let via = upstream.last().field("via").expect("a Via field").to_owned();
    assert!(via.starts_with("1.1 "), "{via}");
    assert!(response.field("via").is_some_and(|value| value.contains(via.trim_start_matches("1.1 "))), "{response:?}");
    let host = format!("u.test:{}", upstream.port());
    let again = |via: &str| fusebox.exchange(format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nVia: {via}\r\n\r\n"));
    let looped = again(&format!("1.0 somewhere, {via}"));
    assert_eq!(looped.status, 508, "{looped:?}");
    assert!(looped.field("proxy-status").is_some_and(|value| value.contains("proxy_loop_detected")));
    assert_eq!(upstream.count(), 1);
    again("1.1 fusebox-of-someone-else").assert_forwarded(200);
    assert_eq!(upstream.last().head.all("via").len(), 2, "what others wrote is kept");
}

#[test]
fn nobody_else_speaks_as_fusebox() {
    let fields = [("Fusebox-Reason", "open"), ("Fusebox-Domain", "x.test"), ("Retry-After", "7")];
    let (fusebox, upstream) = (plain(), Upstream::answering(answer("503 Down", &fields, "down")));
    let response = fusebox.get(&upstream.url("u.test", "/"));
    response.assert_forwarded(503);
    assert_eq!(response.field("fusebox-domain"), None);
    assert_eq!(response.field("retry-after"), Some("7"));
    assert_eq!(fusebox.errors("u.test"), 1);
}

#[test]
fn hop_by_hop_fields_end_at_the_proxy() {
    let fields = [
        ("Connection", "X-Down, keep-alive"),
        ("X-Down", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("X-Kept", "2"),
    ];
    let (fusebox, upstream) = (plain(), Upstream::answering(answer("200 OK", &fields, "")));
    let authority = format!("u.test:{}", upstream.port());
    let response = fusebox.exchange(format!(
        "GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nConnection: X-Up, TE\r\nX-Up: 1\r\nTE: trailers\r\n\
         Proxy-Connection: keep-alive\r\nKeep-Alive: 5\r\nAuthorization: Bearer end-to-end\r\nX-Kept: 3\r\n\r\n"
    ));
    let seen = upstream.last();
    for name in ["x-up", "te", "proxy-connection", "keep-alive"] {
        assert_eq!(seen.field(name), None, "{seen:?}");
    }
    assert_eq!((seen.field("authorization"), seen.field("x-kept")), (Some("Bearer end-to-end"), Some("3")));
    for name in ["x-down", "keep-alive", "proxy-connection"] {
        assert_eq!(response.field(name), None, "{response:?}");
    }
    assert_eq!(response.field("x-kept"), Some("2"));
}

#[test]
fn upstream_connections_are_kept_and_used_again() {
    let (fusebox, upstream) = (plain(), Upstream::answering(ok("")));
    let mut client = fusebox.client();
    for _ in 0..20 {
        client.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    }
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    assert_eq!(upstream.connections().len(), 1);
    assert_eq!(fusebox.metric("fusebox_upstream_connections_total{kind=\"new\"}"), 1.0);
    assert_eq!(fusebox.metric("fusebox_upstream_connections_total{kind=\"reused\"}"), 20.0);
}

/// An origin that closes each connection instead of answering the second request on it.
fn closes_on_the_second() -> Upstream {
    Upstream::http(|request| match request.turn {
        0 => vec![Step::Send(ok("fresh"))],
        _ => vec![Step::Close],
    })
}

const COUNT_CONNECT: &str = "[defaults]\nerrors = [\"429\", \"5xx\", \"connect\"]";

#[test]
fn a_stale_connection_is_replaced_for_a_get() {
    let (fusebox, upstream) = (Fusebox::start(&loopback(COUNT_CONNECT)), closes_on_the_second());
    for _ in 0..5 {
        let response = fusebox.get(&upstream.url("u.test", "/"));
        response.assert_forwarded(200);
        assert_eq!(response.text(), "fresh");
    }
    assert_eq!(fusebox.errors("u.test"), 0);
}

#[test]
fn a_post_is_never_sent_twice() {
    let (fusebox, upstream) = (Fusebox::start(&loopback(COUNT_CONNECT)), closes_on_the_second());
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    let response = fusebox.exchange(post(&upstream, "Content-Length: 4\r\n", "once"));
    let posts = upstream.requests().iter().filter(|request| request.method == "POST").count();
    assert_eq!(posts, 1, "{response:?}");
    // on a kept connection its fate is unknown; on a fresh one it was answered
    assert!(matches!(response.status, 200 | 502), "{response:?}");
    assert_eq!(fusebox.errors("u.test"), 0);
}

#[test]
fn an_idle_connection_that_the_origin_has_closed_is_not_used() {
    let fusebox = Fusebox::start(&loopback(COUNT_CONNECT));
    let upstream = Upstream::http(|_| vec![Step::Send(ok("")), Step::Close]);
    for _ in 0..5 {
        fusebox.exchange(post(&upstream, "Content-Length: 2\r\n", "hi")).assert_forwarded(200);
        until("the origin has closed", || upstream.standing() == 0);
    }
    assert_eq!(upstream.count(), 5);
}

#[test]
fn a_client_that_half_closes_is_not_left_hanging() {
    let latch = Latch::new();
    let go = latch.clone();
    let upstream = Upstream::http(move |_| vec![Step::Await(go.clone()), Step::Send(ok("late"))]);
    let fusebox = plain();
    let mut client = fusebox.client();
    client.send(format!("GET {} HTTP/1.0\r\n\r\n", upstream.url("u.test", "/")));
    client.finish();
    // either is sound: to answer, or to take the end for a farewell; but not to hang
    latch.open();
    let answer = client.rest();
    assert!(answer.is_empty() || contains(&answer, b"late"), "{}", String::from_utf8_lossy(&answer));
    fusebox.await_metric("fusebox_in_flight", 0.0);
}

#[test]
fn a_head_that_drips_is_timed_out() {
    let fusebox = Fusebox::start(&loopback("[timeouts]\nrequest_head = \"300ms\"\nkeep_alive = \"300ms\""));
    let upstream = Upstream::answering(ok("x"));
    let mut slow = fusebox.client();
    slow.send("GET http://u.test/ HTTP/1.1\r\nHost:");
    let response = slow.response("GET");
    assert_eq!((response.status, response.reason()), (408, Some("bad-request")), "{response:?}");
    assert!(slow.is_closed());
    let mut idle = fusebox.client();
    idle.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    assert!(idle.is_closed(), "an idle connection ends after keep_alive, without a word");
    let silent = fusebox.client();
    let mut silent = silent;
    silent.rest();
}

#[test]
fn origin_form_is_told_what_this_is() {
    let (fusebox, upstream) = (plain(), Upstream::answering(ok("")));
    let response = fusebox.exchange("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    response.assert_own(400, "bad-request");
    for target in ["ftp://u.test/", "*", "http:///x", "http://", "u.test/"] {
        let response = fusebox.exchange(format!("GET {target} HTTP/1.1\r\nHost: u.test\r\n\r\n"));
        assert_eq!(response.status, 400, "{target}: {response:?}");
    }
    assert_eq!(upstream.count(), 0);
    assert_eq!(eventually("still serving", || Some(fusebox.get(&upstream.url("u.test", "/")).status)), 200);
}

#[test]
fn what_an_origin_sends_unasked_is_nobodys_answer() {
    let poison = "HTTP/1.1 200 OK\r\nX-Poison: 1\r\nContent-Length: 3\r\n\r\nbad";
    let upstream = Upstream::http(move |request| match request.target.as_str() {
        "/extra" => vec![Step::Send([ok("good"), poison.as_bytes().to_vec()].concat())],
        "/head" => vec![Step::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad".to_vec())],
        "/204" => vec![Step::Send([b"HTTP/1.1 204 No\r\n\r\n".to_vec(), poison.as_bytes().to_vec()].concat())],
        _ => vec![Step::Send(ok("mine"))],
    });
    let fusebox = plain();
    for (method, path) in [("GET", "/extra"), ("HEAD", "/head"), ("GET", "/204")] {
        for _ in 0..5 {
            let authority = format!("u.test:{}", upstream.port());
            let line = format!("{method} http://{authority}{path} HTTP/1.1\r\nHost: {authority}\r\n\r\n");
            assert_eq!(fusebox.exchange(line).status / 100, 2);
            let next = fusebox.get(&upstream.url("u.test", "/mine"));
            assert_eq!((next.text().as_str(), next.field("x-poison")), ("mine", None), "after {method} {path}");
        }
    }
}

#[test]
fn answers_that_are_none_are_502() {
    let cases: [&[u8]; 9] = [
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Name: x\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Nul: a\0b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Half: ",
        b"",
    ];
    let (fusebox, upstream) = (plain(), Upstream::http(|_| Vec::new()));
    for bytes in cases {
        upstream.becomes(move |_| vec![Step::Send(bytes.to_vec()), Step::Close]);
        let response = fusebox.get(&upstream.url("u.test", "/"));
        response.assert_own(502, "upstream");
    }
    assert_eq!(fusebox.errors("u.test"), 0, "no status was seen");
}

#[test]
fn an_answer_is_framed_once() {
    let both = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let twice = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello";
    let to_the_end = "HTTP/1.0 200 OK\r\n\r\nhello";
    let (fusebox, upstream) = (plain(), Upstream::http(|_| Vec::new()));
    for text in [both, twice, to_the_end] {
        upstream.becomes(move |_| vec![Step::Send(text.as_bytes().to_vec()), Step::Close]);
        let response = fusebox.get(&upstream.url("u.test", "/"));
        if response.status == 502 && text == both {
            continue;
        }
        response.assert_forwarded(200);
        assert_eq!(response.text(), "hello");
        let (lengths, codings) =
            (response.head.all("content-length").len(), response.head.all("transfer-encoding").len());
        assert_eq!(lengths + codings, 1, "{response:?}");
    }
}

#[test]
fn interim_answers_are_not_the_answer() {
    let early = "HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n";
    let upstream = Upstream::answering([early.as_bytes().to_vec(), early.as_bytes().to_vec(), status(500)].concat());
    let fusebox = plain();
    for count in 1..3 {
        fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(500);
        assert_eq!(fusebox.errors("u.test"), count);
    }
}

#[test]
fn an_early_answer_to_a_large_upload_arrives() {
    // the origin does not read the body: it answers at once and closes
    let upstream = Upstream::raw(|conn| {
        conn.reader.request_head()?;
        conn.send(b"HTTP/1.1 413 Too Much\r\nContent-Length: 5\r\nConnection: close\r\n\r\nlarge")?;
        conn.half_close()?;
        conn.hang()
    });
    let fusebox = plain();
    let body = "x".repeat(4_000_000);
    for _ in 0..5 {
        let mut client = fusebox.client();
        let _ = client.try_send(post(&upstream, &format!("Content-Length: {}\r\n", body.len()), &body));
        let response = client.response("POST");
        assert_eq!((response.status, response.text().as_str()), (413, "large"));
    }
}

#[test]
fn bodies_that_stand_still_are_given_up() {
    let fusebox = Fusebox::start(&loopback("[timeouts]\nbody_idle = \"500ms\"\nresponse_head = \"500ms\""));
    let upstream = Upstream::http(|request| match request.target.as_str() {
        "/stalls" => vec![Step::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhello".to_vec()), Step::Hang],
        "/silent" => vec![Step::Hang],
        _ => vec![Step::Send(ok(""))],
    });
    let mut client = fusebox.client();
    client.send(support::client::get_request(&upstream.url("u.test", "/stalls")));
    let response = client.broken_response("GET");
    assert!(response.status == 200 && !response.whole, "{response:?}");
    fusebox.get(&upstream.url("u.test", "/silent")).assert_own(504, "upstream");
    // a client that stops in the middle of its upload
    let mut client = fusebox.client();
    client.send(post(&upstream, "Content-Length: 99\r\n", "half of it"));
    let response = client.response("POST");
    assert_eq!((response.status, response.reason()), (408, Some("bad-request")), "{response:?}");
    until("all is given up", || upstream.standing() == 0);
    fusebox.await_metric("fusebox_in_flight", 0.0);
    assert!(fusebox.row("u.test").is_none(), "none of it counts by default");
}

#[test]
fn old_ways_to_write_fields_are_repaired_in_answers() {
    let raw =
        b"HTTP/1.1 200 OK\r\nX-Spaced : one\r\nX-Folded: two\r\n  three\r\n\tfour\r\nContent-Length : 5\r\n\r\nhello";
    let upstream = Upstream::answering(raw.to_vec());
    let fusebox = plain();
    for _ in 0..2 {
        let mut client = fusebox.client();
        client.send(support::client::get_request(&upstream.url("u.test", "/")));
        let response = client.response("GET");
        response.assert_forwarded(200);
        assert_eq!((response.field("x-spaced"), response.text().as_str()), (Some("one"), "hello"), "{response:?}");
        let folded: Vec<_> = response.field("x-folded").unwrap_or_default().split_ascii_whitespace().collect();
        assert_eq!(folded, ["two", "three", "four"], "{response:?}");
        assert_eq!(response.head.all("content-length"), ["5"], "{response:?}");
    }
}

#[test]
fn an_answer_that_breaks_off_in_its_head_is_recorded_and_not_asked_for_again() {
    let upstream = Upstream::http(|request| match request.target.as_str() {
        "/breaks" => vec![Step::Send(b"HTTP/1.1 200 O".to_vec()), Step::Close],
        _ => vec![Step::Send(ok(""))],
    });
    let fusebox = Fusebox::start(&loopback("[defaults]\nerrors = [\"connect\"]\nmax_errors = 1000"));
    let mut client = fusebox.client();
    client.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    // on the connection that is kept, then on a new one
    for count in 1..3 {
        let response = client.get(&upstream.url("u.test", "/breaks"));
        response.assert_own(502, "upstream");
        let status = response.field("proxy-status").unwrap_or_default();
        assert!(status.contains("error=http_response_incomplete"), "{status}");
        assert_eq!(upstream.count() as u64, 1 + count);
        assert_eq!(fusebox.errors("u.test"), count);
    }
}

#[test]
fn an_answer_waits_for_an_upload_that_moves() {
    let upstream = Upstream::raw(|conn| {
        let mut request = conn.reader.request_head()?.expect("a request");
        conn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")?;
        conn.reader.request_body(&mut request)?;
        conn.send(b"world")?;
        conn.hang()
    });
    let fusebox = Fusebox::start(&loopback("[timeouts]\nbody_idle = \"600ms\""));
    let mut client = fusebox.client();
    client.send(post(&upstream, "Content-Length: 10\r\n", ""));
    assert_eq!(client.head().status, 200);
    for _ in 0..10 {
        // the case itself: slower than the limit in all, never in part
        std::thread::sleep(Duration::from_millis(150));
        client.send("x");
    }
    assert_eq!(client.exactly(10), b"helloworld");
}

#[test]
fn a_slow_reader_is_not_taken_for_an_origin_that_stands_still() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 20000001\r\n\r\n";
    let upstream = Upstream::http(move |_| {
        let large = [head.as_bytes(), &[b'x'; 20_000_000]].concat();
        vec![Step::Send(large), Step::Pause(Duration::from_millis(300)), Step::Send(b"y".to_vec())]
    });
    let fusebox = Fusebox::start(&loopback("[timeouts]\nbody_idle = \"600ms\""));
    let mut client = Client::connect_narrow(fusebox.proxy());
    client.send(support::client::get_request(&upstream.url("u.test", "/")));
    assert_eq!(client.head().status, 200);
    for _ in 0..6 {
        // the case itself: it reads now and then, and in between the origin can't send
        std::thread::sleep(Duration::from_millis(250));
        client.exactly(3_000_000);
    }
    let rest = client.exactly(2_000_001);
    assert!(rest.ends_with(b"xy"));
}
