//! The breaker (acceptance cases B): what trips it, what does not, and that one probe decides.

mod support;

use std::time::Duration;

use support::patience::throughout;
use support::{Client, Fusebox, Latch, Step, Upstream, answer, loopback, ok, status, until};

/// Trips after `max_errors` and stays open for so long.
fn fusebox(max_errors: u32, open_for: &str, more: &str) -> Fusebox {
    Fusebox::start(&loopback(&format!("[defaults]\nmax_errors = {max_errors}\nopen_for = \"{open_for}\"\n{more}")))
}

#[track_caller]
fn trip(fusebox: &Fusebox, upstream: &Upstream, host: &str, requests: usize) {
    for _ in 0..requests {
        assert_ne!(fusebox.get(&upstream.url(host, "/")).status, 200);
    }
}

#[track_caller]
fn await_half_open(fusebox: &Fusebox, domain: &str) {
    until("half-open", || fusebox.state(domain) == "half_open");
}

#[test]
fn b0_the_third_error_trips_and_a_refusal_says_everything() {
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::answering(status(429));
    trip(&fusebox, &upstream, "a.u.test", 2);
    assert_eq!((fusebox.state("u.test").as_str(), fusebox.errors("u.test")), ("closed", 2));
    trip(&fusebox, &upstream, "b.u.test", 1);
    let response = fusebox.get(&upstream.url("c.u.test", "/"));
    response.assert_refused("open", "u.test");
    let problem = response.json();
    assert_eq!((&problem["opened_by"], &problem["last_status"]), (&"auto".into(), &429.into()), "{problem}");
    assert!((3_590..=3_600).contains(&response.retry_after().expect("Retry-After")), "{response:?}");
    assert!(response.field("proxy-status").is_some_and(|value| value.contains("u.test") && value.contains("429")));
    assert_eq!(upstream.count(), 3);
    let row = fusebox.row("u.test").expect("a row");
    assert_eq!((&row["state"], &row["opened_by"], &row["trip_count"]), (&"open".into(), &"auto".into(), &1.into()));
    assert_eq!((&row["last_status"], &row["last_host"]), (&429.into(), &"b.u.test".into()), "{row}");
    assert_eq!(row["errors_in_window"], 0, "a trip clears the window: {row}");
    for at in ["opened_at", "opened_until"] {
        assert!(row[at].as_str().is_some_and(|at| at.ends_with('Z')), "{row}");
    }
    assert_eq!(fusebox.metric("fusebox_trips_total"), 1.0);
    assert_eq!(fusebox.metric("fusebox_circuits_open"), 1.0);
    assert_eq!(fusebox.metric("fusebox_domain_state{domain=\"u.test\"}"), 2.0);
    assert_eq!(fusebox.log().events("trip").len(), 1, "{}", fusebox.log().text());
    let events = fusebox.admin("GET", "/api/v1/events", None).json();
    assert_eq!(
        (&events["events"][0]["kind"], &events["events"][0]["by"]),
        (&"trip".into(), &"auto".into()),
        "{events}"
    );
}

#[test]
fn b0_old_errors_slide_out_of_the_window() {
    let fusebox = fusebox(2, "1h", "window = \"1s\"");
    let upstream = Upstream::answering(status(500));
    trip(&fusebox, &upstream, "u.test", 2);
    until("the window is empty", || fusebox.errors("u.test") == 0);
    trip(&fusebox, &upstream, "u.test", 2);
    assert_eq!(fusebox.state("u.test"), "closed");
}

#[test]
fn b0_many_errors_at_once_trip_once() {
    let (fusebox, latch) = (fusebox(2, "1h", ""), Latch::new());
    let go = latch.clone();
    let upstream = Upstream::http(move |_| vec![Step::Await(go.clone()), Step::Send(status(503))]);
    let mut clients: Vec<Client> = (0..40).map(|_| fusebox.client()).collect();
    for client in &mut clients {
        client.send(support::client::get_request(&upstream.url("u.test", "/")));
    }
    upstream.await_count(40);
    latch.open();
    for client in &mut clients {
        client.response("GET").assert_forwarded(503);
    }
    let row = fusebox.row("u.test").expect("a row");
    assert_eq!((&row["trip_count"], &row["errors_in_window"]), (&1.into(), &0.into()), "{row}");
    assert_eq!(fusebox.metric("fusebox_trips_total"), 1.0);
}

