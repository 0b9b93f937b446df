//! Domain keys (acceptance cases K): which requests share a breaker.

mod support;

use support::{Fusebox, Upstream, answer, loopback, status, until};

#[test]
fn k1_one_site_has_many_spellings() {
    let fusebox = Fusebox::start(&loopback("[defaults]\nmax_errors = 4"));
    let (upstream, other) = (Upstream::answering(status(500)), Upstream::answering(status(500)));
    let spellings = [
        upstream.url("EXAMPLE.test", "/"),
        upstream.url("example.test.", "/"),
        other.url("www.example.test", "/"),
        other.url("WwW.Example.TEST.", "/"),
        upstream.url("a.b.example.test", "/"),
    ];
    for spelling in &spellings {
        fusebox.get(spelling).assert_forwarded(500);
    }
    assert_eq!(fusebox.state("example.test"), "open");
    for spelling in &spellings {
        fusebox.get(spelling).assert_refused("open", "example.test");
    }
    let tunnel = fusebox.tunnel(&format!("WwW.Example.TEST.:{}", upstream.port())).1;
    tunnel.assert_refused("open", "example.test");
    assert_eq!(fusebox.get(&upstream.url("example.test..", "/")).status, 400);
    let rows = fusebox.admin("GET", "/api/v1/breakers", None).json();
    assert_eq!(rows["breakers"].as_array().map(Vec::len), Some(1), "{rows}");
}

#[test]
fn k2_the_lists_own_table() {
    let fusebox = Fusebox::start("");
    let table = [
        ("http://b.co.uk/", "b.co.uk"),
        ("http://a.b.co.uk/", "b.co.uk"),
        ("http://co.uk/", "co.uk"),
        ("http://x.pvt.k12.ma.us/", "x.pvt.k12.ma.us"),
        ("http://y.x.pvt.k12.ma.us/", "x.pvt.k12.ma.us"),
        ("http://www.test.k12.ak.us/", "test.k12.ak.us"),
        ("http://a.b.example.example/", "example.example"),
        ("http://a.b.ide.kyoto.jp/", "b.ide.kyoto.jp"),
        ("http://a.www.ck/", "www.ck"),
        ("http://b.test.ck/", "b.test.ck"),
        ("https://maximebeauchemin.medium.com/feed", "medium.com"),
        ("http://MEDIUM.com./", "medium.com"),
        ("http://medium.com:8080/", "medium.com"),
        ("https://a.waw.pl/", "a.waw.pl"),
        ("http://192.0.2.7/", "192.0.2.7"),
        ("http://192.0.2.7:8080/", "192.0.2.7:8080"),
        ("https://192.0.2.7:443/", "192.0.2.7"),
        ("http://[2001:DB8::1]/", "[2001:db8::1]"),
        ("http://[2001:db8:0::1]:81/", "[2001:db8::1]:81"),
        ("http://[::ffff:192.0.2.7]/", "192.0.2.7"),
        ("http://feeds:8080/", "feeds:8080"),
        ("http://FEEDS./", "feeds"),
    ];
    let (urls, expected): (Vec<&str>, Vec<&str>) = table.into_iter().unzip();
    assert_eq!(fusebox.keys(&urls), expected);
}

#[test]
fn k2_what_is_no_host_has_no_key() {
    let fusebox = Fusebox::start("");
    let long_label = format!("http://{}.test/", "a".repeat(64));
    let long_name = format!("http://{}test/", "a.".repeat(126));
    let urls = [
        "http://127.1/",
        "http://0x1/",
        "http://2130706433/",
        "http://0251.0376.0251.0376/",
        "http://a..test/",
        "http://.test/",
        "http://[fe80::1%25eth0]/",
        &long_label,
        &long_name,
        "ftp://a.test/",
        "a.test",
    ];
    for key in fusebox.keys(&urls) {
        assert!(key.starts_with('!') && key.len() > 1, "{key}");
    }
    for url in &urls[..9] {
        let response = fusebox.get(url);
        assert_eq!(response.status, 400, "{url}: {response:?}");
    }
}

