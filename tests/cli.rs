//! The command line, through the built program.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;

fn fusebox(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fusebox"));
    command.args(args).current_dir(dir).env_clear().env("FUSEBOX_DATA_DIR", dir.join("data")).stdin(Stdio::null());
    command
}

fn run(dir: &Path, args: &[&str]) -> (i32, String, String) {
    told(fusebox(dir, args).output().expect("it runs"))
}

fn told(output: Output) -> (i32, String, String) {
    let text = |octets: Vec<u8>| String::from_utf8(octets).expect("UTF-8");
    (output.status.code().expect("a code"), text(output.stdout), text(output.stderr))
}

fn directory(config: Option<&str>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    if let Some(config) = config {
        std::fs::write(dir.path().join("config.toml"), config).expect("a file");
    }
    dir
}

#[test]
fn check_says_every_problem_with_its_line() {
    let dir = directory(Some("[defaults]\nmax_eror = 3\nwindow = 60\n[proxi]\n"));
    let (code, out, err) = run(dir.path(), &["check"]);
    assert_eq!((code, out.as_str()), (2, ""));
    for place in ["config.toml:2:", "config.toml:3:", "config.toml:4:"] {
        assert!(err.contains(place), "{place}: {err}");
    }
    assert!(err.contains("max_errors"), "{err}");
    for args in [&["serve"][..], &[], &["explain", "a.test"], &["breakers"]] {
        assert_eq!(run(dir.path(), args).0, 2, "{args:?}");
    }
}

#[test]
fn check_takes_a_file_flags_and_environment() {
    let dir = directory(Some("[defaults]\nmax_errors = 3\n"));
    let (code, out, err) = run(dir.path(), &["check"]);
    assert_eq!((code, err.as_str()), (0, ""));
    assert!(out.contains("config.toml"), "{out}");
    assert_eq!(run(dir.path(), &["check", "missing.toml"]).0, 2);
    let (code, _, err) = run(dir.path(), &["check", "--listen", "nowhere"]);
    assert_eq!(code, 2);
    assert!(err.contains("--listen"), "{err}");
    let with =
        |name: &str, value: &str| told(fusebox(dir.path(), &["check"]).env(name, value).output().expect("it runs"));
    assert_eq!(with("FUSEBOX_DEFAULTS__WINDOW", "60").0, 2);
    let (code, _, err) = with("FUSEBOX_DEFAULTS__WINDW", "60s");
    assert_eq!(code, 0);
    assert!(err.starts_with("warning: FUSEBOX_DEFAULTS__WINDW"), "{err}");
    let (_, out, _) = run(directory(None).path(), &["check"]);
    assert!(out.contains("defaults"), "{out}");
}

#[test]
fn explain_works_without_a_running_proxy() {
    let dir = directory(Some("[admin]\nlisten = \"127.0.0.1:1\"\n[domains.\"medium.com\"]\nopen_for = \"30m\"\n"));
    let (code, out, _) = run(dir.path(), &["explain", "https://www.medium.com/feed"]);
    assert_eq!(code, 0);
    for part in [
        "domain   medium.com",
        "public suffix com",
        "section  medium.com",
        "Public Suffix List of 20",
        "state    not known",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let line = out.lines().find(|line| line.trim_start().starts_with("open_for")).expect("a line");
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["open_for", "30m", "config"]);
    let (code, out, _) = run(dir.path(), &["explain", "--json", "x.co.uk", "a..b"]);
    assert_eq!(code, 1);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(json["results"][0]["domain"], "x.co.uk");
    assert_eq!(json["results"][0]["policy"]["max_errors"]["source"], "default");
    assert!(json["results"][1]["error"].is_string());
    let (_, _, err) = run(dir.path(), &["explain", "a\u{1b}[2J.test"]);
    assert!(!err.contains('\u{1b}'), "{err:?}");
}

#[test]
fn commands_say_that_nothing_is_running() {
    let dir = directory(Some("[admin]\nlisten = \"127.0.0.1:1\"\n"));
    let (code, _, err) = run(dir.path(), &["breakers"]);
    assert_eq!(code, 1);
    assert!(err.contains("token"), "{err}");
    std::fs::create_dir(dir.path().join("data")).expect("a directory");
    std::fs::write(dir.path().join("data/admin.token"), "A".repeat(43)).expect("a file");
    for args in [
        &["breakers"][..],
        &["open", "a.test"],
        &["close", "a.test"],
        &["set", "a.test", "max_errors=5"],
        &["reset", "a.test"],
    ] {
        let (code, out, err) = run(dir.path(), args);
        assert_eq!((code, out.as_str()), (1, ""), "{args:?}");
        assert!(err.contains("no Fusebox is running at 127.0.0.1:1"), "{err}");
    }
    let (code, out, _) = run(dir.path(), &["page"]);
    assert_eq!((code, out), (0, format!("http://127.0.0.1:1/login?token={}\n", "A".repeat(43))));
}

