//! Running it (acceptance cases O and S6): reloads, ports, disks that are away, the end.

mod support;

use std::time::Duration;

use support::fusebox::{Setup, command, run};
use support::{Client, Fusebox, Latch, Step, Upstream, loopback, now, ok, status, until};

#[test]
fn o1_a_broken_file_changes_nothing_and_says_why() {
    let config = |max_errors: u32| loopback(&format!("[defaults]\nmax_errors = {max_errors}\n"));
    let fusebox = Fusebox::start(&config(1));
    let upstream = Upstream::answering(status(500));
    fusebox.open("kept.test", "1h");
    let max_errors = |fusebox: &Fusebox| {
        fusebox.open("seen.test", "1m");
        fusebox.row("seen.test").expect("a row")["policy"]["max_errors"]["value"].as_u64().expect("a number")
    };
    assert_eq!((max_errors(&fusebox), fusebox.metric("fusebox_config_reload_ok")), (1, 1.0));
    let broken = [
        ("[defaults\nmax_errors = 9\n".to_owned(), "config.toml:1:10"),
        (config(9) + "min_error_ratio = 1.5\n", "min_error_ratio"),
        (config(9) + "min_errors_ratio = 0.5\n", "min_error_ratio"),
        (config(9).replace("max_errors = 9", "max_errors = 9\nwindow = 60"), "window"),
    ];
    for (text, named) in broken {
        let told = fusebox.log().events("reload").len();
        fusebox.write_config(&text);
        fusebox.signal("HUP");
        until("the log says why", || {
            fusebox.log().events("reload")[told..].iter().any(|entry| entry.to_string().contains(named))
        });
        fusebox.await_metric("fusebox_config_reload_ok", 0.0);
        assert_eq!(max_errors(&fusebox), 1, "all or nothing: {text}");
        fusebox.get(&upstream.url("kept.test", "/")).assert_refused("open", "kept.test");
        let ready = fusebox.admin_with("GET", "/readyz", &[], None);
        assert_eq!(ready.status, 200, "{ready:?}");
    }
    fusebox.write_config(&config(7));
    fusebox.signal("HUP");
    fusebox.await_metric("fusebox_config_reload_ok", 1.0);
    assert_eq!(max_errors(&fusebox), 7);
    fusebox.get(&upstream.url("kept.test", "/")).assert_refused("open", "kept.test");
    std::fs::remove_file(fusebox.config_file()).expect("the file goes");
    fusebox.signal("HUP");
    fusebox.await_metric("fusebox_config_reload_ok", 0.0);
    assert_eq!(max_errors(&fusebox), 7, "a file that is gone is like a broken one");
}

#[test]
fn o1_a_changed_file_is_read_without_a_signal() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nmax_errors = 1\n"));
    fusebox.open("u.test", "1h");
    fusebox.write_config(&loopback("[defaults]\nmax_errors = 5\n"));
    until("the new value holds", || fusebox.row("u.test").expect("a row")["policy"]["max_errors"]["value"] == 5);
    assert_eq!(fusebox.state("u.test"), "open");
}

#[test]
fn o1_a_reload_harms_nothing_that_runs() {
    let config = loopback("[defaults]\nrequests_per_10s = 1\n[domains.\"free.test\"]\nrequests_per_10s = \"none\"\n");
    let fusebox = Fusebox::start(&config);
    let latch = Latch::new();
    let go = latch.clone();
    let upstream = Upstream::http(move |request| match request.target.as_str() {
        "/held" => vec![Step::Await(go.clone()), Step::Send(ok("held"))],
        _ => vec![Step::Send(ok(""))],
    });
    fusebox.get(&upstream.url("spent.test", "/")).assert_forwarded(200);
    let mut held = fusebox.client();
    held.send(support::client::get_request(&upstream.url("free.test", "/held")));
    let mut kept = fusebox.client();
    kept.get(&upstream.url("free.test", "/")).assert_forwarded(200);
    upstream.await_count(3);
    fusebox.write_config(&format!("{config}max_errors = 40\n"));
    for _ in 0..5 {
        fusebox.signal("HUP");
    }
    until("read again", || !fusebox.log().events("reload").is_empty());
    fusebox.get(&upstream.url("spent.test", "/")).assert_refused("throttled", "spent.test");
    kept.get(&upstream.url("free.test", "/")).assert_forwarded(200);
    latch.open();
    assert_eq!(held.response("GET").text(), "held");
}

