//! Programs that people really use, through the proxy. `curl` and `python3` have to be there; others are
//! skipped, and say so, where they are not.

mod support;

use std::io::Write;
use std::process::Command;

use support::fusebox::{Ran, run};
use support::upstream::Conn;
use support::{Fusebox, Upstream, answer, loopback, ok, status};

fn has(program: &str, arg: &str) -> bool {
    let ran = Command::new(program).arg(arg).stdin(std::process::Stdio::null()).output();
    let has = ran.is_ok_and(|output| output.status.success());
    if !has {
        // not with a macro: the test runner keeps what those print to itself
        let _ = writeln!(std::io::stderr(), "skipped: no {program}");
    }
    has
}

/// Runs a program with the proxy in its environment.
#[track_caller]
fn with_proxy(fusebox: &Fusebox, program: &str, args: &[&str], input: &str) -> Ran {
    let mut command = Command::new(program);
    command.args(args);
    let proxy = format!("http://{}", fusebox.proxy());
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY"] {
        command.env(name, &proxy);
    }
    for name in ["no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY", "REQUEST_METHOD"] {
        command.env_remove(name);
    }
    run(command, input)
}

#[track_caller]
fn succeeds(ran: &Ran) {
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn curl_fetches_posts_and_sees_refusals() {
    assert!(has("curl", "--version"), "curl is needed");
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::http(|request| {
        let body = format!("{} {}", request.method, String::from_utf8_lossy(&request.body));
        vec![support::Step::Send(answer("200 OK", &[], &body))]
    });
    let url = upstream.url("u.test", "/x?a=1");
    let got = with_proxy(&fusebox, "curl", &["-sS", &url], "");
    succeeds(&got);
    assert_eq!(got.out, "GET ");
    let posted = with_proxy(&fusebox, "curl", &["-sS", "-d", "k=v", "-H", "Transfer-Encoding: chunked", &url], "");
    assert_eq!(posted.out, "POST k=v");
    let head = with_proxy(&fusebox, "curl", &["-sSI", &url], "");
    assert!(head.out.starts_with("HTTP/1.1 200"), "{head:?}");
    fusebox.open("u.test", "1h");
    let refused = with_proxy(&fusebox, "curl", &["-sS", "-i", &url], "");
    succeeds(&refused);
    assert!(refused.out.starts_with("HTTP/1.1 503") && refused.out.to_lowercase().contains("\r\nretry-after: "));
}

#[test]
fn curl_shows_why_a_tunnel_is_refused() {
    assert!(has("curl", "--version"), "curl is needed");
    let fusebox = Fusebox::start(&loopback(""));
    fusebox.open("u.test", "1h");
    let ran = with_proxy(&fusebox, "curl", &["-sS", "-v", "https://u.test/"], "");
    assert_eq!(ran.code, Some(56), "{ran:?}");
    assert!(ran.err.contains("503"), "{ran:?}");
    assert!(ran.err.contains("circuit open for u.test"), "{ran:?}");
}

#[test]
fn curl_tunnels_blindly() {
    assert!(has("curl", "--version"), "curl is needed");
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::answering(ok("through the tunnel"));
    let ran = with_proxy(&fusebox, "curl", &["-sS", "--proxytunnel", &upstream.url("u.test", "/")], "");
    succeeds(&ran);
    assert_eq!(ran.out, "through the tunnel");
}

const URLLIB: &str = r#"
import sys, urllib.request, urllib.error
print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
try:
    urllib.request.urlopen(sys.argv[2], timeout=20)
except urllib.error.HTTPError as error:
    print(error.code, error.headers["Retry-After"], error.headers["Fusebox-Reason"])
try:
    urllib.request.urlopen("https://open.test/", timeout=20)
except OSError as error:
    print(error)
"#;

#[test]
fn python_needs_no_change() {
    assert!(has("python3", "--version"), "python3 is needed");
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::answering(ok("hello"));
    fusebox.open("open.test", "1h");
    let args = ["-", &upstream.url("u.test", "/"), &upstream.url("open.test", "/")];
    let ran = with_proxy(&fusebox, "python3", &args, URLLIB);
    succeeds(&ran);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[0], "hello");
    assert!(lines[1].starts_with("503 3") && lines[1].ends_with(" open"), "{lines:?}");
    assert!(lines[2].contains("503") && lines[2].contains("open.test"), "{lines:?}");
}