#[test]
fn a_wrong_command_line_is_told_with_2() {
    let dir = directory(None);
    for args in [
        &["opne"][..],
        &["open"],
        &["open", "a.test", "--for", "30"],
        &["set", "a.test"],
        &["set", "a.test", "max_errors"],
        &["--workers", "0"],
    ] {
        assert_eq!(run(dir.path(), args).0, 2, "{args:?}");
    }
    let (code, out, _) = run(dir.path(), &["--help"]);
    assert_eq!(code, 0);
    for command in [
        "serve",
        "check",
        "explain",
        "breakers",
        "open",
        "close",
        "set",
        "reset",
        "page",
        "hash-password",
        "completions",
    ] {
        assert!(out.contains(command), "{command}");
    }
    assert_eq!(run(dir.path(), &["--version"]).1, format!("fusebox {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_and_hashes_are_printed() {
    let dir = directory(None);
    for shell in ["bash", "zsh", "fish"] {
        let (code, out, _) = run(dir.path(), &["completions", shell]);
        assert_eq!(code, 0);
        assert!(out.contains("hash-password"), "{shell}");
    }
    let hash = |input: &str| {
        let mut command = fusebox(dir.path(), &["hash-password"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
        child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("written");
        told(child.wait_with_output().expect("it ends"))
    };
    let (code, out, _) = hash("s3cret\n");
    assert_eq!(code, 0);
    assert!(out.starts_with("$argon2id$") && out.ends_with('\n'), "{out}");
    assert_ne!(hash("s3cret\n").1, out, "salted");
    assert_eq!(hash("\n").0, 1);
}

/// A Fusebox of its own; it is ended when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a Fusebox on free ports and gives back its admin address.
fn start(dir: &Path) -> (Running, String) {
    let mut command = fusebox(dir, &["--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--workers", "1"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
    let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    let running = Running(child);
    let mut lines = stderr.lines().map(|line| line.expect("text"));
    let line = lines.find(|line| line.contains("admin listening on ")).expect("it listens");
    let line: Value = serde_json::from_str(&line).expect("JSON, since it is no terminal");
    let ready = lines.find(|line| line.contains("\"ready\"")).expect("it is ready");
    assert!(!ready.is_empty());
    std::thread::spawn(move || lines.for_each(drop));
    let text = line.to_string();
    let address = text.split("admin listening on ").nth(1).and_then(|rest| rest.split('"').next()).expect("an address");
    (running, address.to_owned())
}

#[test]
fn a_running_fusebox_does_what_it_is_told() {
    let dir = directory(None);
    let (running, address) = start(dir.path());
    let run = |args: &[&str]| {
        let all: Vec<&str> = args.iter().copied().chain(["--admin-listen", &address]).collect();
        run(dir.path(), &all)
    };
    let (code, out, _) = run(&["breakers"]);
    assert_eq!(code, 0);
    assert!(out.starts_with("no breakers"), "{out}");
    let (code, out, err) = run(&["open", "www.a.test", "--for", "30m"]);
    assert_eq!(code, 0, "{err}");
    assert!(out.starts_with("a.test: open until 20") && out.ends_with("(30m)\n"), "{out}");
    let set = run(&["set", "a.test", "max_errors=5", "errors=429,tls"]);
    assert_eq!(set, (0, "a.test: overrides errors=429,tls max_errors=5\n".to_owned(), String::new()));
    let (code, _, err) = run(&["set", "a.test", "max_eror=5"]);
    assert_eq!(code, 1);
    assert!(err.contains("did you mean max_errors?"), "{err}");
    let (_, out, _) = run(&["breakers"]);
    let row = out.lines().nth(1).expect("a row");
    assert!(
        row.starts_with("a.test")
            && row.contains("open until")
            && row.contains("manual")
            && row.ends_with("max_errors=5"),
        "{out}"
    );
    let (_, out, _) = run(&["breakers", "--json"]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((&json["breakers"][0]["domain"], &json["breakers"][0]["state"]), (&"a.test".into(), &"open".into()));
    let (_, out, _) = run(&["explain", "https://x.a.test/"]);
    assert!(out.contains("state    open until 20") && out.contains("override"), "{out}");
    let (_, out, _) = run(&["explain", "--json", "b.test"]);
    assert_eq!(serde_json::from_str::<Value>(&out).expect("JSON")["results"][0]["state"], "closed");
    assert_eq!(run(&["close", "a.test"]), (0, "a.test: closed\n".to_owned(), String::new()));
    assert_eq!(run(&["reset", "a.test"]), (0, "a.test: back to the configured policy\n".to_owned(), String::new()));
    assert_eq!(run(&["reset", "a.test"]).0, 0, "there is nothing left to do");
    let (_, link, _) = run(&["page"]);
    assert!(link.starts_with(&format!("http://{address}/login?token=")), "{link}");
    drop(running);
    assert_eq!(run(&["breakers"]).0, 1);
}