#[test]
fn b1_half_open_lets_exactly_one_through() {
    let fusebox = fusebox(4, "1s", "");
    let upstream = Upstream::answering(status(500));
    trip(&fusebox, &upstream, "u.test", 5);
    assert_eq!(fusebox.state("u.test"), "open");
    let latch = Latch::new();
    let go = latch.clone();
    upstream.becomes(move |_| vec![Step::Await(go.clone()), Step::Send(ok("well again"))]);
    await_half_open(&fusebox, "u.test");
    let mut clients: Vec<Client> = (0..40).map(|_| fusebox.client()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.send(support::client::get_request(&upstream.url(&format!("h{index}.u.test"), "/")));
    }
    upstream.await_count(6);
    // tunnels to the same key come too late as well
    for index in 0..10 {
        fusebox.tunnel(&format!("h{index}.u.test:{}", upstream.port())).1.assert_refused("open", "u.test");
    }
    fusebox.await_metric("fusebox_refusals_total{reason=\"open\"}", 49.0);
    latch.open();
    let answers: Vec<_> = clients.iter_mut().map(|client| client.response("GET")).collect();
    assert_eq!(answers.iter().filter(|answer| answer.status == 200).count(), 1);
    assert_eq!(answers.iter().filter(|answer| answer.reason() == Some("open")).count(), 39);
    assert_eq!(upstream.count(), 6);
    until("closed", || fusebox.state("u.test") == "closed");
    for _ in 0..50 {
        fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    }
    assert_eq!(fusebox.metric("fusebox_probes_total{result=\"success\"}"), 1.0);
}

#[test]
fn b1_a_probe_that_fails_trips_again_and_longer() {
    let fusebox = fusebox(1, "1s", "open_growth = 60.0");
    let upstream = Upstream::answering(status(500));
    trip(&fusebox, &upstream, "u.test", 2);
    await_half_open(&fusebox, "u.test");
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(500);
    let refused = fusebox.get(&upstream.url("u.test", "/"));
    refused.assert_refused("open", "u.test");
    assert!((50..=60).contains(&refused.retry_after().expect("Retry-After")), "{refused:?}");
    assert_eq!(fusebox.trips("u.test"), 2);
    assert_eq!(fusebox.metric("fusebox_probes_total{result=\"error\"}"), 1.0);
}

#[test]
fn b1_without_half_open_time_alone_closes() {
    let fusebox = fusebox(1, "1s", "half_open = false");
    let upstream = Upstream::answering(status(500));
    trip(&fusebox, &upstream, "u.test", 2);
    assert_eq!(fusebox.state("u.test"), "open");
    until("closed", || fusebox.state("u.test") == "closed");
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(500);
    assert_eq!(fusebox.state("u.test"), "closed", "one error is no trip");
}

#[test]
fn b1_retry_after_is_true() {
    let fusebox = fusebox(1, "2s", "");
    let upstream = Upstream::answering(status(500));
    trip(&fusebox, &upstream, "u.test", 2);
    upstream.answers(ok(""));
    let refused = fusebox.get(&upstream.url("u.test", "/"));
    refused.assert_refused("open", "u.test");
    std::thread::sleep(Duration::from_secs(refused.retry_after().expect("Retry-After")));
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(200);
}

