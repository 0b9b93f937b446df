//! Request budgets (acceptance cases R): spacing, waiting, and memory under a flood of names.

mod support;

use std::time::Duration;

use support::{Client, Fusebox, Step, Upstream, eventually, loopback, now, ok, status};

fn fusebox(budget: &str) -> Fusebox {
    Fusebox::start(&loopback(&format!("[defaults]\n{budget}")))
}

/// How many units a budget can have given out within a span that includes the whole run.
fn most(elapsed: Duration, interval: Duration) -> usize {
    usize::try_from(elapsed.as_micros() / interval.as_micros()).expect("few") + 1
}

#[test]
fn r1_no_burst_and_no_double_helping() {
    let fusebox = fusebox("requests_per_10s = 20\nretry_jitter = \"0s\"");
    let upstream = Upstream::answering(ok(""));
    let interval = Duration::from_millis(500);
    let started = now();
    let mut client = fusebox.client();
    let mut admitted = 0;
    while started.elapsed() < Duration::from_millis(3_200) {
        let response = client.get(&upstream.url("u.test", "/"));
        match response.status {
            200 => admitted += 1,
            _ => response.assert_refused("throttled", "u.test"),
        }
    }
    let most = most(started.elapsed(), interval);
    assert!(admitted <= most, "{admitted} of at most {most}");
    assert!(admitted >= 4, "{admitted}: what the budget allows is admitted");
    assert_eq!(upstream.count(), admitted, "what is refused reaches nobody");
    // no burst after a rest: the next unit is spent, the one after it is not there
    std::thread::sleep(interval * 3);
    client.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    client.get(&upstream.url("u.test", "/")).assert_refused("throttled", "u.test");
}

#[test]
fn r1_a_domain_shares_one_budget_and_others_have_theirs() {
    let fusebox =
        fusebox("requests_per_10s = 1\nretry_jitter = \"0s\"\n[domains.\"free.test\"]\nrequests_per_10s = \"none\"");
    let upstream = Upstream::answering(ok(""));
    fusebox.get(&upstream.url("a.u.test", "/")).assert_forwarded(200);
    let refused = fusebox.get(&upstream.url("b.u.test", "/"));
    refused.assert_refused("throttled", "u.test");
    assert!(refused.retry_after().is_some_and(|after| (1..=10).contains(&after)), "{refused:?}");
    fusebox.get(&upstream.url("other.test", "/")).assert_forwarded(200);
    for _ in 0..10 {
        fusebox.get(&upstream.url("free.test", "/")).assert_forwarded(200);
    }
}

#[test]
fn r1_retry_after_is_true_for_a_lone_client() {
    let fusebox = fusebox("requests_per_10s = 8\nretry_jitter = \"1s\"");
    let upstream = Upstream::answering(ok(""));
    let mut client = fusebox.client();
    for _ in 0..3 {
        client.get(&upstream.url("u.test", "/")).assert_forwarded(200);
        let refused = client.get(&upstream.url("u.test", "/"));
        refused.assert_refused("throttled", "u.test");
        let after = refused.retry_after().expect("Retry-After");
        assert!(after <= 4, "1.25 s and up to one second of jitter: {after}");
        std::thread::sleep(Duration::from_secs(after));
    }
}

#[test]
fn r1_what_is_refused_bad_or_denied_spends_nothing() {
    let fusebox = fusebox("requests_per_10s = 1\nretry_jitter = \"0s\"\n[domains.\"10.0.0.1\"]\nmode = \"enforce\"");
    let upstream = Upstream::answering(ok(""));
    let url = upstream.url("u.test", "/");
    let bad = fusebox.exchange(format!("GET {url} HTTP/1.1\r\n\r\n"));
    assert_eq!(bad.status, 400);
    fusebox.open("u.test", "1h");
    fusebox.get(&url).assert_refused("open", "u.test");
    fusebox.admin("POST", "/api/v1/breakers/u.test/close", None);
    fusebox.get(&url).assert_forwarded(200);
    for _ in 0..3 {
        fusebox.get("http://10.0.0.1/").assert_own(403, "denied");
    }
}

#[test]
fn r2_rates_that_are_none_are_errors() {
    for value in ["0", "-1", "nan", "inf", "1.5", "\"3\"", "\"all\"", "true", "99999999999999999999"] {
        let config = format!("[defaults]\n# a line between\nrequests_per_10s = {value}\n");
        let setup = support::fusebox::Setup::new(&config);
        let ran = support::fusebox::run(setup.command(), "");
        assert_eq!(ran.code, Some(2), "{value}: {ran:?}");
        assert!(
            ran.err.contains("requests_per_10s") && ran.err.contains("config.toml:3:"),
            "names key and line: {ran:?}"
        );
    }
}

#[test]
fn r2_a_huge_rate_is_as_good_as_none() {
    let fusebox = fusebox("requests_per_10s = 1000000");
    let upstream = Upstream::answering(ok(""));
    let mut client = fusebox.client();
    for _ in 0..100 {
        client.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    }
}

