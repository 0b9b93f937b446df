//! What must not get through (acceptance cases X).

mod support;

use support::fusebox::{Setup, command, run};
use support::{Fusebox, Upstream, answer, loopback, ok, status, until};

/// Fails if any of the places where a secret could surface holds one of these.
#[track_caller]
fn assert_nowhere(fusebox: &Fusebox, upstream: &Upstream, secrets: &[&str]) {
    let mut places = vec![
        ("the origin", upstream.bytes()),
        ("the log", fusebox.log().text().into_bytes()),
        ("/metrics", fusebox.metrics().into_bytes()),
        ("the rows", fusebox.admin("GET", "/api/v1/breakers", None).body),
        ("the events", fusebox.admin("GET", "/api/v1/events", None).body),
    ];
    for entry in std::fs::read_dir(fusebox.data()).expect("a directory").flatten() {
        if entry.file_name() != "admin.token" {
            places.push(("the disk", std::fs::read(entry.path()).unwrap_or_default()));
        }
    }
    for (place, bytes) in places {
        for secret in secrets {
            assert!(!support::upstream::contains(&bytes, secret.as_bytes()), "{secret} is in {place}");
        }
    }
}

#[test]
fn x1_inner_addresses_in_disguise() {
    let fusebox = Fusebox::start("[timeouts]\nconnect = \"1s\"\n[defaults]\nerrors = [\"connect\", \"timeout\"]");
    let hosts = [
        "169.254.169.254",
        "169.254.169.254.",
        "2852039166",
        "0xA9FEA9FE",
        "0251.0376.0251.0376",
        "169.254.43518",
        "[::ffff:169.254.169.254]",
        "[::ffff:a9fe:a9fe]",
        "[64:ff9b::a9fe:a9fe]",
        "[2002:a9fe:a9fe::1]",
        "[::169.254.169.254]",
        "127.1",
        "127.0.0.1",
        "0",
        "0.0.0.0",
        "[::]",
        "[::1]",
        "[fe80::1]",
        "[fd00::1]",
        "100.64.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "localhost",
        "x.localhost",
    ];
    for host in hosts {
        let forms = [
            fusebox.get(&format!("http://{host}/")),
            fusebox.get(&format!("https://{host}/")),
            fusebox.tunnel(&format!("{host}:443")).1,
        ];
        for response in forms {
            assert!(matches!(response.status, 400 | 403), "{host}: {response:?}");
            assert!(matches!(response.reason(), Some("denied" | "bad-request")), "{host}: {response:?}");
            if response.status == 403 {
                assert!(response.text().contains("egress"), "names the key to change: {response:?}");
            }
        }
    }
    let rows = fusebox.admin("GET", "/api/v1/breakers", None).json();
    assert_eq!(rows["breakers"].as_array().map(Vec::len), Some(0), "{rows}");
    assert_eq!(fusebox.metric("fusebox_upstream_connections_total"), 0.0);
    assert!(fusebox.metric("fusebox_requests_total{outcome=\"denied\"}") >= 30.0);
    // a NAT64 address that embeds a public one is let alone: whatever comes of it, it is not denied
    assert_ne!(fusebox.get("http://[64:ff9b::808:808]:9/").status, 403);
}

#[test]
fn x1_an_exception_opens_exactly_what_it_names() {
    let Ok(upstream) = Upstream::http_on("127.0.0.2:0", |_| vec![support::Step::Send(ok("two"))]) else {
        return eprintln!("skipped: there is no 127.0.0.2 here");
    };
    let fusebox = Fusebox::start(
        "[egress]\nallow = [\"127.0.0.2/32\"]\n[egress.resolve]\n\"a.test\" = \"127.0.0.2\"\n\"b.test\" = \"127.0.0.1\"",
    );
    fusebox.get(&format!("http://127.0.0.2:{}/", upstream.port())).assert_forwarded(200);
    fusebox.get(&upstream.url("a.test", "/")).assert_forwarded(200);
    for host in ["127.0.0.1", "127.0.0.3", "b.test", "localhost"] {
        fusebox.get(&upstream.url(host, "/")).assert_own(403, "denied");
    }
    // judged on the address, not on the text of the URL
    assert_eq!(upstream.count(), 2);
}