/// Each way in which a probe can end without a verdict.
#[test]
fn b2_every_way_out_gives_the_probe_back() {
    let more = "probe_timeout = \"1s\"\n[timeouts]\nresponse_head = \"500ms\"\n";
    let fusebox = fusebox(1, "1s", more);
    let upstream = Upstream::answering(status(500));
    let url = upstream.url("u.test", "/");
    type Exit = fn(&Fusebox, &Upstream);
    let exits: [(&str, Exit); 6] = [
        ("the client leaves before the head", |fusebox, upstream| {
            upstream.becomes(|_| vec![Step::Hang]);
            let seen = upstream.count();
            let mut client = fusebox.client();
            client.send(support::client::get_request(&upstream.url("u.test", "/")));
            upstream.await_count(seen + 1);
        }),
        ("the origin hangs", |fusebox, upstream| {
            upstream.becomes(|_| vec![Step::Hang]);
            fusebox.get(&upstream.url("u.test", "/")).assert_own(504, "upstream");
        }),
        ("the origin resets", |fusebox, upstream| {
            upstream.becomes(|_| vec![Step::Reset]);
            fusebox.get(&upstream.url("u.test", "/")).assert_own(502, "upstream");
        }),
        ("nobody listens", |fusebox, _| {
            let port = support::fusebox::closed_port();
            fusebox.get(&format!("http://u.test:{port}/")).assert_own(502, "upstream");
        }),
        ("nobody listens behind the tunnel", |fusebox, _| {
            let port = support::fusebox::closed_port();
            fusebox.tunnel(&format!("u.test:{port}")).1.assert_own(502, "upstream");
        }),
        ("there is no TLS", |fusebox, _| {
            let origin = Upstream::raw(|conn| conn.send(b"this is not TLS at all\r\n"));
            fusebox.get(&format!("https://u.test:{}/", origin.port())).assert_own(502, "upstream");
        }),
    ];
    trip(&fusebox, &upstream, "u.test", 2);
    for (name, exit) in exits {
        eprintln!("{name}");
        await_half_open(&fusebox, "u.test");
        exit(&fusebox, &upstream);
        // the circuit is not stuck: another probe is admitted within an opening
        await_half_open(&fusebox, "u.test");
    }
    for (name, steps) in [
        ("404 is an answer", vec![Step::Send(status(404))]),
        (
            "a body that breaks off is an answer",
            vec![Step::Send(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhal".to_vec()), Step::Close],
        ),
    ] {
        eprintln!("{name}");
        await_half_open(&fusebox, "u.test");
        upstream.becomes(move |_| steps.clone());
        let mut client = fusebox.client();
        client.send(support::client::get_request(&url));
        client.broken_response("GET");
        until("closed", || fusebox.state("u.test") == "closed");
        upstream.answers(status(500));
        trip(&fusebox, &upstream, "u.test", 2);
    }
    await_half_open(&fusebox, "u.test");
    upstream.answers(ok("well"));
    fusebox.get(&url).assert_forwarded(200);
    assert_eq!(fusebox.state("u.test"), "closed");
}

#[test]
fn b2_only_the_probe_decides() {
    let fusebox = fusebox(1, "1s", "");
    let (early, late) = (Latch::new(), Latch::new());
    let (first, second) = (early.clone(), late.clone());
    let upstream = Upstream::http(move |request| match request.target.as_str() {
        "/early-good" => vec![Step::Await(first.clone()), Step::Send(ok(""))],
        "/early-bad" => vec![Step::Await(second.clone()), Step::Send(status(500))],
        _ => vec![Step::Send(status(500))],
    });
    let mut early_good = fusebox.client();
    early_good.send(support::client::get_request(&upstream.url("u.test", "/early-good")));
    let mut early_bad = fusebox.client();
    early_bad.send(support::client::get_request(&upstream.url("u.test", "/early-bad")));
    upstream.await_count(2);
    trip(&fusebox, &upstream, "u.test", 2);
    assert_eq!(fusebox.state("u.test"), "open");
    early.open();
    early_good.response("GET").assert_forwarded(200);
    assert_eq!(fusebox.state("u.test"), "open", "a late success does not close");
    await_half_open(&fusebox, "u.test");
    late.open();
    early_bad.response("GET").assert_forwarded(500);
    assert_eq!(
        (fusebox.state("u.test").as_str(), fusebox.trips("u.test")),
        ("half_open", 1),
        "a late error does not trip"
    );
}

#[test]
fn b4_what_is_not_the_origins_fault() {
    let fusebox = fusebox(4, "1h", "");
    let upstream = Upstream::answering(ok(""));
    for code in [400, 401, 403, 404, 410] {
        upstream.answers(status(code));
        for _ in 0..4 {
            fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(code);
        }
    }
    assert_eq!((fusebox.state("u.test").as_str(), fusebox.errors("u.test")), ("closed", 0));
    upstream.becomes(|_| vec![Step::Hang]);
    let mut clients: Vec<Client> = (0..20).map(|_| fusebox.client()).collect();
    for client in &mut clients {
        client.send(support::client::get_request(&upstream.url("u.test", "/")));
    }
    upstream.await_count(40);
    drop(clients);
    fusebox.await_metric("fusebox_requests_total{outcome=\"aborted\"}", 20.0);
    assert_eq!((fusebox.state("u.test").as_str(), fusebox.errors("u.test")), ("closed", 0));
}

#[test]
fn b4_aborts_dilute_nothing() {
    let fusebox = fusebox(4, "1h", "min_error_ratio = 0.9");
    let upstream = Upstream::http(|request| match request.target.as_str() {
        "/hang" => vec![Step::Hang],
        _ => vec![Step::Send(status(500))],
    });
    for round in 0..5 {
        let seen = upstream.count();
        let mut clients: Vec<Client> = (0..10).map(|_| fusebox.client()).collect();
        for client in &mut clients {
            client.send(support::client::get_request(&upstream.url("u.test", "/hang")));
        }
        upstream.await_count(seen + 10);
        drop(clients);
        fusebox.await_metric("fusebox_requests_total{outcome=\"aborted\"}", f64::from(round + 1) * 10.0);
        fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(500);
    }
    assert_eq!(fusebox.state("u.test"), "open");
}

#[test]
fn b4_a_ratio_keeps_a_busy_domain_closed() {
    let fusebox = fusebox(2, "1h", "min_error_ratio = 0.5");
    let upstream =
        Upstream::http(|request| vec![Step::Send(if request.target == "/bad" { status(500) } else { ok("") })]);
    let mut client = fusebox.client();
    for path in ["/good", "/good", "/bad", "/good"].iter().cycle().take(40) {
        client.get(&upstream.url("u.test", path));
    }
    assert_eq!((fusebox.state("u.test").as_str(), fusebox.errors("u.test")), ("closed", 10));
    for _ in 0..30 {
        client.get(&upstream.url("u.test", "/bad"));
    }
    assert_eq!(fusebox.state("u.test"), "open");
}

#[test]
fn b4_redirects_are_passed_on_and_not_followed() {
    let fusebox = fusebox(1, "1h", "");
    let upstream = Upstream::http(|_| Vec::new());
    let location = upstream.url("b.test", "/there");
    upstream.answers(answer("302 Found", &[("Location", &location), ("Retry-After", "3600")], ""));
    for _ in 0..3 {
        let response = fusebox.get(&upstream.url("a.test", "/"));
        response.assert_forwarded(302);
        assert_eq!(response.field("location"), Some(location.as_str()));
    }
    assert_eq!((upstream.count(), upstream.count_for("b.test")), (3, 0));
    assert!(fusebox.row("a.test").is_none() && fusebox.row("b.test").is_none());
}

#[test]
fn b4_failures_count_where_they_are_named() {
    let sections: String = [("connect", "connect"), ("reset", "connect"), ("timeout", "timeout"), ("tls", "tls")]
        .map(|(domain, kind)| format!("[domains.\"{domain}.test\"]\nerrors = [\"{kind}\"]\nmax_errors = 1\n"))
        .concat();
    let fusebox = fusebox(1, "1h", &format!("[timeouts]\nresponse_head = \"300ms\"\ntls = \"300ms\"\n{sections}"));
    let upstream = Upstream::http(|request| match request.target.as_str() {
        "/reset" => vec![Step::Reset],
        _ => vec![Step::Hang],
    });
    let closed = support::fusebox::closed_port();
    let not_tls = Upstream::raw(|conn| conn.send(b"this is not TLS at all\r\n"));
    let cases = [
        ("connect", format!("http://HOST:{closed}/"), 502, "connection_refused"),
        ("reset", upstream.url("HOST", "/reset"), 502, "connection_terminated"),
        ("timeout", upstream.url("HOST", "/hang"), 504, "http_response_timeout"),
        ("tls", format!("https://HOST:{}/", not_tls.port()), 502, "tls_"),
    ];
    for (kind, url, status, error) in cases {
        for domain in [format!("{kind}.test"), format!("un{kind}.test")] {
            let url = url.replace("HOST", &domain);
            for _ in 0..2 {
                let response = fusebox.get(&url);
                response.assert_own(status, "upstream");
                assert_eq!(response.field("fusebox-domain"), Some(domain.as_str()), "{response:?}");
                let said = response.field("proxy-status").unwrap_or_default();
                assert!(said.contains(&format!("error={error}")), "{kind}: {said}");
            }
        }
        assert_eq!(fusebox.state(&format!("{kind}.test")), "open", "{kind} is named");
        assert!(fusebox.row(&format!("un{kind}.test")).is_none(), "{kind} is not named");
    }
}

#[test]
fn b5_what_fusebox_says_itself_never_counts() {
    let fusebox = fusebox(2, "4s", "");
    let upstream = Upstream::answering(status(500));
    trip(&fusebox, &upstream, "u.test", 3);
    let until_then = fusebox.row("u.test").expect("a row")["opened_until"].clone();
    let mut client = fusebox.client();
    for _ in 0..200 {
        client.get(&upstream.url("u.test", "/")).assert_refused("open", "u.test");
    }
    let row = fusebox.row("u.test").expect("a row");
    assert_eq!((&row["opened_until"], &row["errors_in_window"]), (&until_then, &0.into()), "{row}");
    await_half_open(&fusebox, "u.test");
    upstream.answers(ok(""));
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(200);
}

#[test]
fn b5_throttling_never_counts() {
    let fusebox = fusebox(2, "1h", "requests_per_10s = 1");
    let upstream = Upstream::answering(ok(""));
    let mut client = fusebox.client();
    client.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    for _ in 0..300 {
        client.get(&upstream.url("u.test", "/")).assert_refused("throttled", "u.test");
    }
    assert_eq!((fusebox.state("u.test").as_str(), fusebox.errors("u.test")), ("closed", 0));
    // open wins over throttled
    fusebox.open("u.test", "1h");
    client.get(&upstream.url("u.test", "/")).assert_refused("open", "u.test");
}

#[test]
fn b5_unknown_names_trip_nothing() {
    let config = "[defaults]\nmax_errors = 1\nerrors = [\"429\", \"5xx\", \"connect\", \"timeout\", \"tls\"]\n\
                  [egress]\nallow = [\"127.0.0.0/8\"]\n[egress.resolve]\n\"www.a.invalid\" = \"127.0.0.1\"";
    let fusebox = Fusebox::start(config);
    let upstream = Upstream::answering(ok("well"));
    for _ in 0..5 {
        let response = fusebox.get(&upstream.url("typo.a.invalid", "/"));
        assert!(matches!(response.status, 502 | 504), "{response:?}");
        assert_eq!(response.reason(), Some("upstream"));
        assert!(response.field("proxy-status").is_some_and(|value| value.contains("error=dns_")), "{response:?}");
    }
    assert_eq!((fusebox.state("a.invalid").as_str(), fusebox.errors("a.invalid")), ("closed", 0));
    fusebox.get(&upstream.url("www.a.invalid", "/")).assert_forwarded(200);
}

/// How long the circuit is open, in seconds, after answers with this `Retry-After`; `None` if it is closed.
fn opening(fusebox: &Fusebox, upstream: &Upstream, host: &str, answers: &[Vec<u8>]) -> Option<u64> {
    for bytes in answers {
        upstream.answers(bytes.clone());
        fusebox.get(&upstream.url(host, "/"));
    }
    let row = fusebox.row(host)?;
    if row["state"] != "open" {
        return None;
    }
    upstream.answers(ok(""));
    fusebox.get(&upstream.url(host, "/")).retry_after()
}

#[test]
fn b6_the_whole_zoo_of_retry_after_obeyed() {
    let fusebox = fusebox(100, "1s", "max_open_for = \"1h\"\nretry_after = \"obey\"");
    let upstream = Upstream::answering(ok(""));
    let date = "Sun, 06 Nov 1994 08:49:37 GMT";
    let cases: [(&str, Option<u64>); 20] = [
        ("120", Some(120)),
        ("0", None),
        ("-1", None),
        ("+5", None),
        ("1.5", None),
        ("", None),
        ("abc", None),
        ("\u{b2}", None),
        ("10, 20", None),
        ("3600", Some(3_600)),
        ("3601", Some(3_600)),
        ("1000000000", Some(3_600)),
        ("9223372037", Some(3_600)),
        ("18446744073709551615", Some(3_600)),
        ("100000000000000000000000000000", Some(3_600)),
        ("Sun, 06 Nov 1994 08:51:07 GMT", Some(90)),
        ("Sunday, 06-Nov-94 08:51:07 GMT", Some(90)),
        ("Sun Nov  6 08:51:07 1994", Some(90)),
        ("Sun, 06 Nov 1994 08:00:00 GMT", None),
        ("Sun, 06 Nov 1994 08:49:37 GMT", None),
    ];
    for code in ["429 Slow", "503 Down"] {
        for (index, (value, expected)) in cases.iter().enumerate() {
            let host = format!("z{index}-{}.test", &code[..3]);
            let bytes = answer(code, &[("Date", date), ("Retry-After", value)], "");
            let open = opening(&fusebox, &upstream, &host, &[bytes]);
            let near = match (open, expected) {
                (None, None) => true,
                (Some(open), Some(expected)) => open <= *expected && open + 10 >= *expected,
                _ => false,
            };
            assert!(near, "{code}, Retry-After: {value:?}: open for {open:?}, not {expected:?}");
            if expected.is_some() {
                let row = fusebox.row(&host).expect("a row");
                assert_eq!((&row["opened_by"], &row["trip_count"]), (&"retry_after".into(), &1.into()), "{row}");
            }
        }
    }
    let redirect = answer("302 Found", &[("Location", "/x"), ("Retry-After", "3600")], "");
    assert_eq!(opening(&fusebox, &upstream, "redirect.test", &[redirect]), None);
    let internal = answer("500 Oops", &[("Retry-After", "3600")], "");
    assert_eq!(opening(&fusebox, &upstream, "internal.test", &[internal]), None);
}

#[test]
fn b6_a_trip_lasts_as_long_as_is_asked() {
    let fusebox = fusebox(1, "10m", "max_open_for = \"1h\"\n[domains.\"ignore.test\"]\nretry_after = \"ignore\"");
    let upstream = Upstream::answering(ok(""));
    let with = |value: &str| answer("429 Slow", &[("Retry-After", value)], "");
    let check = |host: &str, answers: &[Vec<u8>], expected: u64| {
        let open = opening(&fusebox, &upstream, host, answers).expect("an opening");
        assert!(open <= expected && open + 10 >= expected, "{host}: {open}, not {expected}");
    };
    check("longer.test", &[with("60"), with("1200")], 1_200);
    check("shorter.test", &[with("1200"), with("60")], 600);
    check("capped.test", &[with("1"), with("99999")], 3_600);
    check("ignore.test", &[with("1200"), with("1200")], 600);
    assert_eq!(opening(&fusebox, &upstream, "once.test", &[with("60")]), None, "one is no trip");
}

#[test]
fn b6_a_refusal_counts_down() {
    let fusebox = fusebox(1, "5s", "");
    let upstream = Upstream::answering(status(500));
    trip(&fusebox, &upstream, "u.test", 2);
    let first = fusebox.get(&upstream.url("u.test", "/")).retry_after().expect("Retry-After");
    until("less is left", || {
        let response = fusebox.get(&upstream.url("u.test", "/"));
        response.reason() == Some("open") && response.retry_after().expect("Retry-After") < first
    });
}

#[test]
fn b11_a_bad_host_under_a_good_domain() {
    let fusebox = fusebox(2, "1h", "min_error_ratio = 0.4\n[domains.\"dead.split.test\"]\nkey = \"host\"");
    let upstream = Upstream::http(|request| {
        vec![Step::Send(if request.host().starts_with("dead.") { status(503) } else { ok("") })]
    });
    // over the domain: half of what it answers is bad, so it opens, and the row says who it was
    for _ in 0..10 {
        fusebox.get(&upstream.url("www.a.test", "/"));
        fusebox.get(&upstream.url("dead.a.test", "/"));
    }
    let row = fusebox.row("a.test").expect("a row");
    assert_eq!(
        (&row["state"], &row["last_host"], &row["last_status"]),
        (&"open".into(), &"dead.a.test".into(), &503.into())
    );
    // split off: only the bad host is refused
    for _ in 0..10 {
        fusebox.get(&upstream.url("www.split.test", "/")).assert_forwarded(200);
        fusebox.get(&upstream.url("dead.split.test", "/"));
    }
    fusebox.get(&upstream.url("dead.split.test", "/")).assert_refused("open", "dead.split.test");
    fusebox.get(&upstream.url("www.split.test", "/")).assert_forwarded(200);
    assert_eq!(upstream.count_for("dead.split.test"), 3);
    // two domains at one address: the key is the name
    fusebox.get(&upstream.url("b.test", "/")).assert_forwarded(200);
}

#[test]
fn report_mode_refuses_nothing_and_off_only_forwards() {
    let fusebox = fusebox(1, "1h", "mode = \"report\"\n[domains.\"off.test\"]\nmode = \"off\"");
    let upstream = Upstream::answering(status(500));
    for _ in 0..5 {
        fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(500);
        fusebox.get(&upstream.url("off.test", "/")).assert_forwarded(500);
    }
    assert_eq!(fusebox.state("u.test"), "open");
    assert_eq!(fusebox.metric("fusebox_would_refuse_total{reason=\"open\"}"), 3.0);
    assert_eq!(fusebox.metric("fusebox_trips_total"), 1.0);
    fusebox.open("off.test", "1h");
    fusebox.get(&upstream.url("off.test", "/")).assert_forwarded(500);
    assert_eq!(fusebox.metric("fusebox_refusals_total"), 0.0);
}

#[test]
fn by_hand_a_circuit_opens_closes_and_starts_anew() {
    let fusebox = fusebox(1, "1h", "max_open_for = \"2h\"");
    let upstream = Upstream::answering(ok(""));
    let url = upstream.url("u.test", "/");
    fusebox.open("u.test", "30m");
    let refused = fusebox.get(&url);
    refused.assert_refused("open", "u.test");
    assert_eq!(refused.json()["opened_by"], "manual");
    assert!(refused.retry_after().is_some_and(|after| (1_790..=1_800).contains(&after)), "{refused:?}");
    // a manual opening restarts the clock, and is bounded by its own length alone
    fusebox.open("u.test", "5h");
    assert!(fusebox.get(&url).retry_after().is_some_and(|after| (17_990..=18_000).contains(&after)));
    let closed = fusebox.admin("POST", "/api/v1/breakers/u.test/close", None);
    assert_eq!((closed.status, &closed.json()["state"]), (200, &"closed".into()));
    fusebox.get(&url).assert_forwarded(200);
    upstream.answers(status(500));
    fusebox.get(&url).assert_forwarded(500);
    assert_eq!(fusebox.errors("u.test"), 1);
    fusebox.admin("POST", "/api/v1/breakers/u.test/close", None);
    assert_eq!(fusebox.errors("u.test"), 0, "closing clears");
}

#[test]
fn results_of_before_a_close_by_hand_do_not_count() {
    let (fusebox, latch) = (fusebox(1, "1h", ""), Latch::new());
    let go = latch.clone();
    let upstream = Upstream::http(move |_| vec![Step::Await(go.clone()), Step::Send(status(500))]);
    let mut clients: Vec<Client> = (0..5).map(|_| fusebox.client()).collect();
    for client in &mut clients {
        client.send(support::client::get_request(&upstream.url("u.test", "/")));
    }
    upstream.await_count(5);
    fusebox.admin("POST", "/api/v1/breakers/u.test/close", None);
    latch.open();
    for client in &mut clients {
        client.response("GET").assert_forwarded(500);
    }
    assert_eq!((fusebox.state("u.test").as_str(), fusebox.errors("u.test")), ("closed", 0));
}

#[test]
fn a_lost_probe_costs_its_timeout_and_no_more() {
    let fusebox = fusebox(1, "1s", "probe_timeout = \"2s\"");
    let upstream = Upstream::answering(status(500));
    trip(&fusebox, &upstream, "u.test", 2);
    await_half_open(&fusebox, "u.test");
    upstream.becomes(|_| vec![Step::Hang]);
    let seen = upstream.count();
    let mut probe = fusebox.client();
    probe.send(support::client::get_request(&upstream.url("u.test", "/")));
    upstream.await_count(seen + 1);
    let refused = fusebox.get(&upstream.url("u.test", "/"));
    refused.assert_refused("open", "u.test");
    assert!(refused.retry_after().is_some_and(|after| after <= 2), "{refused:?}");
    // the first still hangs when the next request becomes the probe
    await_half_open(&fusebox, "u.test");
    upstream.answers(ok(""));
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    assert_eq!(fusebox.state("u.test"), "closed");
    drop(probe);
    let span = Duration::from_millis(300);
    throughout("the lost probe changes nothing more", span, || fusebox.state("u.test") == "closed");
}