#[test]
fn k2_explain_says_the_same_and_why() {
    let fusebox = Fusebox::start("[domains.\"example.co.uk\"]\nmax_errors = 7\n");
    let urls = ["http://a.b.example.co.uk/x", "https://user.github.io/"];
    let ran = fusebox.cli(&["explain", "--json", urls[0], urls[1]]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let said: serde_json::Value = serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {ran:?}"));
    let domains: Vec<_> = (0..2).map(|n| said["results"][n]["domain"].as_str().unwrap_or_default()).collect();
    assert_eq!(domains, fusebox.keys(&urls));
    assert_eq!(said["results"][0]["policy"]["max_errors"], serde_json::json!({"value": 7, "source": "config"}));
    assert_eq!(said["results"][1]["policy"]["max_errors"], serde_json::json!({"value": 2, "source": "default"}));
    assert!(said["results"][0]["rule"].is_string(), "{said}");
}

#[test]
fn k2_lookup_changes_nothing() {
    let fusebox = Fusebox::start(&loopback(""));
    let urls: Vec<String> = (0..2_000).map(|n| format!("http://www.d{n}.test/feed")).collect();
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    assert_eq!(fusebox.keys(&urls)[1_999], "d1999.test");
    let rows = fusebox.admin("GET", "/api/v1/breakers", None).json();
    assert_eq!(rows["breakers"].as_array().map(Vec::len), Some(0));
    assert_eq!(fusebox.metric("fusebox_tracked_domains"), 0.0);
    fusebox.open("d7.test", "10m");
    let response =
        fusebox.admin("POST", "/api/v1/lookup", Some(serde_json::json!({ "urls": [urls[7], urls[8], "x"] })));
    let json = response.json();
    assert_eq!((&json["results"][0]["state"], &json["results"][1]["state"]), (&"open".into(), &"closed".into()));
    assert!(json["results"][0]["retry_at"].is_string() && json["results"][2]["error"].is_string(), "{json}");
}

const PLATFORMS: [&str; 7] = [
    "http://alice.github.io/",
    "http://bob.github.io/",
    "http://github.io/",
    "http://data.s3.amazonaws.com/",
    "http://a.tumblr.com/",
    "http://b.tumblr.com/",
    "http://a.b.co.uk/",
];

#[test]
fn k4_a_platform_shares_its_limiter_by_default() {
    let keys = Fusebox::start("").keys(&PLATFORMS);
    let expected = ["github.io", "github.io", "github.io", "amazonaws.com", "tumblr.com", "tumblr.com", "b.co.uk"];
    assert_eq!(keys, expected);
}

#[test]
fn k4_customers_of_a_platform_are_domains_if_wanted() {
    let keys = Fusebox::start("[keys]\npublic_suffixes = \"all\"").keys(&PLATFORMS);
    assert_eq!(
        keys,
        [
            "alice.github.io",
            "bob.github.io",
            "github.io",
            "data.s3.amazonaws.com",
            "tumblr.com",
            "tumblr.com",
            "b.co.uk"
        ]
    );
}

#[test]
fn k4_one_blog_pauses_its_neighbours() {
    let config = "[defaults]\nmax_errors = 1\n[egress]\nallow = [\"127.0.0.0/8\"]\n\
                  [egress.resolve]\n\"*.tumblr.com\" = \"127.0.0.1\"";
    let fusebox = Fusebox::start(config);
    let upstream = Upstream::answering(answer("429 Slow down", &[("Retry-After", "60")], ""));
    fusebox.get(&upstream.url("a.tumblr.com", "/feed")).assert_forwarded(429);
    fusebox.get(&upstream.url("a.tumblr.com", "/feed")).assert_forwarded(429);
    fusebox.get(&upstream.url("b.tumblr.com", "/feed")).assert_refused("open", "tumblr.com");
}

#[test]
fn k4_sections_split_and_groups_merge() {
    let config = "[domains.\"tumblr.com\"]\nkey = \"host\"\n\
                  [domains.\"dead.example.com\"]\nkey = \"host\"\n\
                  [groups]\nmedium = [\"medium.com\", \"towardsdatascience.com\", \"*.blogs.example.org\"]\n\
                  [domains.\"group:medium\"]\nmax_errors = 9\n";
    let fusebox = Fusebox::start(config);
    let table = [
        ("http://a.tumblr.com/", "a.tumblr.com"),
        ("http://b.tumblr.com/", "b.tumblr.com"),
        ("http://dead.example.com/", "dead.example.com"),
        ("http://www.example.com/", "example.com"),
        ("http://x.medium.com/", "group:medium"),
        ("http://towardsdatascience.com/", "group:medium"),
        ("http://a.b.blogs.example.org/", "group:medium"),
        ("http://blogs.example.org/", "example.org"),
    ];
    let (urls, expected): (Vec<&str>, Vec<&str>) = table.into_iter().unzip();
    assert_eq!(fusebox.keys(&urls), expected);
    let created = fusebox.admin("PATCH", "/api/v1/breakers/group%3Amedium", Some(serde_json::json!({"window": "30s"})));
    assert_eq!(created.status, 200, "{created:?}");
    assert_eq!(created.json()["policy"]["max_errors"], serde_json::json!({"value": 9, "source": "config"}));
    assert_eq!(created.json()["policy"]["window"]["source"], "override");
}

#[test]
fn k4_the_lists_date_is_shown() {
    let fusebox = Fusebox::start("");
    until("the log names the list's date", || {
        fusebox
            .log()
            .entries()
            .iter()
            .any(|entry| entry["suffix_list"].as_str().is_some_and(|date| date.contains("20")))
    });
}

#[test]
fn k4_another_list_needs_no_new_build() {
    let list = tempfile::NamedTempFile::new().expect("a file");
    let rules = "// VERSION: 2030-01-02_03-04-05_UTC\n// ===BEGIN ICANN DOMAINS===\ntest\nblogs.test\n// ===END ICANN DOMAINS===\n";
    std::fs::write(list.path(), rules).expect("a list");
    let fusebox = Fusebox::start(&format!("[keys]\nlist = {:?}", list.path()));
    assert_eq!(fusebox.keys(&["http://x.a.blogs.test/", "http://x.a.test/"]), ["a.blogs.test", "a.test"]);
}

#[test]
fn k6_unicode_and_punycode_are_one_key() {
    let fusebox = Fusebox::start(&loopback(
        "[domains.\"食狮.公司.cn\"]\nmax_errors = 7\n[domains.\"faß.test\"]\nmax_errors = 8\n[domains.\"MiXed.Test\"]\nmax_errors = 9\n",
    ));
    let table = [
        ("http://xn--85x722f.xn--55qx5d.cn/", "xn--85x722f.xn--55qx5d.cn"),
        ("http://www.xn--85x722f.xn--55qx5d.cn/", "xn--85x722f.xn--55qx5d.cn"),
        ("http://shishi.xn--55qx5d.cn/", "shishi.xn--55qx5d.cn"),
        ("http://www.食狮.公司.cn/", "xn--85x722f.xn--55qx5d.cn"),
        ("http://bücher.example/", "xn--bcher-kva.example"),
        ("http://XN--BCHER-KVA.example/", "xn--bcher-kva.example"),
        ("http://faß.test/", "xn--fa-hia.test"),
    ];
    let (urls, expected): (Vec<&str>, Vec<&str>) = table.into_iter().unzip();
    assert_eq!(fusebox.keys(&urls), expected);
    for (key, max_errors) in [("xn--85x722f.xn--55qx5d.cn", 7), ("xn--fa-hia.test", 8), ("mixed.test", 9)] {
        fusebox.open(key, "1m");
        let row = fusebox.row(key).expect("a row");
        assert_eq!(row["policy"]["max_errors"], serde_json::json!({"value": max_errors, "source": "config"}), "{key}");
    }
}

#[test]
fn k6_odd_targets_are_bad_or_opaque() {
    let (fusebox, upstream) = (Fusebox::start(&loopback("")), Upstream::answering(status(500)));
    let raw = fusebox.get(&upstream.url("bücher.test", "/"));
    if raw.status != 400 {
        raw.assert_forwarded(500);
        assert_eq!(fusebox.errors("xn--bcher-kva.test"), 1);
    }
    let undecodable = fusebox.get(&upstream.url("xn--0000000000.test", "/"));
    assert!(matches!(undecodable.status, 400 | 500), "{undecodable:?}");
    assert_eq!(fusebox.get(&upstream.url("ok.test", "/")).status, 500, "still serving");
}