#[test]
fn r5_one_site_that_waits_stops_no_other() {
    let fusebox = Fusebox::start(&loopback(
        "[limits]\nmax_waiting = 100\n[domains.\"a.test\"]\nrequests_per_10s = 1\nmax_wait = \"1h\"\nretry_jitter = \"0s\"",
    ));
    let upstream = Upstream::answering(ok(""));
    let mut clients: Vec<Client> = (0..151).map(|_| fusebox.client()).collect();
    for client in &mut clients {
        client.send(support::client::get_request(&upstream.url("a.test", "/")));
    }
    // one goes, a hundred wait, the others are refused at once
    fusebox.await_metric("fusebox_refusals_total{reason=\"throttled\"}", 50.0);
    let waiting = fusebox.metric("fusebox_budget_waiting");
    assert!((98.0..=100.0).contains(&waiting), "{waiting}");
    let mut other = fusebox.client();
    let mut slowest = Duration::ZERO;
    for _ in 0..200 {
        let asked = now();
        other.get(&upstream.url("b.test", "/")).assert_forwarded(200);
        slowest = slowest.max(asked.elapsed());
    }
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    drop(clients);
    fusebox.await_metric("fusebox_budget_waiting", 0.0);
    fusebox.await_metric("fusebox_in_flight", 0.0);
}

#[test]
fn r5_who_waits_goes_in_order_and_in_time() {
    let fusebox = fusebox("requests_per_10s = 50\nmax_wait = \"2s\"\nretry_jitter = \"0s\"");
    let upstream = Upstream::answering(ok(""));
    let mut clients = Vec::new();
    let started = now();
    for index in 0..8 {
        let mut client = fusebox.client();
        client.send(support::client::get_request(&upstream.url("u.test", &format!("/{index}"))));
        // each has joined the line, or gone, before the next comes
        eventually("it waits", || {
            (fusebox.metric("fusebox_in_flight") as usize + upstream.count() > index).then_some(())
        });
        clients.push(client);
    }
    for client in &mut clients {
        client.response("GET").assert_forwarded(200);
    }
    let order: Vec<String> = upstream.requests().into_iter().map(|request| request.target).collect();
    assert_eq!(order, ["/0", "/1", "/2", "/3", "/4", "/5", "/6", "/7"]);
    assert!(upstream.count() <= most(started.elapsed(), Duration::from_millis(200)));
}

#[test]
fn r5_who_could_not_be_in_time_is_refused_at_once() {
    let fusebox = fusebox("requests_per_10s = 1\nmax_wait = \"3s\"\nretry_jitter = \"0s\"");
    let upstream = Upstream::answering(ok(""));
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    let asked = now();
    fusebox.get(&upstream.url("u.test", "/")).assert_refused("throttled", "u.test");
    assert!(asked.elapsed() < Duration::from_secs(2), "{:?}", asked.elapsed());
}

#[test]
fn r5_who_leaves_the_line_gives_the_slot_up() {
    let fusebox = fusebox("requests_per_10s = 10\nmax_wait = \"30s\"\nretry_jitter = \"0s\"");
    let upstream = Upstream::answering(ok(""));
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    let mut leavers: Vec<Client> = (0..20).map(|_| fusebox.client()).collect();
    for client in &mut leavers {
        client.send(support::client::get_request(&upstream.url("u.test", "/left")));
    }
    eventually("they wait", || (fusebox.metric("fusebox_budget_waiting") >= 15.0).then_some(()));
    drop(leavers);
    fusebox.await_metric("fusebox_budget_waiting", 0.0);
    let asked = now();
    fusebox.get(&upstream.url("u.test", "/stayed")).assert_forwarded(200);
    assert!(asked.elapsed() < Duration::from_secs(8), "not behind twenty that have left: {:?}", asked.elapsed());
}

#[test]
fn r5_who_waits_when_the_circuit_opens_is_told_at_once() {
    let fusebox = fusebox("requests_per_10s = 1\nmax_wait = \"10m\"\nretry_jitter = \"0s\"");
    let upstream = Upstream::answering(ok(""));
    fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(200);
    let mut waiting: Vec<Client> = (0..10).map(|_| fusebox.client()).collect();
    for client in &mut waiting {
        client.send(support::client::get_request(&upstream.url("u.test", "/")));
    }
    fusebox.await_metric("fusebox_budget_waiting", 10.0);
    fusebox.open("u.test", "1h");
    for client in &mut waiting {
        client.response("GET").assert_refused("open", "u.test");
    }
    assert_eq!((upstream.count(), fusebox.metric("fusebox_budget_waiting")), (1, 0.0));
}

#[test]
fn r5_places_in_flight_are_waited_for_too() {
    let latch = support::Latch::new();
    let go = latch.clone();
    let upstream = Upstream::http(move |request| match request.target.as_str() {
        "/held" => vec![Step::Await(go.clone()), Step::Send(ok("held"))],
        _ => vec![Step::Send(ok("next"))],
    });
    let fusebox = fusebox("max_in_flight = 1\nmax_wait = \"20s\"");
    let mut held = fusebox.client();
    held.send(support::client::get_request(&upstream.url("u.test", "/held")));
    upstream.await_count(1);
    let mut next = fusebox.client();
    next.send(support::client::get_request(&upstream.url("u.test", "/next")));
    fusebox.await_metric("fusebox_budget_waiting", 1.0);
    assert_eq!(upstream.count(), 1);
    latch.open();
    assert_eq!((held.response("GET").text(), next.response("GET").text()), ("held".to_owned(), "next".to_owned()));
}