const REQUESTS: &str = r#"
import sys, requests
session = requests.Session()
for _ in range(3):
    print(session.get(sys.argv[1], timeout=20).text)
answer = session.get(sys.argv[2], timeout=20)
print(answer.status_code, answer.json()["reason"])
try:
    session.get("https://open.test/", timeout=20)
except requests.exceptions.ProxyError as error:
    print(error)
"#;

#[test]
fn python_requests_shows_the_reason() {
    let importable = Command::new("python3").args(["-c", "import requests"]).output();
    if !importable.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: requests is not here");
    }
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::answering(ok("hello"));
    fusebox.open("open.test", "1h");
    let args = ["-", &upstream.url("u.test", "/"), &upstream.url("open.test", "/")];
    let ran = with_proxy(&fusebox, "python3", &args, REQUESTS);
    succeeds(&ran);
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines[..4], ["hello", "hello", "hello", "503 open"]);
    assert!(lines[4].contains("503") && lines[4].contains("circuit open for open.test"), "{lines:?}");
}

const NODE: &str = r#"
const http = require("http");
const [proxy, ...urls] = process.argv.slice(2);
const [host, port] = proxy.split(":");
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
const get = (path) => new Promise((done, failed) => {
  const headers = { Host: new URL(path).host };
  http.get({ host, port, path, headers, agent }, (answer) => {
    let body = "";
    answer.on("data", (chunk) => { body += chunk; });
    answer.on("end", () => done(`${answer.statusCode} ${answer.headers["fusebox-reason"] || body}`));
  }).on("error", failed);
});
(async () => {
  for (const url of urls) console.log(await get(url));
  agent.destroy();
})();
"#;

#[test]
fn node_speaks_to_it() {
    if !has("node", "--version") {
        return;
    }
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::answering(ok("hello"));
    fusebox.open("open.test", "1h");
    let proxy = fusebox.proxy().to_string();
    let args =
        ["-", &proxy, &upstream.url("u.test", "/"), &upstream.url("u.test", "/"), &upstream.url("open.test", "/")];
    let ran = with_proxy(&fusebox, "node", &args, NODE);
    succeeds(&ran);
    assert_eq!(ran.out.lines().collect::<Vec<_>>(), ["200 hello", "200 hello", "503 open"]);
}

const JAVA: &str = r#"
import java.net.*;
import java.net.http.*;

public class Fetch {
    public static void main(String[] args) throws Exception {
        var proxy = ProxySelector.of(new InetSocketAddress(args[0], Integer.parseInt(args[1])));
        var client = HttpClient.newBuilder().proxy(proxy).build();
        for (int i = 2; i < args.length; i++) {
            var request = HttpRequest.newBuilder(URI.create(args[i])).build();
            var answer = client.send(request, HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.headers().firstValue("Fusebox-Reason").orElse(answer.body()));
        }
    }
}
"#;

#[test]
fn java_speaks_to_it() {
    if !has("java", "-version") {
        return;
    }
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::answering(ok("hello"));
    fusebox.open("open.test", "1h");
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("Fetch.java");
    std::fs::write(&file, JAVA).expect("a program");
    let proxy = fusebox.proxy();
    let (host, port) = (proxy.ip().to_string(), proxy.port().to_string());
    // Java asks for an upgrade to HTTP/2 with its first request
    let urls = [upstream.url("u.test", "/"), upstream.url("u.test", "/"), upstream.url("open.test", "/")];
    let args = [file.to_str().expect("text"), &host, &port, &urls[0], &urls[1], &urls[2]];
    let ran = with_proxy(&fusebox, "java", &args, "");
    if ran.code != Some(0) && ran.err.contains("jdk.compiler") {
        return eprintln!("skipped: this Java has no compiler");
    }
    succeeds(&ran);
    assert_eq!(ran.out.lines().collect::<Vec<_>>(), ["200 hello", "200 hello", "503 open"]);
}

#[test]
fn a_client_that_loops_on_a_refused_tunnel_gets_whole_answers() {
    let fusebox = Fusebox::start(&loopback(""));
    let upstream = Upstream::raw(Conn::echo);
    fusebox.open("u.test", "1h");
    for _ in 0..20 {
        let (_client, response) = fusebox.tunnel(&format!("u.test:{}", upstream.port()));
        assert!(response.status == 503 && response.whole && !response.body.is_empty(), "{response:?}");
    }
    let web = Upstream::answering(status(204));
    fusebox.get(&web.url("v.test", "/")).assert_forwarded(204);
}