#[test]
fn x1_its_own_listeners_are_never_dialled() {
    let fusebox = Fusebox::start(&loopback("[egress.nothing]").replace("[egress.nothing]", ""));
    for port in [fusebox.proxy().port(), fusebox.admin_address().port()] {
        for host in ["127.0.0.1", "own.test"] {
            let response = fusebox.get(&format!("http://{host}:{port}/metrics"));
            response.assert_own(403, "denied");
            let tunnel = fusebox.tunnel(&format!("{host}:{port}")).1;
            tunnel.assert_own(403, "denied");
        }
    }
    for (name, address) in [("127.0.0.1", fusebox.proxy()), ("localhost", fusebox.proxy())] {
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {name}:{}\r\n\r\n", address.port());
        assert_eq!(fusebox.exchange(request).status, 400, "the proxy port serves no admin page");
    }
}

fn hashed(password: &str) -> String {
    let mut command = command();
    command.arg("hash-password");
    let ran = run(command, &format!("{password}\n"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let hash = ran.out.trim().to_owned();
    assert!(hash.starts_with("$argon2id$"), "{ran:?}");
    hash
}

#[test]
fn x3_credentials_stay_at_the_proxy() {
    // bob:secret and eve:wrong
    let (right, wrong) = ("Ym9iOnNlY3JldA==", "ZXZlOndyb25n");
    let users = format!("[proxy]\nusers = [\"bob:{}\"]\n[log]\naccess = true\nlevel = \"debug\"", hashed("secret"));
    for (config, authenticated) in [("[log]\naccess = true\nlevel = \"debug\"", false), (users.as_str(), true)] {
        let fusebox = Fusebox::start(&loopback(config));
        let upstream = Upstream::answering(status(500));
        let authority = format!("u.test:{}", upstream.port());
        let ask = |method: &str, target: &str, credentials: &str| {
            fusebox.exchange(format!(
                "{method} {target} HTTP/1.1\r\nHost: {authority}\r\n{credentials}Authorization: Bearer kept\r\n\r\n"
            ))
        };
        let good = format!("Proxy-Authorization: Basic {right}\r\n");
        ask("GET", &upstream.url("u.test", "/"), &good).assert_forwarded(500);
        assert_eq!(upstream.last().field("authorization"), Some("Bearer kept"));
        assert_eq!(upstream.last().field("proxy-authorization"), None);
        assert_eq!(ask("CONNECT", &authority, &good).status, 200);
        let errors = fusebox.errors("u.test");
        let bad = format!("Proxy-Authorization: Basic {wrong}\r\n");
        for credentials in [bad.as_str(), "", "Proxy-Authorization: Bearer x\r\n", "Proxy-Authorization: Basic %%%\r\n"]
        {
            for (method, target) in [("GET", upstream.url("u.test", "/")), ("CONNECT", authority.clone())] {
                if !authenticated {
                    continue;
                }
                let response = ask(method, &target, credentials);
                assert_eq!((response.status, response.reason()), (407, Some("denied")), "{response:?}");
                assert!(response.field("proxy-authenticate").is_some_and(|value| value.starts_with("Basic ")));
            }
        }
        assert_eq!(fusebox.errors("u.test"), errors, "nobody is charged for a stranger");
        assert_nowhere(&fusebox, &upstream, &[right, wrong, "secret"]);
    }
}

#[test]
fn x5_it_is_no_open_proxy_by_accident() {
    let everywhere = |config: &str| {
        let setup = Setup::new(config).at(([0, 0, 0, 0], 0).into(), ([127, 0, 0, 1], 0).into());
        (setup.clone(), setup)
    };
    let (closed, _) = everywhere(&loopback(""));
    let ran = run(closed.command(), "");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    for word in ["users", "allow_clients", "open"] {
        assert!(ran.err.contains(word), "says what to do: {ran:?}");
    }
    let (open, _) = everywhere(&loopback("[proxy]\nopen = true"));
    let fusebox = open.start();
    until("it warns", || fusebox.log().entries().iter().any(|entry| entry["level"] == "WARN"));
    let (limited, _) = everywhere(&loopback("[proxy]\nallow_clients = [\"10.0.0.0/8\"]"));
    let fusebox = limited.start();
    let upstream = Upstream::answering(ok(""));
    let address = std::net::SocketAddr::from(([127, 0, 0, 1], fusebox.proxy().port()));
    support::get(address, &upstream.url("u.test", "/")).assert_own(403, "denied");
    let mut tunnel = support::Client::connect(address);
    tunnel.exchange("CONNECT u.test:443 HTTP/1.1\r\nHost: u.test:443\r\n\r\n").assert_own(403, "denied");
    assert!(upstream.connections().is_empty());
}

#[test]
fn x5_names_match_by_label() {
    let fusebox = Fusebox::start(
        "[groups]\nmine = [\"*.trusted.net\", \"trusted.org\"]\n[egress.resolve]\n\"*.only.test\" = \"127.0.0.1\"",
    );
    let keys = fusebox.keys(&[
        "http://a.trusted.net/",
        "http://untrusted.net/",
        "http://untrusted.org/",
        "http://trusted.org/",
    ]);
    assert_eq!(keys, ["group:mine", "untrusted.net", "untrusted.org", "group:mine"]);
}

/// The cookie that the page's link sets.
fn cookie(fusebox: &Fusebox) -> String {
    let ran = fusebox.cli(&["page"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let link = ran.out.trim();
    let path = link.splitn(4, '/').nth(3).unwrap_or_else(|| panic!("a link: {link}"));
    let response = fusebox.admin_with("GET", &format!("/{path}"), &[], None);
    let set = response.field("set-cookie").unwrap_or_else(|| panic!("a cookie: {response:?}"));
    for attribute in ["HttpOnly", "SameSite=Strict"] {
        assert!(set.contains(attribute), "{set}");
    }
    set.split(';').next().unwrap_or_default().to_owned()
}

#[test]
fn x6_other_names_are_not_answered() {
    let fusebox = Fusebox::start("[admin]\nhosts = [\"admin.example\"]");
    let (token, port) = (format!("Bearer {}", fusebox.token()), fusebox.admin_address().port());
    let ask = |host: &str| {
        fusebox.admin_with("GET", "/api/v1/breakers", &[("Host", host), ("Authorization", &token)], None).status
    };
    for host in ["localhost", "127.0.0.1", "[::1]", "admin.example"] {
        assert_eq!((ask(&format!("{host}:{port}")), ask(host)), (200, 200), "{host}");
    }
    for host in ["evil.test", "localhost.evil.test", "admin.example.evil.test", "10.0.0.1", "127.0.0.1.evil.test"] {
        assert_eq!(ask(&format!("{host}:{port}")), 403, "{host}");
    }
    for path in ["/", "/api/v1/breakers", "/openapi.json"] {
        let response = fusebox.admin_with("GET", path, &[("Host", "evil.test")], None);
        assert!(matches!(response.status, 403 | 421), "{path}: {response:?}");
    }
}

#[test]
fn x6_nothing_without_the_token() {
    let fusebox = Fusebox::start(&loopback(""));
    fusebox.open("u.test", "1h");
    let wrong = [None, Some("Bearer wrong"), Some("Bearer "), Some("Basic abc"), Some("bogus")];
    for credentials in wrong {
        let fields: Vec<(&str, &str)> = credentials.map(|value| ("Authorization", value)).into_iter().collect();
        for (method, path) in [
            ("GET", "/api/v1/breakers"),
            ("GET", "/api/v1/events"),
            ("POST", "/api/v1/breakers/u.test/close"),
            ("DELETE", "/api/v1/breakers/u.test"),
            ("PATCH", "/api/v1/breakers/u.test"),
            ("POST", "/api/v1/lookup"),
        ] {
            let response = fusebox.admin_with(method, path, &fields, None);
            assert_eq!(response.status, 401, "{method} {path}: {response:?}");
        }
    }
    assert_eq!(fusebox.state("u.test"), "open");
    for path in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(fusebox.admin_with("GET", path, &[], None).status, 200, "{path}");
    }
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(fusebox.data().join("admin.token")).expect("a token").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(fusebox.token().len() >= 43, "256 bits");
}

#[test]
fn x6_another_sites_page_writes_nothing() {
    let fusebox = Fusebox::start(&loopback(""));
    fusebox.open("u.test", "1h");
    let (cookie, own) = (cookie(&fusebox), format!("http://{}", fusebox.admin_address()));
    let other_port = format!("http://127.0.0.1:{}", fusebox.proxy().port());
    let close = |fields: &[(&str, &str)]| {
        let fields: Vec<(&str, &str)> =
            [("Cookie", cookie.as_str())].into_iter().chain(fields.iter().copied()).collect();
        fusebox.admin_with("POST", "/api/v1/breakers/u.test/close", &fields, None).status
    };
    for fields in [
        [("Origin", "http://evil.test")].as_slice(),
        &[("Origin", "null")],
        &[("Origin", &other_port)],
        &[("Sec-Fetch-Site", "cross-site")],
        &[("Sec-Fetch-Site", "same-site")],
        &[("Origin", &own), ("Sec-Fetch-Site", "cross-site")],
        &[],
    ] {
        assert_eq!(close(fields), 403, "{fields:?}");
    }
    assert_eq!(fusebox.state("u.test"), "open");
    let read = fusebox.admin_with("GET", "/api/v1/breakers/u.test/close", &[("Cookie", &cookie)], None);
    assert!(matches!(read.status, 404 | 405), "{read:?}");
    assert_eq!(fusebox.state("u.test"), "open", "GET changes nothing");
    assert_eq!(close(&[("Origin", &own)]), 200);
    assert_eq!(fusebox.state("u.test"), "closed");
}

#[test]
fn x6_answers_are_armoured() {
    let fusebox = Fusebox::start(&loopback(""));
    let cookie = cookie(&fusebox);
    for path in ["/", "/api/v1/breakers", "/no/such/path"] {
        let fields = [("Cookie", cookie.as_str()), ("Origin", "http://evil.test")];
        let response = fusebox.admin_with("GET", path, &fields, None);
        assert_eq!(response.field("access-control-allow-origin"), None, "{path}");
        assert_eq!(response.field("x-content-type-options"), Some("nosniff"), "{path}");
        let policy = response.field("content-security-policy").unwrap_or_else(|| panic!("{path}: {response:?}"));
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(!policy.contains("unsafe-inline"), "{policy}");
    }
}

#[test]
fn x6_what_origins_say_is_text() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nmax_errors = 1"));
    let upstream = Upstream::answering(answer("500 <img src=x onerror=1>", &[], ""));
    for _ in 0..3 {
        fusebox.get(&upstream.url("u.test", "/<script>"));
    }
    let response = fusebox.admin("GET", "/api/v1/breakers", None);
    assert!(response.field("content-type").is_some_and(|value| value.starts_with("application/json")));
    assert!(!response.text().contains("<img") && !response.text().contains("<script"));
}

#[test]
fn x8_line_ends_go_neither_in_nor_out() {
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::answering(ok(""));
    let (port, authority) = (upstream.port(), format!("u.test:{}", upstream.port()));
    let bad = [
        "CONNECT u.test%0d%0aX:443 HTTP/1.1\r\nHost: u.test\r\n\r\n".to_owned(),
        format!("GET http://u.test%0d%0aX-I:1/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
        format!("GET http://u.test%00.test:{port}/ HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
        format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nX-Bare: a\rb\r\n\r\n"),
        format!("GET http://{authority}/ HTTP/1.1\r\nHost: {authority}\r\nX-Nul: a\0b\r\n\r\n"),
        format!("GET http://{authority}/a\0b HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
        format!("GET http://{authority}/a\rb HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
        format!("GET http://{authority}/a b HTTP/1.1\r\nHost: {authority}\r\n\r\n"),
    ];
    for request in bad {
        let response = fusebox.exchange(&request);
        assert_eq!(response.status, 400, "{request:?}: {response:?}");
    }
    assert_eq!(upstream.count(), 0);
    let path = "/a%0d%0aX-I:1?q=%0a";
    fusebox.get(&upstream.url("u.test", path)).assert_forwarded(200);
    assert_eq!((upstream.count(), upstream.last().target), (1, path.to_owned()));
}

#[test]
fn x8_what_is_echoed_holds_no_quote_and_no_line_end() {
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::answering(ok(""));
    for host in ["a\"b.test", "a\\b.test", "a_b.test", "a*b.test", "a'b.test"] {
        let url = upstream.url(host, "/");
        let request = format!("GET {url} HTTP/1.1\r\nHost: u.test\r\n\r\n");
        let response = fusebox.exchange(request);
        assert!(matches!(response.status, 200 | 400), "{host}: {response:?}");
        for name in ["proxy-status", "fusebox-domain"] {
            let value =
                response.field(name).unwrap_or_default().replace("details=\"", "").trim_end_matches('"').to_owned();
            assert!(!value.contains('"') && !value.contains('\\'), "{host}: {value}");
        }
    }
}

#[test]
fn x8_an_answer_with_a_bare_line_end_is_no_second_answer() {
    let odd = b"HTTP/1.1 200 OK\r\nX-A: 1\rSet-Cookie: x=1\r\nContent-Length: 0\r\n\r\n".to_vec();
    let (fusebox, upstream) = (Fusebox::start(&loopback("")), Upstream::answering(odd));
    let response = fusebox.get(&upstream.url("u.test", "/"));
    if response.status == 200 {
        assert_eq!(response.field("set-cookie"), None, "{response:?}");
        assert!(!response.head.raw.windows(2).any(|pair| pair[0] == b'\r' && pair[1] != b'\n'), "{response:?}");
    } else {
        response.assert_own(502, "upstream");
    }
}
