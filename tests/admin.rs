//! Every call of the admin port, and what it says when it can't be done.

mod admin_rig;

use std::collections::BTreeSet;
use std::time::Duration;

use admin_rig::{Rig, policies};
use fusebox::core::time::Span;
use fusebox::health::Phase;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

const ROWS: &str = "/api/v1/breakers";

fn path(domain: &str) -> String {
    format!("{ROWS}/{domain}")
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).expect("JSON")
}

#[tokio::test]
async fn a_row_says_what_it_should() {
    let rig = Rig::start().await;
    for _ in 0..3 {
        let report = json!({"url": "https://x.medium.com/a?b", "status": 429, "retry_after": "7200"});
        assert_eq!(rig.call("POST", "/api/v1/record", &report.to_string()).await.status, 204);
    }
    let row = rig.call("GET", &path("www.medium.com"), "").await;
    assert_eq!(row.headers["content-type"], "application/json");
    insta::assert_snapshot!("open", String::from_utf8_lossy(&row.body));
    assert_eq!(rig.call("GET", ROWS, "").await.json(), json!({"breakers": [row.json()]}));
    let idn = rig.call("PATCH", &path("b%C3%BCcher.example"), r#"{"errors":["5xx","tls"],"max_errors":5}"#).await;
    insta::assert_snapshot!("overridden", pretty(&idn.json()));
}

#[tokio::test]
async fn rows_come_by_state_and_page() {
    let rig = Rig::start().await;
    for domain in ["a.test", "b.test", "c.test"] {
        assert_eq!(rig.call("POST", &format!("{}/open", path(domain)), r#"{"for":"30m"}"#).await.status, 200);
    }
    rig.call("PATCH", &path("d.test"), r#"{"max_errors":9}"#).await;
    let names = async |query: &str| {
        let answer = rig.call("GET", &format!("{ROWS}?{query}"), "").await;
        assert_eq!(answer.status, 200, "{answer:?}");
        let page = answer.json();
        let rows = page["breakers"].as_array().expect("rows").iter();
        (
            rows.map(|row| row["domain"].as_str().expect("a name").to_owned()).collect::<Vec<_>>().join(" "),
            page["next"].clone(),
        )
    };
    assert_eq!(names("").await, ("a.test b.test c.test d.test".to_owned(), Value::Null));
    assert_eq!(names("state=open&limit=&after=").await, ("a.test b.test c.test".to_owned(), Value::Null));
    assert_eq!(names("state=closed").await.0, "d.test");
    assert_eq!(names("limit=2").await, ("a.test b.test".to_owned(), json!("b.test")));
    assert_eq!(names("limit=2&after=b.test").await, ("c.test d.test".to_owned(), Value::Null));
    rig.clock.advance(Span::seconds(3_600));
    assert_eq!(names("state=half_open").await.0, "a.test b.test c.test");
    for query in ["state=broken", "limit=0", "limit=1001", "limit=x", "stat=open"] {
        let answer = rig.call("GET", &format!("{ROWS}?{query}"), "").await;
        assert_eq!(answer.status, 422, "{query}");
        answer.detail();
    }
}

#[tokio::test]
async fn a_circuit_is_opened_and_closed_by_hand() {
    let rig = Rig::start().await;
    let open = rig.call("POST", &format!("{}/open", path("www.a.test")), r#"{"for":"30m"}"#).await.json();
    assert_eq!(
        (&open["domain"], &open["state"], &open["opened_by"]),
        (&json!("a.test"), &json!("open"), &json!("manual"))
    );
    assert_eq!(open["opened_until"], "2026-06-01T02:40:00Z");
    rig.clock.advance(Span::seconds(60));
    // no body at all, and no type of it
    let (host, bearer) = (rig.address.to_string(), rig.bearer());
    let again =
        rig.send("POST", &format!("{}/open", path("a.test")), &[("host", &host), ("authorization", &bearer)], "").await;
    assert_eq!(again.json()["opened_until"], "2026-06-01T03:11:00Z", "the clock restarts, with the policy's length");
    let closed = rig.call("POST", &format!("{}/close", path("a.test")), "").await.json();
    assert_eq!((&closed["state"], &closed["opened_until"]), (&json!("closed"), &Value::Null));
    for (body, status, word) in [
        (r#"{"for":"30"}"#, 422, "unit"),
        (r#"{"for":30}"#, 422, "unit"),
        (r#"{"for":"0s"}"#, 422, "for"),
        (r#"{"fro":"30m"}"#, 422, "fro"),
        ("[]x", 400, "JSON"),
        (r#"["30m"]"#, 422, "object"),
        ("null", 422, "object"),
        ("{", 400, "JSON"),
    ] {
        let answer = rig.call("POST", &format!("{}/open", path("a.test")), body).await;
        assert_eq!(answer.status, status, "{body}");
        assert!(answer.detail().contains(word), "{answer:?}");
    }
    assert_eq!(rig.call("GET", &path("a.test"), "").await.json()["state"], "closed", "nothing was opened");
}

#[tokio::test]
async fn overrides_change_all_at_once_or_not_at_all() {
    let rig = Rig::start().await;
    let set = rig.call("PATCH", &path("a.test"), r#"{"max_errors":5,"requests_per_10s":3}"#).await;
    assert_eq!(set.status, 200);
    assert_eq!(set.json()["policy"]["max_errors"], json!({"value": 5, "source": "override"}));
    for (body, key) in [
        (r#"{"window":"30s","max_eror":1}"#, "max_eror"),
        (r#"{"window":"30s","max_errors":-1}"#, "max_errors"),
        (r#"{"window":"0s"}"#, "window"),
        (r#"{"window":60}"#, "window"),
        (r#"{"mode":"on"}"#, "mode"),
        (r#"{"errors":["4xx","99"]}"#, "errors"),
        (r#"{"window":"30s","key":"host"}"#, "key"),
        (r#"{"window":"30s","key":null}"#, "key"),
    ] {
        let answer = rig.call("PATCH", &path("a.test"), body).await;
        assert_eq!(answer.status, 422, "{body}");
        assert!(answer.detail().contains(key), "{answer:?}");
        assert_eq!(answer.json()["key"], key);
        assert_eq!(rig.call("GET", &path("a.test"), "").await.json()["policy"], set.json()["policy"], "{body}");
    }
    assert!(
        rig.call("PATCH", &path("a.test"), r#"{"max_eror":1}"#).await.detail().contains("did you mean max_errors?")
    );
    assert_eq!(rig.call("PATCH", &path("a.test"), "[]").await.status, 422);
    assert_eq!(rig.call("PATCH", &path("a.test"), "{}").await.status, 422);
    let cleared = rig.call("PATCH", &path("a.test"), r#"{"requests_per_10s":null}"#).await.json();
    assert_eq!(cleared["policy"]["requests_per_10s"], json!({"value": "none", "source": "default"}));
    assert_eq!(cleared["policy"]["max_errors"]["source"], "override");
    rig.call("PATCH", &path("a.test"), r#"{"max_errors":null}"#).await;
    assert_eq!(rig.call("GET", &path("a.test"), "").await.status, 404, "no override, no row");
}

#[tokio::test]
async fn a_row_that_is_removed_is_gone() {
    let rig = Rig::start().await;
    rig.call("PATCH", &path("a.test"), r#"{"max_errors":5}"#).await;
    rig.call("POST", &format!("{}/open", path("a.test")), "").await;
    assert_eq!(rig.call("DELETE", &path("www.a.test"), "").await.status, 204);
    assert!(rig.call("GET", &path("a.test"), "").await.detail().contains("a.test"));
    assert_eq!(rig.call("DELETE", &path("a.test"), "").await.status, 204, "that there is none is what was asked for");
    assert_eq!(rig.call("POST", "/api/v1/admit", r#"{"url":"http://a.test/"}"#).await.status, 200);
}

#[tokio::test]
async fn a_domain_in_a_path_is_read_as_people_write_it() {
    let rig = Rig::start().await;
    for (written, key) in [
        ("www.medium.com", "medium.com"),
        ("%5B%3A%3A1%5D%3A81", "[::1]:81"),
        ("feeds:8080", "feeds:8080"),
        ("https%3A%2F%2Fx.y.co.uk%2Fz", "y.co.uk"),
    ] {
        let row = rig.call("POST", &format!("{}/open", path(written)), "").await;
        assert_eq!(row.json()["domain"], key);
        assert_eq!(rig.call("GET", &path(written), "").await.status, 200);
    }
    for bad in ["127.1", "a..b", "%00", "%ff", "group%3Anone", "a%0d%0ab", "%20"] {
        let answer = rig.call("GET", &path(bad), "").await;
        assert_eq!(answer.status, 400, "{bad}");
        assert!(!answer.detail().contains(['\r', '\n', '\0']));
    }
}

#[tokio::test]
async fn what_does_not_fit_is_a_problem() {
    let rig = Rig::start().await;
    let (host, bearer) = (rig.address.to_string(), rig.bearer());
    let form = ("content-type", "application/x-www-form-urlencoded");
    let as_form = [("host", host.as_str()), ("authorization", &bearer), form];
    let answer = rig.send("PATCH", &path("a.test"), &as_form, r#"{"max_errors":5}"#).await;
    assert_eq!(answer.status, 200, "curl -d calls JSON a form");
    let big = json!({"url": "x".repeat(70_000)}).to_string();
    for (method, target, body, status) in [
        ("GET", "/nowhere", "", 404),
        ("GET", "/api/v1/breakers/a/b/c", "", 404),
        ("PUT", ROWS, "", 405),
        ("POST", "/metrics", "", 405),
        ("POST", "/api/v1/admit", big.as_str(), 413),
        ("POST", "/api/v1/admit", "", 422),
        ("POST", "/api/v1/admit", r#"{"url":"no url"}"#, 400),
        ("POST", "/api/v1/admit", r#"{"url":"ftp://a.test/"}"#, 400),
    ] {
        let answer = rig.call(method, target, body).await;
        assert_eq!(answer.status, status, "{method} {target}");
        answer.detail();
        assert!(status != 405 || answer.headers.contains_key("allow"), "{method} {target}");
    }
}

#[tokio::test]
async fn admit_and_record_make_a_probe() {
    let rig = Rig::start().await;
    rig.trip("https://a.test/").await;
    let admit = async || rig.call("POST", "/api/v1/admit", r#"{"url":"https://www.a.test/feed"}"#).await;
    let refused = admit().await;
    assert_eq!((refused.status.as_u16(), &refused.headers["retry-after"]), (503, &"3600".parse().expect("a value")));
    assert_eq!(
        (&refused.headers["fusebox-reason"], &refused.headers["fusebox-domain"]),
        (&"open".parse().expect("a value"), &"a.test".parse().expect("a value"))
    );
    insta::assert_snapshot!("refused", pretty(&refused.json()));
    rig.clock.advance(Span::seconds(3_601));
    let probe = admit().await.json();
    assert_eq!((&probe["admit"], &probe["domain"]), (&json!(true), &json!("a.test")));
    assert_eq!(admit().await.status, 503, "one probe decides");
    let report = |url: &str, status: u16| json!({"url": url, "status": status, "permit": probe["permit"]}).to_string();
    let other = rig.call("POST", "/api/v1/record", &report("https://b.test/", 200)).await;
    assert_eq!(other.status, 422);
    assert!(other.detail().contains("another domain"));
    assert_eq!(rig.call("GET", &path("a.test"), "").await.json()["state"], "open");
    assert_eq!(rig.call("POST", "/api/v1/record", &report("http://x.a.test/", 200)).await.status, 204);
    assert_eq!(rig.call("GET", &path("a.test"), "").await.json()["state"], "closed");
    assert_eq!(rig.call("POST", "/api/v1/record", &report("http://x.a.test/", 503)).await.status, 204);
    assert_eq!(rig.call("GET", &path("a.test"), "").await.json()["state"], "closed", "a permit decides once");
}

#[tokio::test]
async fn a_permit_lives_for_the_probe_timeout() {
    let rig = Rig::start().await;
    rig.trip("https://a.test/").await;
    rig.clock.advance(Span::seconds(3_601));
    let probe = rig.call("POST", "/api/v1/admit", r#"{"url":"https://a.test/"}"#).await.json();
    rig.clock.advance(Span::seconds(31));
    let report = json!({"url": "https://a.test/", "status": 200, "permit": probe["permit"]}).to_string();
    assert_eq!(rig.call("POST", "/api/v1/record", &report).await.status, 204);
    assert_eq!(rig.call("GET", &path("a.test"), "").await.json()["state"], "half_open");
}

#[tokio::test]
async fn admit_holds_no_place_and_never_waits() {
    let rig = Rig::with(&[], policies(Some(r#"{"max_in_flight":1,"max_wait":"1h"}"#))).await;
    for _ in 0..3 {
        assert_eq!(rig.call("POST", "/api/v1/admit", r#"{"url":"https://a.test/"}"#).await.status, 200);
    }
    let rig = Rig::with(&[], policies(Some(r#"{"requests_per_10s":1,"max_wait":"1h"}"#))).await;
    assert_eq!(rig.call("POST", "/api/v1/admit", r#"{"url":"https://a.test/"}"#).await.status, 200);
    let refused = rig.call("POST", "/api/v1/admit", r#"{"url":"https://a.test/"}"#).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["reason"]), (503, &json!("throttled")));
}

#[tokio::test]
async fn a_report_must_make_sense() {
    let rig = Rig::start().await;
    for (report, key) in [
        (json!({}), "status"),
        (json!({"status": 99}), "status"),
        (json!({"status": 1000}), "status"),
        (json!({"status": 200, "error": "connect"}), "error"),
        (json!({"error": "dns"}), "error"),
        (json!({"status": 200, "permit": "x"}), "permit"),
    ] {
        let mut report = report;
        report["url"] = json!("https://a.test/");
        let answer = rig.call("POST", "/api/v1/record", &report.to_string()).await;
        assert_eq!((answer.status.as_u16(), &answer.json()["key"]), (422, &json!(key)), "{report}");
    }
    rig.call("PATCH", &path("a.test"), r#"{"errors":["connect"],"max_errors":0}"#).await;
    let failed = json!({"url": "https://www.a.test/", "error": "connect", "retry_after": 5});
    assert_eq!(rig.call("POST", "/api/v1/record", &failed.to_string()).await.status, 204);
    let row = rig.call("GET", &path("a.test"), "").await.json();
    assert_eq!(
        (&row["state"], &row["last_status"], &row["last_host"]),
        (&json!("open"), &json!("connect"), &json!("www.a.test"))
    );
}

#[tokio::test]
async fn a_look_up_answers_in_order_and_changes_nothing() {
    let rig = Rig::start().await;
    rig.trip("https://a.test/").await;
    let urls =
        ["https://b.test/x", "no url", "http://user:pass@www.a.test:8080/?q#f", "http://127.1/", "ws://[::1]:81/"];
    let answer = rig.call("POST", "/api/v1/lookup", &json!({ "urls": urls }).to_string()).await;
    insta::assert_snapshot!("looked_up", pretty(&answer.json()));
    assert_eq!(rig.gate.rows().len(), 1);
    let many: Vec<String> = (0..10_000).map(|n| format!("https://feeds{n}.test/{}", "x".repeat(90))).collect();
    let answer = rig.call("POST", "/api/v1/lookup", &json!({ "urls": many }).to_string()).await;
    assert_eq!(answer.json()["results"].as_array().map(Vec::len), Some(10_000));
    let answer =
        rig.call("POST", "/api/v1/lookup", &json!({ "urls": vec!["https://a.test/"; 10_001] }).to_string()).await;
    assert_eq!(answer.status, 422);
}

#[tokio::test]
async fn events_come_newest_first_and_by_page() {
    let rig = Rig::start().await;
    rig.trip("https://www.a.test/").await;
    for domain in ["b.test", "c.test"] {
        rig.call("POST", &format!("{}/open", path(domain)), r#"{"for":"1h"}"#).await;
    }
    let all = rig.call("GET", "/api/v1/events?domain=&before=&limit=", "").await.json();
    insta::assert_snapshot!("events", pretty(&all));
    let page = rig.call("GET", "/api/v1/events?limit=2", "").await.json();
    assert_eq!(page["events"].as_array().map(Vec::len), Some(2));
    let rest = rig.call("GET", &format!("/api/v1/events?limit=2&before={}", page["next"]), "").await.json();
    assert_eq!((&rest["events"][0], &rest["next"]), (&all["events"][2], &Value::Null));
    let of_one = rig.call("GET", "/api/v1/events?domain=feeds.a.test", "").await.json();
    assert_eq!(of_one["events"], json!([all["events"][2]]));
    for (query, status) in
        [("limit=0", 422), ("limit=1001", 422), ("before=x", 422), ("domian=a", 422), ("domain=a..b", 400)]
    {
        assert_eq!(rig.call("GET", &format!("/api/v1/events?{query}"), "").await.status, status, "{query}");
    }
}

/// Reads frames until `text` holds `what`.
async fn read_until(body: &mut hyper::body::Incoming, text: &mut String, what: &str) {
    while !text.contains(what) {
        let frame = tokio::time::timeout(Duration::from_secs(20), body.frame()).await.expect("in time");
        let frame = frame.unwrap_or_else(|| panic!("it ended without {what}")).expect("a frame");
        text.push_str(&String::from_utf8_lossy(frame.data_ref().expect("data")));
    }
}

#[tokio::test]
async fn events_come_live() {
    let rig = Rig::start().await;
    let (host, bearer) = (rig.address.to_string(), rig.bearer());
    let response = rig.raw("GET", "/api/v1/stream", &[("host", &host), ("authorization", &bearer)], "").await;
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let (mut body, mut text) = (response.into_body(), String::new());
    read_until(&mut body, &mut text, ": live\n\n").await;
    rig.call("POST", &format!("{}/open", path("a.test")), r#"{"for":"1h"}"#).await;
    read_until(&mut body, &mut text, "event: open\n").await;
    read_until(&mut body, &mut text, "}\n\n").await;
    insta::assert_snapshot!("stream", text);
    // more at once than the shared queue holds, before the reader can take any
    for n in 0..3_000 {
        rig.gate.tell(fusebox::core::row::EventKind::Reload, None, "auto".to_owned(), n.to_string());
    }
    read_until(&mut body, &mut text, "event: lagged\ndata: {\"missed\":").await;
    rig.stop.cancel();
    let ended = async { while body.frame().await.is_some_and(|frame| frame.is_ok()) {} };
    tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the stream ends");
    tokio::time::timeout(Duration::from_secs(20), rig.served).await.expect("the port closes").expect("well");
}

#[tokio::test]
async fn health_says_how_it_is() {
    let rig = Rig::start().await;
    assert_eq!(rig.call("GET", "/healthz", "").await.json(), json!({"status": "ok"}));
    rig.health.without_persistence("no directory".to_owned());
    let ready = rig.call("GET", "/readyz", "").await;
    assert_eq!(ready.status, 200);
    assert_eq!(
        ready.json(),
        json!({"status": "ready", "store": "memory", "store_reason": "no directory", "redis": "off"})
    );
    rig.health.reloaded(Some("config.toml:1:1: no".to_owned()));
    rig.health.enter(Phase::Draining);
    let draining = rig.call("GET", "/readyz", "").await;
    assert_eq!((draining.status.as_u16(), &draining.json()["status"]), (503, &json!("draining")));
    assert_eq!(draining.json()["reload_error"], "config.toml:1:1: no");
    rig.health.enter(Phase::Starting);
    assert_eq!(rig.call("GET", "/readyz", "").await.json()["status"], "starting");
    rig.trip("https://a.test/").await;
    let metrics = rig.call("GET", "/metrics", "").await;
    assert_eq!(metrics.headers["content-type"], "text/plain; version=0.0.4");
    assert!(String::from_utf8_lossy(&metrics.body).contains("fusebox_circuits_open 1\n"));
}

#[tokio::test]
async fn the_description_has_every_route_and_nothing_else() {
    let rig = Rig::start().await;
    let description = rig.call("GET", "/openapi.json", "").await.json();
    let described: BTreeSet<String> = description["paths"].as_object().expect("paths").keys().cloned().collect();
    // the router lists its routes nowhere but in its debug form
    let debug = format!("{:?}", fusebox::admin::router(rig.admin.clone()));
    let quoted =
        debug.split('"').skip(1).step_by(2).filter(|text| text.starts_with('/') && !text.contains("__private"));
    let routed: BTreeSet<String> = quoted.map(str::to_owned).collect();
    assert!(routed.len() >= 14, "{routed:?}");
    assert_eq!(routed, described);
    let (host, bearer) = (rig.address.to_string(), rig.bearer());
    for (path, item) in description["paths"].as_object().expect("paths") {
        for method in ["get", "post", "put", "patch", "delete"] {
            // the stream has no end, so only the head is read
            let fields = [("host", host.as_str()), ("authorization", &bearer)];
            let status =
                rig.raw(&method.to_uppercase(), &path.replace("{domain}", "a.test"), &fields, "").await.status();
            assert_eq!(status != 405, item.get(method).is_some(), "{method} {path}");
            let Some(operation) = item.get(method) else { continue };
            assert!(operation["summary"].as_str().is_some_and(|text| !text.is_empty()), "{method} {path}");
            let problem = &operation["responses"]["default"]["content"]["application/problem+json"]["schema"]["$ref"];
            assert_eq!(problem, "#/components/schemas/Problem", "{method} {path}");
            let open = ["/metrics", "/healthz", "/readyz", "/login"].contains(&path.as_str());
            assert_eq!(operation["security"] == json!([{}]), open, "{method} {path}: {}", operation["security"]);
        }
    }
    assert_eq!(description["security"], json!([{"bearer": []}, {"cookie": []}]));
    assert_eq!(description["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    let text = description.to_string();
    let schemas = &description["components"]["schemas"];
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().expect("a name");
        assert!(schemas.get(name).is_some(), "{name} is referred to and not there");
    }
}