#[test]
fn o2_a_typo_is_an_error_that_knows_better() {
    let cases = [
        ("[defaults]\nmax_erors = 5\n", 2, "max_errors"),
        ("[proxy]\n\nmax_errors = 5\n", 3, "max_errors"),
        ("[domains.\"a.com\"]\nopen_fro = \"1h\"\n", 2, "open_for"),
        ("[domains.\"a..b\"]\nopen_for = \"1h\"\n", 1, "a..b"),
        ("[domains.\"Example.com\"]\nmax_errors = 1\n[domains.\"example.com.\"]\nmax_errors = 2\n", 3, "example.com"),
        ("[domains.\"www.example.com\"]\nmax_errors = 1\n", 1, "key = \"host\""),
        ("[groups]\nm = [\"a.com\", \"b.com\"]\n[domains.\"a.com\"]\nmax_errors = 1\n", 3, "group:m"),
        ("[defaults]\nwindow = 60\n", 2, "60s"),
        ("[defaults]\nwindow = \"0s\"\n", 2, "window"),
        ("[defaults]\nerrors = [\"6xx\"]\n", 2, "6xx"),
        ("[egress]\ndeny = [\"10.0.0.0/33\"]\n", 2, "10.0.0.0/33"),
    ];
    for (config, line, named) in cases {
        let setup = Setup::new(config);
        let ran = run(setup.command(), "");
        assert_eq!(ran.code, Some(2), "{config}{ran:?}");
        assert!(ran.err.contains(named), "{config}{ran:?}");
        assert!(ran.err.contains(&format!("config.toml:{line}:")), "the line is {line}: {config}{ran:?}");
        let mut check = command();
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), config).expect("a file");
        check.arg("check").arg(file.path());
        let checked = run(check, "");
        assert_eq!(checked.code, Some(2), "{config}{checked:?}");
        assert!(format!("{}{}", checked.out, checked.err).contains(named), "{config}{checked:?}");
    }
}

#[test]
fn o4_series_do_not_grow_with_what_clients_type() {
    let sections: String = (0..20).map(|n| format!("[domains.\"mine{n}.test\"]\nmax_errors = 1000\n")).collect();
    let fusebox = Fusebox::start(&loopback(&format!("[defaults]\nmax_errors = 1000\n{sections}")));
    let upstream = Upstream::http(|request| {
        let code = request.target.trim_start_matches("/code/").parse().unwrap_or(500);
        vec![Step::Send(status(code))]
    });
    let (port, mut client) = (upstream.port(), fusebox.client());
    let mut ask = |text: String| {
        let mut response = client.exchange(&text);
        if response.field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            client = fusebox.client();
        }
        response.body.clear();
        response
    };
    for n in 0..3_000 {
        ask(support::client::get_request(&format!("http://d{n}.test:{port}/")));
    }
    for n in 0..20 {
        ask(support::client::get_request(&format!("http://mine{n}.test:{port}/")));
    }
    for n in 0..300 {
        let authority = format!("u.test:{port}");
        ask(format!("M{n} http://{authority}/{n} HTTP/1.1\r\nHost: {authority}\r\n\r\n"));
    }
    for code in (200..1_000).step_by(3).filter(|code| !matches!(code, 204 | 304 | 407)) {
        ask(support::client::get_request(&format!("http://u.test:{port}/code/{code}")));
    }
    let asked = now();
    let text = fusebox.metrics();
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
    assert!(text.len() < 1_000_000, "{} bytes", text.len());
    let series = support::metrics::series(&text);
    assert!(series < 2_000, "{series} series");
    let errors = text.lines().filter(|line| line.starts_with("fusebox_domain_errors_total{")).count();
    assert!((100..=1_000).contains(&errors), "{errors} series of domain errors");
    for n in 0..20 {
        assert!(text.contains(&format!("domain=\"mine{n}.test\"")), "configured domains keep their own: mine{n}.test");
    }
    assert!(text.contains("domain=\"other\""));
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (_, value) = line.rsplit_once(' ').expect("a value");
        assert!(value.parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn every_family_is_there() {
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::answering(status(500));
    for _ in 0..4 {
        fusebox.get(&upstream.url("u.test", "/"));
    }
    let text = fusebox.metrics();
    for name in [
        "requests_total",
        "refusals_total",
        "would_refuse_total",
        "upstream_responses_total",
        "upstream_seconds_bucket",
        "overhead_seconds_bucket",
        "trips_total",
        "probes_total",
        "circuits_open",
        "domain_state",
        "domain_errors_total",
        "budget_waiting",
        "budget_wait_seconds_bucket",
        "in_flight",
        "connections",
        "upstream_connections_total",
        "blind_tunnels_total",
        "broken_bodies_total",
        "store_state",
        "store_writes_total",
        "failed_open_total",
        "config_reload_ok",
        "tracked_domains",
        "lossy_evictions_total",
        "build_info",
    ] {
        assert!(support::metrics::has(&text, &format!("fusebox_{name}")), "no fusebox_{name}");
    }
    assert_eq!(support::metrics::sum(&text, "fusebox_requests_total{way=\"http\",outcome=\"forwarded\"}"), 3.0);
    assert_eq!(support::metrics::sum(&text, "fusebox_requests_total{way=\"http\",outcome=\"refused\"}"), 1.0);
}

#[test]
fn o6_a_port_that_is_taken_ends_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|address| (taken, address)).expect("an address");
    let free = std::net::SocketAddr::from(([127, 0, 0, 1], support::fusebox::free_port()));
    for (proxy, admin, key) in [(taken.1, free, "proxy.listen"), (free, taken.1, "admin.listen")] {
        let started = now();
        let ran = run(Setup::new("").at(proxy, admin).command(), "");
        assert!(ran.code.is_some_and(|code| code != 0), "{ran:?}");
        assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
        let said = ran.err;
        assert!(said.contains(key) && said.contains(&taken.1.to_string()), "{said}");
        assert!(std::net::TcpStream::connect(free).is_err(), "no half start");
    }
    let twice = run(Setup::new("").at(free, free).command(), "");
    assert!(twice.code.is_some_and(|code| code != 0), "{twice:?}");
    assert!(twice.err.contains("admin.listen") || twice.err.contains("proxy.listen"), "{twice:?}");
}

