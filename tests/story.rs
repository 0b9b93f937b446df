//! What it is all for: three hundred feeds on one domain, and an origin that has had enough.

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::{Client, Fusebox, Latch, Response, Step, Upstream, answer, loopback, ok, until};

const FEEDS: usize = 300;
const READERS: usize = 12;

/// Fetches every feed once, by a dozen readers at a time.
fn fetch_all(fusebox: &Fusebox, upstream: &Upstream) -> Vec<Response> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| {
                scope.spawn(|| {
                    let mut client: Client = fusebox.client();
                    let mut answers = Vec::new();
                    loop {
                        let feed = next.fetch_add(1, Ordering::Relaxed);
                        if feed >= FEEDS {
                            return answers;
                        }
                        answers.push(client.get(&upstream.url(&format!("writer-{feed}.feeds.test"), "/feed")));
                    }
                })
            })
            .collect();
        readers.into_iter().flat_map(|reader| reader.join().expect("no panic")).collect()
    })
}

fn by_kind(answers: &[Response]) -> HashMap<String, usize> {
    let mut kinds = HashMap::new();
    for answer in answers {
        let kind = answer.reason().map_or_else(|| answer.status.to_string(), str::to_owned);
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

#[test]
fn three_hundred_feeds_learn_the_lesson_once() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nopen_for = \"5s\"\nmax_errors = 2"));
    let upstream = Upstream::answering(ok("<rss/>"));

    let calm = fetch_all(&fusebox, &upstream);
    assert_eq!(by_kind(&calm), HashMap::from([("200".to_owned(), FEEDS)]));
    assert_eq!(upstream.counts().len(), FEEDS, "each feed has a host of its own");

    // the origin has had enough: it answers 429 to everybody
    upstream.forget();
    upstream.answers(answer("429 Too Many Requests", &[], "enough"));
    let storm = fetch_all(&fusebox, &upstream);
    let kinds = by_kind(&storm);
    let (errors, refused) = (kinds["429"], kinds["open"]);
    // three errors trip; besides them only those that were under way may have got through
    assert!((3..=3 + READERS - 1).contains(&errors), "{kinds:?}");
    assert_eq!((errors + refused, upstream.count()), (FEEDS, errors), "{kinds:?}");
    assert_eq!((fusebox.state("feeds.test").as_str(), fusebox.trips("feeds.test")), ("open", 1));
    for answer in storm.iter().filter(|answer| answer.reason().is_some()) {
        answer.assert_refused("open", "feeds.test");
    }

    // then nothing for the whole opening, whoever asks
    let seen = upstream.count();
    let mut asked = 0;
    while fusebox.state("feeds.test") == "open" {
        let answer = fusebox.get(&upstream.url("writer-7.feeds.test", "/feed"));
        if answer.reason() != Some("open") {
            break;
        }
        asked += 1;
    }
    assert!(asked > 0);
    assert!(upstream.count() <= seen + 1, "no request while it is open; at most the probe after it");
    if upstream.count() == seen + 1 {
        // the loop's last request was the probe, and failed: it is open again, for as long
        assert_eq!(fusebox.trips("feeds.test"), 2);
    }

    // the origin has calmed down, but is slow: exactly one request finds that out
    until("half-open", || fusebox.state("feeds.test") == "half_open");
    upstream.forget();
    let latch = Latch::new();
    let well = latch.clone();
    upstream.becomes(move |_| vec![Step::Await(well.clone()), Step::Send(ok("<rss/>"))]);
    let refused = fusebox.metric("fusebox_refusals_total{reason=\"open\"}");
    let mut readers: Vec<Client> = (0..60).map(|_| fusebox.client()).collect();
    for (feed, reader) in readers.iter_mut().enumerate() {
        reader.send(support::client::get_request(&upstream.url(&format!("writer-{feed}.feeds.test"), "/feed")));
    }
    fusebox.await_metric("fusebox_refusals_total{reason=\"open\"}", refused + 59.0);
    latch.open();
    let probing: Vec<Response> = readers.iter_mut().map(|reader| reader.response("GET")).collect();
    assert_eq!(by_kind(&probing), HashMap::from([("200".to_owned(), 1), ("open".to_owned(), 59)]));
    assert_eq!(upstream.count(), 1);

    // and all three hundred are back
    upstream.answers(ok("<rss/>"));
    assert_eq!(by_kind(&fetch_all(&fusebox, &upstream)), HashMap::from([("200".to_owned(), FEEDS)]));
    assert_eq!((fusebox.state("feeds.test").as_str(), fusebox.errors("feeds.test")), ("closed", 0));
    let events = fusebox.admin("GET", "/api/v1/events?domain=feeds.test", None).json();
    let kinds: Vec<&str> =
        events["events"].as_array().expect("events").iter().filter_map(|e| e["kind"].as_str()).collect();
    assert_eq!((kinds.first(), kinds.last()), (Some(&"close"), Some(&"trip")), "{kinds:?}");
}
