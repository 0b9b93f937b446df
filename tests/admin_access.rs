//! Who may use the admin port, and from where (rebinding, cross-site requests), and the token's file.

mod admin_rig;

use std::os::unix::fs::PermissionsExt as _;

use admin_rig::Rig;
use fusebox::admin::token::{FILE, Token};

const ROWS: &str = "/api/v1/breakers";
const OPEN: &str = "/api/v1/breakers/a.test/open";

#[tokio::test]
async fn only_our_own_host_names_are_answered() {
    let rig = Rig::start().await;
    let (bearer, port) = (rig.bearer(), rig.address.port());
    let listen = rig.address.to_string();
    for (host, status) in [
        ("localhost:3129", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:3129", 200),
        ("127.8.9.1", 200),
        ("[::1]:3129", 200),
        (listen.as_str(), 200),
        ("admin.example", 200),
        ("Admin.Example:8443", 200),
        ("evil.test", 403),
        ("127.0.0.1.evil.test", 403),
        ("localhost.evil.test", 403),
        ("evil.test:3129", 403),
        ("x.admin.example", 403),
        ("192.0.2.7:3129", 403),
        ("0.0.0.0:3129", 403),
        ("localhost@evil.test", 403),
        ("", 403),
    ] {
        let answer = rig.send("GET", ROWS, &[("host", host), ("authorization", &bearer)], "").await;
        assert_eq!(answer.status, status, "{host}");
        let login = format!("/login?token={}", rig.token.expose());
        let answer = rig.send("GET", &login, &[("host", host)], "").await;
        assert_eq!(answer.status, if status == 200 { 303 } else { 403 }, "{host}");
    }
    let two = [("host", "localhost"), ("host", "evil.test"), ("authorization", &bearer)];
    assert_eq!(rig.send("GET", ROWS, &two, "").await.status, 403);
    let absolute = format!("http://evil.test:{port}{ROWS}");
    let answer = rig.send("GET", &absolute, &[("host", "localhost"), ("authorization", &bearer)], "").await;
    assert_eq!(answer.status, 403, "an absolute target names the host");
    rig.admin.set_hosts(vec!["other.example".to_owned()]);
    for (host, status) in [("admin.example", 403), ("other.example", 200)] {
        assert_eq!(
            rig.send("GET", ROWS, &[("host", host), ("authorization", &bearer)], "").await.status,
            status,
            "{host}"
        );
    }
}

#[tokio::test]
async fn nothing_but_metrics_and_health_goes_without_the_token() {
    let rig = Rig::start().await;
    let right = rig.bearer();
    let almost = format!("Bearer {}x", rig.token.expose());
    let basic = format!("Basic {}", rig.token.expose());
    for target in [
        "/",
        ROWS,
        "/api/v1/events",
        "/api/v1/stream",
        "/openapi.json",
        "/nowhere",
        "/login?token=",
        "/login?token=x",
        "/login",
    ] {
        for authorization in [None, Some("Bearer x"), Some(almost.as_str()), Some(basic.as_str())] {
            let mut fields = vec![("host", "localhost")];
            fields.extend(authorization.map(|value| ("authorization", value)));
            let answer = rig.send("GET", target, &fields, "").await;
            assert_eq!(answer.status, 401, "{target}");
            assert!(answer.detail().contains("fusebox page"));
            assert_eq!(answer.headers["www-authenticate"], "Bearer realm=\"fusebox\"");
            assert!(!answer.headers.contains_key("set-cookie"));
        }
    }
    for target in ["/metrics", "/healthz", "/readyz"] {
        assert_eq!(rig.send("GET", target, &[("host", "10.0.0.7:3129")], "").await.status, 200, "{target}");
    }
    for (method, target) in [("POST", OPEN), ("PATCH", "/api/v1/breakers/a.test"), ("POST", "/api/v1/admit")] {
        let fields = [("host", "localhost"), ("content-type", "application/json")];
        assert_eq!(rig.send(method, target, &fields, r#"{"max_errors":1}"#).await.status, 401);
    }
    assert!(rig.gate.rows().is_empty(), "nothing was changed");
    let lower = right.replacen("Bearer", "bearer", 1);
    let answer = rig.send("GET", ROWS, &[("host", "localhost"), ("authorization", &lower)], "").await;
    assert_eq!(answer.status, 200, "the scheme has no case");
}

#[tokio::test]
async fn the_link_sets_a_cookie_that_reads() {
    let rig = Rig::start().await;
    let link = rig.admin.login_link();
    let path = link.strip_prefix(&format!("http://{}", rig.address)).expect("our own address");
    let answer = rig.send("GET", path, &[("host", "localhost")], "").await;
    assert_eq!((answer.status.as_u16(), &answer.headers["location"]), (303, &"/".parse().expect("a value")));
    let cookie = answer.headers["set-cookie"].to_str().expect("text").to_owned();
    assert_eq!(cookie, format!("{}; HttpOnly; SameSite=Strict; Path=/", rig.cookie()));
    let pair = format!("other=1; {}", cookie.split(';').next().expect("a pair"));
    let page = rig.send("GET", "/", &[("host", "localhost"), ("cookie", &pair)], "").await;
    assert_eq!(
        (page.status.as_u16(), &page.headers["content-type"]),
        (200, &"text/html; charset=utf-8".parse().expect("a value"))
    );
    let wrong = [("host", "localhost"), ("cookie", &pair), ("authorization", "Bearer x")];
    assert_eq!(rig.send("GET", "/", &wrong, "").await.status, 401, "what is shown on purpose decides");
}

#[tokio::test]
async fn a_write_comes_from_our_own_page_or_from_no_page() {
    let rig = Rig::start().await;
    let (cookie, bearer) = (rig.cookie(), rig.bearer());
    let by_cookie = ("cookie", cookie.as_str());
    let by_bearer = ("authorization", bearer.as_str());
    let (good, tls) = (("origin", "http://localhost:3129"), ("origin", "https://localhost:3129"));
    let evil = ("origin", "http://evil.test");
    let other_port = ("origin", "http://localhost:8000");
    let null = ("origin", "null");
    let same = ("sec-fetch-site", "same-origin");
    let same_site = ("sec-fetch-site", "same-site");
    let cross = ("sec-fetch-site", "cross-site");
    let none = ("sec-fetch-site", "none");
    let cases: &[(u16, &[(&str, &str)])] = &[
        (200, &[by_bearer]),
        (200, &[by_bearer, good]),
        (403, &[by_bearer, evil]),
        (403, &[by_bearer, cross]),
        (200, &[by_cookie, good]),
        (200, &[by_cookie, tls]),
        (200, &[by_cookie, same]),
        (200, &[by_cookie, good, same]),
        (403, &[by_cookie]),
        (403, &[by_cookie, evil]),
        (403, &[by_cookie, evil, same]),
        (403, &[by_cookie, other_port]),
        (403, &[by_cookie, null]),
        (403, &[by_cookie, same_site]),
        (403, &[by_cookie, cross]),
        (403, &[by_cookie, none]),
        (403, &[by_cookie, good, cross]),
    ];
    for (status, fields) in cases {
        let mut all = vec![("host", "localhost:3129"), ("content-type", "application/json")];
        all.extend_from_slice(fields);
        for (method, target, body) in [
            ("POST", OPEN, "{}"),
            ("PATCH", "/api/v1/breakers/a.test", r#"{"max_errors":7}"#),
            ("DELETE", "/api/v1/breakers/a.test", ""),
        ] {
            let before = rig.gate.rows().len();
            let answer = rig.send(method, target, &all, body).await;
            let wanted = if *status == 200 && method == "DELETE" { 204 } else { *status };
            assert_eq!(answer.status, wanted, "{method} {fields:?}");
            assert!(*status == 200 || rig.gate.rows().len() == before, "nothing was changed");
        }
    }
    // reading needs no origin
    assert_eq!(rig.send("GET", ROWS, &[("host", "localhost"), by_cookie, evil, cross], "").await.status, 200);
}

#[tokio::test]
async fn reading_changes_nothing() {
    let rig = Rig::start().await;
    for target in [OPEN, "/api/v1/breakers/a.test/close", "/api/v1/admit", "/api/v1/record", "/api/v1/lookup"] {
        for method in ["GET", "HEAD"] {
            assert_eq!(rig.call(method, target, "").await.status, 405, "{method} {target}");
        }
    }
    for target in [ROWS, "/api/v1/events", "/", "/openapi.json", "/metrics"] {
        assert_eq!(rig.call("GET", target, "").await.status, 200, "{target}");
    }
    assert_eq!(rig.call("GET", "/api/v1/breakers/a.test", "").await.status, 404);
    assert!(rig.gate.rows().is_empty());
    assert_eq!(rig.call("GET", "/api/v1/events", "").await.json()["events"], serde_json::json!([]));
}

#[tokio::test]
async fn every_answer_is_guarded_and_none_is_shared() {
    let rig = Rig::start().await;
    let bearer = rig.bearer();
    let login = format!("/login?token={}", rig.token.expose());
    for (method, target, host) in [
        ("GET", "/", "localhost"),
        ("GET", ROWS, "localhost"),
        ("GET", "/metrics", "localhost"),
        ("GET", "/healthz", "localhost"),
        ("GET", login.as_str(), "localhost"),
        ("GET", "/nowhere", "localhost"),
        ("PUT", ROWS, "localhost"),
        ("OPTIONS", ROWS, "localhost"),
        ("POST", "/api/v1/admit", "localhost"),
        ("GET", ROWS, "evil.test"),
    ] {
        let fields = [("host", host), ("authorization", &bearer), ("origin", "http://evil.test")];
        let answer = rig.send(method, target, &fields, "").await;
        let csp = answer.headers["content-security-policy"].to_str().expect("text");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "form-action 'self'",
        ] {
            assert!(csp.contains(part), "{method} {target}: {csp}");
        }
        assert!(!csp.contains("unsafe"));
        assert_eq!(answer.headers["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers["referrer-policy"], "no-referrer");
        assert_eq!(answer.headers.get_all("cache-control").iter().collect::<Vec<_>>(), ["no-store"]);
        let cors = answer.headers.keys().find(|name| name.as_str().starts_with("access-control-"));
        assert_eq!(cors, None, "{method} {target}");
    }
}

fn mode(path: &std::path::Path) -> u32 {
    std::fs::metadata(path).expect("a file").permissions().mode() & 0o777
}

#[test]
fn the_token_is_made_once_and_for_its_owner_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(FILE);
    assert!(Token::load(dir.path()).is_err());
    let token = Token::load_or_create(Some(dir.path())).expect("a token");
    assert_eq!(token.expose().len(), 43, "256 bits in base64url");
    assert_eq!(mode(&path), 0o600);
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1, "no draft is left");
    for again in [Token::load_or_create(Some(dir.path())), Token::load(dir.path())] {
        assert!(again.expect("a token").is(token.expose().as_bytes()));
    }
    assert!(!token.is(b"") && !token.is(&token.expose().as_bytes()[1..]));
    assert!(!format!("{token:?}").contains(token.expose()));
    let in_memory = Token::load_or_create(None).expect("a token");
    assert!(!in_memory.is(token.expose().as_bytes()));
}

#[test]
fn a_file_that_others_may_read_is_closed_to_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(FILE);
    let token = Token::load_or_create(Some(dir.path())).expect("a token");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("a mode");
    assert!(Token::load_or_create(Some(dir.path())).expect("a token").is(token.expose().as_bytes()));
    assert_eq!(mode(&path), 0o600);
}

#[test]
fn what_is_no_token_is_said_and_left() {
    for content in ["", "\n", "short", "not base64url at all, but long enough to be a tok"] {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(FILE);
        std::fs::write(&path, content).expect("a file");
        let error = Token::load_or_create(Some(dir.path())).expect_err(content).to_string();
        assert!(error.contains(FILE) && error.contains("delete"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), content);
    }
}

#[test]
fn many_that_start_at_once_have_one_token() {
    let dir = tempfile::tempdir().expect("a directory");
    let tokens: Vec<String> = std::thread::scope(|scope| {
        let start = || Token::load_or_create(Some(dir.path())).expect("a token").expose().to_owned();
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(start)).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    assert!(tokens.iter().all(|token| *token == tokens[0]));
    assert_eq!(std::fs::read_dir(dir.path()).expect("a directory").count(), 1);
}

#[tokio::test]
async fn metrics_and_health_answer_any_address_and_no_foreign_name() {
    let rig = Rig::start().await;
    for path in ["/metrics", "/healthz", "/readyz"] {
        for host in ["10.1.2.3:3129", "[2001:db8::1]", "localhost", ""] {
            assert_eq!(rig.send("GET", path, &[("host", host)], "").await.status, 200, "{path} {host}");
        }
        assert_eq!(rig.send("GET", path, &[("host", "evil.test")], "").await.status, 403, "{path}");
    }
}