#[test]
fn o6_a_port_can_be_taken_again_right_after_a_stop() {
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::answering(ok(""));
    let (proxy, admin) = (fusebox.proxy(), fusebox.admin_address());
    let mut client = fusebox.client();
    client.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    drop(fusebox);
    client.rest();
    let again = Setup::new(&loopback("")).at(proxy, admin).start();
    assert_eq!(again.proxy(), proxy);
    again.get(&upstream.url("u.test", "/")).assert_forwarded(200);
}

#[test]
fn s6_a_locked_database_breaks_no_fetch() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nmax_errors = 1\n"));
    let upstream = Upstream::http(|request| {
        vec![Step::Send(if request.host().starts_with("bad") { status(500) } else { ok("") })]
    });
    let file = fusebox.data().join("fusebox.db");
    let other = rusqlite::Connection::open(&file).expect("the database");
    other.busy_timeout(support::PATIENCE).expect("a time limit");
    other.execute_batch("BEGIN EXCLUSIVE").expect("the lock");
    let started = now();
    let (mut slowest, mut served, mut domain) = (Duration::ZERO, 0, 0);
    while started.elapsed() < Duration::from_secs(4) {
        domain += 1;
        for host in [format!("bad{domain}.test"), format!("bad{domain}.test"), "good.test".to_owned()] {
            let asked = now();
            let response = fusebox.get(&upstream.url(&host, "/"));
            assert_eq!(response.reason(), None, "{response:?}");
            slowest = slowest.max(asked.elapsed());
            served += 1;
        }
        // as slowly as a hundred requests a second: the case is about the lock, not about load
        std::thread::sleep(Duration::from_millis(30));
    }
    eprintln!("{served} requests, {domain} trips, the slowest took {slowest:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    assert_eq!(fusebox.metric("fusebox_trips_total"), f64::from(domain));
    other.execute_batch("COMMIT").expect("the lock is given back");
    let stored =
        || other.query_row("SELECT count(*) FROM breaker WHERE opened_until > 0", [], |row| row.get::<_, i64>(0));
    until("the disk knows what the memory knows", || stored().is_ok_and(|rows| rows == i64::from(domain)));
    let backup = fusebox.data().join("backup.db");
    other.execute("VACUUM INTO ?1", [backup.to_str().expect("text")]).expect("a backup while it runs");
    let mut fusebox = fusebox;
    fusebox.crash_and_restart();
    fusebox.get(&upstream.url("bad1.test", "/")).assert_refused("open", "bad1.test");
}

#[test]
fn a_data_directory_that_cannot_be_means_no_persistence() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let setup = Setup::new(&loopback("[defaults]\nmax_errors = 1\n")).data(&file.path().join("below/a/file"));
    let fusebox = setup.start();
    let upstream = Upstream::answering(status(500));
    for _ in 0..2 {
        fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(500);
    }
    fusebox.get(&upstream.url("u.test", "/")).assert_refused("open", "u.test");
    assert_eq!(fusebox.metric("fusebox_store_state"), 0.0);
    assert!(fusebox.metric("fusebox_failed_open_total{cause=\"store\"}") >= 1.0);
    let ready = fusebox.admin_with("GET", "/readyz", &[], None);
    assert_eq!(ready.status, 200);
    assert!(ready.text().contains("below"), "/readyz says so: {ready:?}");
    assert!(!fusebox.log().events("store").is_empty(), "the log says so: {}", fusebox.log().text());
}