/// Asks for `GET http://d{n}.com/` for each n, many at a time on one connection.
fn flood(fusebox: &Fusebox, port: u16, names: std::ops::Range<u32>) {
    let mut client = fusebox.client();
    for batch in names.clone().step_by(50) {
        let batch = batch..(batch + 50).min(names.end);
        let text: String =
            batch.clone().map(|n| support::client::get_request(&format!("http://d{n}.com:{port}/"))).collect();
        client.send(text);
        for _ in batch {
            let response = client.response("GET");
            assert_eq!((response.status, response.reason()), (502, Some("upstream")), "{response:?}");
        }
    }
}

#[test]
fn r7_a_flood_of_names_costs_bounded_memory_and_forgets_nothing_that_matters() {
    const MOST: usize = 2_000;
    let fusebox = Fusebox::start(&format!(
        "[egress]\nallow = [\"127.0.0.0/8\"]\n[egress.resolve]\n\"*.test\" = \"127.0.0.1\"\n\"*.com\" = \"127.0.0.1\"\n\
         [limits]\nmax_tracked_domains = {MOST}\n\
         [defaults]\nerrors = [\"connect\"]\nmax_errors = 3\n\
         [domains.\"busy.test\"]\nrequests_per_10s = 1\n"
    ));
    let upstream = Upstream::answering(ok(""));
    fusebox.open("bad.test", "1h");
    let started = now();
    let mut busy = 0;
    let mut ask_busy = || busy += usize::from(fusebox.get(&upstream.url("busy.test", "/")).status == 200);
    ask_busy();
    // each name is kept with its one error for a minute: nothing but the bound makes room
    let port = support::fusebox::closed_port();
    let mut memory = Vec::new();
    for round in 0..10 {
        std::thread::scope(|scope| {
            let fusebox = &fusebox;
            for half in [0, 1_500] {
                let start = round * 3_000 + half;
                scope.spawn(move || flood(fusebox, port, start..start + 1_500));
            }
        });
        ask_busy();
        memory.push(fusebox.rss() / 1024 / 1024);
        let tracked = fusebox.metric("fusebox_tracked_domains");
        assert!(tracked <= MOST as f64 * 1.1, "{tracked} domains in memory");
    }
    eprintln!("MiB after each 3000 names: {memory:?}");
    assert!(memory[9] < memory[0] + 40, "MiB after each 3000 names: {memory:?}");
    assert!(busy <= most(started.elapsed(), Duration::from_secs(10)), "{busy}");
    fusebox.get(&upstream.url("bad.test", "/")).assert_refused("open", "bad.test");
    let rows = fusebox.admin("GET", "/api/v1/breakers?state=open", None).json();
    assert_eq!(rows["breakers"].as_array().map(Vec::len), Some(1), "{rows}");
    let size: u64 = std::fs::read_dir(fusebox.data())
        .expect("a directory")
        .flatten()
        .filter_map(|entry| entry.metadata().ok())
        .map(|metadata| metadata.len())
        .sum();
    assert!(size < 10 * 1024 * 1024, "{size} bytes on disk");
}

#[test]
fn r8_many_at_once_take_no_more_than_there_is() {
    let fusebox = fusebox("requests_per_10s = 100\nretry_jitter = \"0s\"");
    let upstream = Upstream::answering(ok(""));
    let started = now();
    let admitted: usize = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..16)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = fusebox.client();
                    let mut admitted = 0;
                    while started.elapsed() < Duration::from_secs(3) {
                        admitted += usize::from(client.get(&upstream.url("u.test", "/")).status == 200);
                    }
                    admitted
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).sum()
    });
    let most = most(started.elapsed(), Duration::from_millis(100));
    assert!(admitted <= most && admitted >= 15, "{admitted} of at most {most}");
}

#[test]
fn a_probe_spends_its_unit_and_never_waits() {
    let fusebox =
        fusebox("max_errors = 1\nopen_for = \"1s\"\nrequests_per_10s = 5\nmax_wait = \"30s\"\nretry_jitter = \"0s\"");
    let upstream = Upstream::answering(status(500));
    for _ in 0..2 {
        fusebox.get(&upstream.url("u.test", "/")).assert_forwarded(500);
    }
    eventually("half-open", || (fusebox.state("u.test") == "half_open").then_some(()));
    upstream.answers(ok(""));
    // the unit of the second error may still be owed: then the probe is refused, not made to wait
    eventually("the probe goes", || {
        let asked = now();
        let response = fusebox.get(&upstream.url("u.test", "/"));
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        (response.status == 200).then_some(())
    });
    assert_eq!(fusebox.state("u.test"), "closed");
}