#[test]
fn a_damaged_database_is_left_alone_and_stops_nothing() {
    let data = tempfile::tempdir().expect("a directory");
    let file = data.path().join("fusebox.db");
    let damaged = b"this was a database once".repeat(400);
    std::fs::write(&file, &damaged).expect("written");
    let fusebox = Setup::new(&loopback("[defaults]\nmax_errors = 1\n")).data(data.path()).start();
    let upstream = Upstream::answering(status(500));
    for _ in 0..2 {
        fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(500);
    }
    fusebox.get(&upstream.url("u.test", "/")).assert_refused("open", "u.test");
    assert_eq!(fusebox.metric("fusebox_store_state"), 0.0);
    assert!(fusebox.admin_with("GET", "/readyz", &[], None).text().contains("fusebox.db"));
    assert_eq!(fusebox.state("u.test"), "open", "the token is kept beside it, and opens the admin port");
    drop(fusebox);
    assert!(std::fs::read(&file).expect("the file") == damaged, "its bytes are as they were");
}

/// How many rows the disk has for a domain, if it can be asked just now.
fn stored(fusebox: &Fusebox, domain: &str) -> Option<i64> {
    let disk = rusqlite::Connection::open(fusebox.data().join("fusebox.db")).expect("the database");
    disk.query_row("SELECT count(*) FROM breaker WHERE domain = ?1", [domain], |row| row.get(0)).ok()
}

#[test]
fn an_opening_survives_a_crash() {
    let mut fusebox = Fusebox::start(&loopback("[defaults]\nmax_errors = 1\n"));
    let upstream = Upstream::answering(status(429));
    for _ in 0..2 {
        fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(429);
    }
    until("it is written", || stored(&fusebox, "u.test") == Some(1));
    let before = fusebox.row("u.test").expect("a row");
    fusebox.crash_and_restart();
    let refused = fusebox.get(&upstream.url("u.test", "/"));
    refused.assert_refused("open", "u.test");
    assert!(refused.retry_after().is_some_and(|after| after <= 3_600), "{refused:?}");
    let after = fusebox.row("u.test").expect("a row");
    for name in ["opened_by", "last_status", "last_host", "trip_count", "state"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    for name in ["opened_at", "opened_until"] {
        // the clock is anchored anew with each process, so a hair's breadth is allowed
        let at = |row: &serde_json::Value| row[name].as_str().and_then(|at| at.parse::<jiff::Timestamp>().ok());
        let apart = at(&after).expect("a time").duration_since(at(&before).expect("a time"));
        assert!(apart.abs() < jiff::SignedDuration::from_millis(100), "{name}: {apart}");
    }
    let events = fusebox.admin("GET", "/api/v1/events?domain=u.test", None).json();
    assert_eq!(events["events"][0]["kind"], "trip", "{events}");
}

#[test]
fn overrides_and_closings_survive_a_restart() {
    let mut fusebox = Fusebox::start(&loopback("[defaults]\nmax_errors = 1\n"));
    let upstream = Upstream::answering(ok(""));
    fusebox.open("closed.test", "1h");
    fusebox.admin("POST", "/api/v1/breakers/closed.test/close", None);
    let set = fusebox.admin("PATCH", "/api/v1/breakers/set.test", Some(serde_json::json!({"max_errors": 5})));
    assert_eq!(set.status, 200, "{set:?}");
    let token = fusebox.token();
    fusebox.restart();
    assert_eq!(fusebox.token(), token);
    fusebox.get(&upstream.url("closed.test", "/")).assert_forwarded(200);
    let row = fusebox.row("set.test").expect("a row");
    assert_eq!(row["policy"]["max_errors"], serde_json::json!({"value": 5, "source": "override"}));
    assert_eq!(stored(&fusebox, "set.test"), Some(1));
    let gone = fusebox.admin("DELETE", "/api/v1/breakers/set.test", None);
    assert_eq!(gone.status, 204, "{gone:?}");
    until("the disk knows", || stored(&fusebox, "set.test") == Some(0));
    fusebox.crash_and_restart();
    assert!(fusebox.row("set.test").is_none());
}

#[test]
fn sigterm_lets_requests_finish() {
    let latch = Latch::new();
    let go = latch.clone();
    let upstream = Upstream::http(move |request| match request.target.as_str() {
        "/held" => vec![Step::Await(go.clone()), Step::Send(ok("finished"))],
        _ => vec![Step::Send(ok(""))],
    });
    let mut fusebox = Fusebox::start(&loopback("[timeouts]\ndrain = \"20s\""));
    let mut held = fusebox.client();
    held.send(support::client::get_request(&upstream.url("u.test", "/held")));
    let mut idle = fusebox.client();
    idle.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    upstream.await_count(2);
    fusebox.signal("TERM");
    assert!(idle.is_closed(), "an idle connection closes at once");
    until("nothing new is accepted", || std::net::TcpStream::connect(fusebox.proxy()).is_err());
    let ready = fusebox.admin_with("GET", "/readyz", &[], None);
    assert_eq!(ready.status, 503, "{ready:?}");
    assert!(!fusebox.has_ended());
    latch.open();
    assert_eq!(held.response("GET").text(), "finished");
    assert!(fusebox.await_end().success());
}

#[test]
fn sigterm_answers_those_who_wait_for_their_turn() {
    let upstream = Upstream::answering(ok("in time"));
    let config =
        "[timeouts]\ndrain = \"20s\"\n[defaults]\nrequests_per_10s = 5\nmax_wait = \"10s\"\nretry_jitter = \"0s\"";
    let mut fusebox = Fusebox::start(&loopback(config));
    let mut clients: Vec<Client> = (0..3).map(|_| fusebox.client()).collect();
    for client in &mut clients {
        client.send(support::client::get_request(&upstream.url("u.test", "/")));
    }
    until("two wait", || fusebox.metric("fusebox_budget_waiting") >= 2.0);
    fusebox.signal("TERM");
    for client in &mut clients {
        client.response("GET").assert_forwarded(200);
    }
    assert!(fusebox.await_end().success());
}

#[test]
fn sigterm_cuts_tunnels_when_time_is_up() {
    let upstream = Upstream::raw(support::upstream::Conn::echo);
    let mut fusebox = Fusebox::start(&loopback("[timeouts]\ndrain = \"1s\""));
    let (mut tunnel, response) = fusebox.tunnel(&format!("u.test:{}", upstream.port()));
    assert_eq!(response.status, 200);
    fusebox.signal("INT");
    // it stands while others may finish
    tunnel.send(b"\x00still here");
    assert_eq!(tunnel.exactly(11), b"\x00still here");
    assert!(tunnel.is_closed());
    assert!(fusebox.await_end().success());
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let upstream = Upstream::http(|_| vec![Step::Hang]);
    let mut fusebox = Fusebox::start(&loopback("[timeouts]\ndrain = \"1h\""));
    let mut held: Client = fusebox.client();
    held.send(support::client::get_request(&upstream.url("u.test", "/")));
    upstream.await_count(1);
    fusebox.signal("TERM");
    until("it drains", || !fusebox.log().events("drain").is_empty());
    fusebox.signal("TERM");
    fusebox.await_end();
}

#[test]
fn its_own_environment_sends_it_nowhere() {
    let nowhere = format!("http://127.0.0.1:{}", support::fusebox::closed_port());
    let setup = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"]
        .into_iter()
        .fold(Setup::new(&loopback("")), |setup, name| setup.env(name, &nowhere));
    let fusebox = setup.env("FUSEBOX_DEFAULTS__MAX_ERRORS", "6").env("FUSEBOX_NO_SUCH_KEY", "1").start();
    let upstream = Upstream::answering(ok(""));
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    fusebox.open("u.test", "1m");
    let policy = fusebox.row("u.test").expect("a row")["policy"]["max_errors"].clone();
    assert_eq!(policy, serde_json::json!({"value": 6, "source": "config"}));
    assert!(fusebox.log().text().contains("FUSEBOX_NO_SUCH_KEY"), "an unknown variable is a warning");
}

#[test]
fn logs_hold_no_secrets() {
    let fusebox = Fusebox::start(&loopback("[log]\naccess = true\nlevel = \"trace\""));
    let upstream = Upstream::answering(status(500));
    for _ in 0..4 {
        let url = upstream.url("u.test", "/path?token=geheim");
        let host = format!("u.test:{}", upstream.port());
        fusebox.exchange(format!(
            "GET {url} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer geheim\r\nCookie: geheim\r\n\r\n"
        ));
    }
    until("the access log has them", || fusebox.log().text().matches("/path").count() >= 4);
    let text = fusebox.log().text();
    assert!(!text.contains("geheim"), "{text}");
    assert!(!text.contains(&fusebox.token()), "{text}");
}
