//! README.md and docs/operations.md against the real thing: their commands are run, their lists compared.
//!
//! **Commands.** Every fenced `sh` block stands in [`BLOCKS`], by its first line, with what is done about it. A
//! block that is in no table fails the test, and so does an entry without a block. Blocks that start
//! something and stay (`make`, `cargo run …`) run the binaries that this test was built with; ports, the data
//! directory and `target/` are replaced as [`World::mapped`] says. Everything else is run as it is written.
//!
//! **Lists.** Keys, defaults, metrics, log events, admin calls and commands are compared in both directions.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use fusebox::config::{Config, Inputs, known_keys, load};
use fusebox::core::policy::{Policy, PolicyPatch, Source};
use fusebox::core::row::EventKind;
use serde_json::Value;

/// How long anything may take before the test gives up on it.
const PATIENCE: Duration = Duration::from_secs(60);

const DOCUMENTS: [&str; 2] = ["README.md", "docs/operations.md"];

/// What is done about a block.
enum Plan {
    /// Started, and left running.
    Start(Server),
    /// Run to its end; then the check looks at its output.
    Run(At, fn(&str)),
    /// The same with a text replaced, for what would need the Internet.
    RunWith(At, [&'static str; 2], fn(&str)),
    /// The same with a command added, which shows what the block brought about.
    RunThen(At, &'static str, fn(&str)),
    /// Not run, for this reason.
    Not(&'static str),
}

/// What a block starts.
#[derive(Clone, Copy)]
enum Server {
    /// `make`: the first Fusebox.
    First,
    Origin,
    /// The one to try out.
    Second,
}

/// The Fusebox that a block talks to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    First,
    Second,
}

/// Every `sh` block by its first line, in the order of the documents.
const BLOCKS: &[(&str, Plan)] = &[
    ("make", Plan::Start(Server::First)),
    ("cargo install --path . --locked", Plan::Not("would build it all again, and change what this user has installed")),
    ("curl -x http://127.0.0.1:3128 http://example.com/", Plan::Not("needs the Internet")),
    ("cargo run --release --example flaky_origin -- --port 8099 --limit 3", Plan::Start(Server::Origin)),
    ("cargo run --release -- serve --config docs/try.toml --data-dir target/try", Plan::Start(Server::Second)),
    ("for n in 1 2 3 4 5 6 7 8; do", Plan::Run(At::Second, three_refusals_trip)),
    ("curl -si -x http://127.0.0.1:3138 http://blog9.feeds.test:8099/feed", Plan::Run(At::Second, a_refusal)),
    (
        "export PATH=\"$PWD/target/release:$PATH\" FUSEBOX_CONFIG=docs/try.toml FUSEBOX_DATA_DIR=target/try",
        Plan::Run(At::Second, rows_and_metrics),
    ),
    (
        "export http_proxy=http://127.0.0.1:3128 https_proxy=http://127.0.0.1:3128",
        // the first Fusebox denies loopback addresses: that is how we know that it was asked
        Plan::RunThen(At::First, "curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:1/", denied),
    ),
    (
        "curl --request-target https://example.com/feed http://127.0.0.1:3128",
        Plan::RunWith(At::First, ["https://example.com/feed", "https://127.0.0.1/feed"], denied_in_words),
    ),
    ("fusebox --version", Plan::Run(At::First, command_line)),
    (
        "TOKEN=$(cat \"${FUSEBOX_DATA_DIR:-${XDG_STATE_HOME:-$HOME/.local/state}/fusebox}/admin.token\")",
        Plan::Run(At::First, admin_calls),
    ),
    ("docker build -t fusebox .", Plan::Not("needs a container engine and its images")),
    (
        "echo 'correct horse' | fusebox hash-password",
        Plan::Run(At::First, |out| assert!(out.contains("$argon2id$"), "{out}")),
    ),
    (
        "DATA=${FUSEBOX_DATA_DIR:-${XDG_STATE_HOME:-$HOME/.local/state}/fusebox}",
        Plan::RunThen(At::First, "sqlite3 \"$HOME/fusebox-backup.db\" 'PRAGMA integrity_check'", |out| {
            assert!(out.contains("ok"), "{out}");
        }),
    ),
    ("sudo install -m 0755 target/release/fusebox /usr/local/bin/fusebox", Plan::Not("would change this machine")),
];

fn three_refusals_trip(out: &str) {
    let statuses: Vec<&str> = out.lines().map(|line| line.rsplit(' ').next().expect("a status")).collect();
    assert_eq!(statuses, ["200", "200", "200", "429", "429", "429", "503", "503"], "{out}");
}

fn a_refusal(out: &str) {
    let (head, body) =
        out.replace('\r', "").split_once("\n\n").map(|(h, b)| (h.to_owned(), b.to_owned())).expect("a head");
    let fields: BTreeMap<String, &str> = head
        .lines()
        .skip(1)
        .filter_map(|line| line.split_once(": ").map(|(name, value)| (name.to_ascii_lowercase(), value)))
        .collect();
    assert!(head.starts_with("HTTP/1.1 503 "), "{out}");
    assert_eq!((fields["fusebox-reason"], fields["fusebox-domain"]), ("open", "feeds.test"), "{out}");
    let retry_after: u64 = fields["retry-after"].parse().expect("whole seconds");
    assert!((1..=30).contains(&retry_after), "{out}");
    // the example in the README has these fields and members, and no others
    let example = the_block("README.md", "http");
    let (example_head, example_body) = example.split_once("\n\n").expect("head and body");
    for line in example_head.lines().skip(1) {
        let name = line.split(':').next().expect("a name").to_ascii_lowercase();
        assert!(fields.contains_key(&name), "no {name} in {out}");
    }
    let members = |text: &str| -> BTreeSet<String> {
        let value: Value = serde_json::from_str(text).expect("JSON");
        value.as_object().expect("an object").keys().cloned().collect()
    };
    assert_eq!(members(&body), members(example_body));
}

fn rows_and_metrics(out: &str) {
    let states: Vec<&str> = out.lines().filter(|line| line.contains("feeds.test")).collect();
    assert!(states.iter().any(|line| line.contains("open")), "{out}");
    assert!(states.last().is_some_and(|line| line.contains("closed")), "{out}");
    assert!(out.contains("fusebox_trips_total 1"), "{out}");
    assert!(out.contains("fusebox_refusals_total{reason=\"open\"} 3"), "{out}");
}

fn denied(out: &str) {
    assert_eq!(out.trim(), "403");
}

fn denied_in_words(out: &str) {
    assert!(out.contains("\"reason\":\"denied\""), "{out}");
}

fn command_line(out: &str) {
    for wanted in [env!("CARGO_PKG_VERSION"), "medium.com", "requests_per_10s", "example.com"] {
        assert!(out.contains(wanted), "no {wanted} in {out}");
    }
}

fn admin_calls(out: &str) {
    let answers: Vec<Value> =
        out.lines().filter(|line| !line.is_empty()).map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(answers[1]["state"], "open", "{out}");
    assert_eq!(answers[2]["policy"]["max_errors"], serde_json::json!({"value": 5, "source": "override"}), "{out}");
    assert_eq!(answers[3]["results"][0]["state"], "open", "{out}");
    assert_eq!(answers[4]["admit"], true, "{out}");
    assert_eq!(answers.last().expect("answers")["events"].as_array().map(Vec::len), Some(3), "{out}");
}

// ---- the documents ----

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The fenced blocks in a language.
fn blocks(document: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut open: Option<(bool, Vec<String>)> = None;
    for line in read(document).lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => open = Some((info == language, Vec::new())),
            (Some((wanted, lines)), Some("")) => {
                if *wanted {
                    found.push(lines.join("\n"));
                }
                open = None;
            }
            (Some((_, lines)), _) => lines.push(line.to_owned()),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{document}: a block has no end");
    found
}

fn the_block(document: &str, language: &str) -> String {
    let found = blocks(document, language);
    assert_eq!(found.len(), 1, "{document}: {language}");
    found.into_iter().next().expect("one")
}

/// The rows of the first table at or behind `from`, up to `to`: the cells' texts.
fn rows(document: &str, from: &str, to: &str) -> Vec<Vec<String>> {
    let text = read(document);
    let start = text.find(from).unwrap_or_else(|| panic!("{document} has no {from}"));
    let end = text[start..].find(to).unwrap_or_else(|| panic!("{document} has no {to} behind {from}"));
    let lines = text[start..start + end].lines().skip_while(|line| !line.starts_with("| ---")).skip(1);
    let rows: Vec<Vec<String>> = lines
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .collect();
    assert!(!rows.is_empty(), "{document}: the table at {from} is empty");
    rows
}

/// The code of a cell that is nothing else.
fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`').filter(|text| !text.contains('`'))
}

fn codes(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

// ---- a world to run them in ----

struct World {
    home: tempfile::TempDir,
    running: Vec<Child>,
    /// The README's ports, and those that are there in their place.
    ports: BTreeMap<&'static str, String>,
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl World {
    fn new() -> World {
        let home = tempfile::tempdir().expect("a directory");
        let release = home.path().join("target/release");
        std::fs::create_dir_all(&release).expect("made");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_fusebox"), release.join("fusebox")).expect("linked");
        World { home, running: Vec::new(), ports: BTreeMap::new() }
    }

    /// A script as it is run: `target/` is a directory of this test's own, with the binary under test in
    /// `target/release`, and each port is the one that the server of this test has.
    fn mapped(&self, script: &str) -> String {
        let own = format!("{}/target/", self.home.path().display());
        let mut script = script.replace("$PWD/target/", "target/").replace("target/", &own);
        for (written, real) in &self.ports {
            script = script.replace(&format!(":{written}"), &format!(":{real}"));
        }
        script
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        let venv = root().join("target/venv/bin");
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}/target/release:{}:{path}", self.home.path().display(), venv.display());
        command.env_clear().env("PATH", path).env("HOME", self.home.path()).current_dir(root()).stdin(Stdio::null());
        command
    }

    fn run(&self, at: At, script: &str) -> Output {
        let (proxy, admin) = if at == At::First { ("3128", "3129") } else { ("3138", "3139") };
        let mut command = self.command("bash");
        for (name, port) in [("FUSEBOX_PROXY__LISTEN", proxy), ("FUSEBOX_ADMIN__LISTEN", admin)] {
            if let Some(port) = self.ports.get(port) {
                command.env(name, format!("127.0.0.1:{port}"));
            }
        }
        command.args(["-euo", "pipefail", "-c", &self.mapped(script)]).output().expect("bash runs")
    }

    #[track_caller]
    fn out(&self, at: At, script: &str) -> String {
        let output = self.run(at, script);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{script}\nended with {}:\n{out}\n{err}", output.status);
        out.into_owned()
    }

    fn start(&mut self, server: Server, line: &str) {
        match server {
            Server::Origin => self.start_origin(line),
            Server::First => self.start_fusebox("serve", ["3128", "3129"]),
            Server::Second => {
                let args = line.split_once(" -- ").expect("arguments behind --").1.to_owned();
                self.start_fusebox(&args, ["3138", "3139"]);
            }
        }
    }

    fn start_origin(&mut self, line: &str) {
        let binary = Path::new(env!("CARGO_BIN_EXE_fusebox")).with_file_name("examples").join("flaky_origin");
        assert!(binary.exists(), "{}: build it with `cargo build --example flaky_origin`", binary.display());
        let args = line.split_once(" -- ").expect("arguments behind --").1.replace("8099", "0");
        let mut child = self.command(binary).args(args.split(' ')).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = lines_of(child.stdout.take().expect("a pipe"));
        self.running.push(child);
        let first = lines.recv_timeout(PATIENCE).expect("the origin says where it listens");
        let address = first.split(": ").next().expect("an address");
        self.ports.insert("8099", address.rsplit(':').next().expect("a port").to_owned());
    }

    fn start_fusebox(&mut self, args: &str, written: [&'static str; 2]) {
        let mut command = self.command(env!("CARGO_BIN_EXE_fusebox"));
        command.args(self.mapped(args).split(' ')).stderr(Stdio::piped()).stdout(Stdio::null());
        command.env("FUSEBOX_PROXY__LISTEN", "127.0.0.1:0").env("FUSEBOX_ADMIN__LISTEN", "127.0.0.1:0");
        let mut child = command.spawn().expect("it starts");
        let lines = lines_of(child.stderr.take().expect("a pipe"));
        self.running.push(child);
        loop {
            let line = lines.recv_timeout(PATIENCE).expect("fusebox says that it is ready");
            let Ok(line) = serde_json::from_str::<Value>(&line) else { panic!("fusebox said: {line}") };
            let port = || line["address"].as_str().and_then(|a| a.rsplit(':').next()).expect("an address").to_owned();
            match (line["event"].as_str(), line["side"].as_str()) {
                (Some("listening"), Some("proxy")) => drop(self.ports.insert(written[0], port())),
                (Some("listening"), Some("admin")) => drop(self.ports.insert(written[1], port())),
                (Some("ready"), _) => return,
                _ => {}
            }
        }
    }
}

/// The lines of a stream, read to its end so that nobody who writes there is held up.
fn lines_of(stream: impl std::io::Read + Send + 'static) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            let _ = send.send(line);
        }
    });
    receive
}

// ---- the tests ----

#[test]
fn every_command_works_and_every_list_is_what_runs() {
    let scripts: Vec<String> = DOCUMENTS.iter().flat_map(|document| blocks(document, "sh")).collect();
    let mut world = World::new();
    let mut met = 0;
    for script in &scripts {
        let first = script.lines().next().unwrap_or_default();
        let planned = BLOCKS.iter().find(|(line, _)| *line == first);
        let (_, plan) = planned.unwrap_or_else(|| panic!("this block is in no table of tests/readme.rs:\n{script}"));
        met += 1;
        match plan {
            Plan::Start(server) => world.start(*server, script),
            Plan::Run(at, check) => check(&world.out(*at, script)),
            Plan::RunWith(at, [this, that], check) => {
                assert!(script.contains(this), "{script}\nhas no {this}");
                check(&world.out(*at, &script.replace(this, that)));
            }
            Plan::RunThen(at, more, check) => check(&world.out(*at, &format!("{script}\n{more}"))),
            Plan::Not(why) => assert!(!why.is_empty()),
        }
    }
    assert_eq!(met, BLOCKS.len(), "a block of the table is not in the documents, or twice");
    python_client(&world);
    readiness(&world);
    metrics(&world);
    admin_table(&world);
    command_table(&world);
}

/// The Python example, with a destination that the first Fusebox denies: so it was asked, in absolute form.
fn python_client(world: &World) {
    let script = the_block("README.md", "python").replace("https://example.com/feed", "https://127.0.0.1/feed");
    let file = world.home.path().join("client.py");
    std::fs::write(&file, world.mapped(&script)).expect("written");
    let wanted = "needs Python with requests: tests/setup.sh makes one in target/venv";
    let out = world.out(
        At::First,
        &format!("python3 -c 'import requests' || {{ echo '{wanted}' >&2; exit 1; }}; python3 {}", file.display()),
    );
    assert_eq!(out.trim(), "403");
}

fn readiness(world: &World) {
    let real: Value =
        serde_json::from_str(&world.out(At::First, "curl -s http://127.0.0.1:3129/readyz")).expect("JSON");
    let written: Value = serde_json::from_str(&the_block("docs/operations.md", "json")).expect("JSON");
    assert_eq!(real, written);
}

fn metrics(world: &World) {
    // families with a free label are there once something has happened to them
    let nobody = "curl -s -o /dev/null -w '%{http_code}' -x http://127.0.0.1:3138 http://blog1.feeds.test:1/";
    assert_eq!(world.out(At::Second, nobody), "502");
    world.out(At::Second, "fusebox open feeds.test --config docs/try.toml --data-dir target/try");
    let text = world.out(At::Second, "curl -s http://127.0.0.1:3139/metrics");
    let exported: BTreeSet<(String, String)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
        .map(|(name, kind)| (name.to_owned(), kind.to_owned()))
        .collect();
    let written: BTreeSet<(String, String)> = rows("docs/operations.md", "<!-- metrics -->", "<!-- /metrics -->")
        .iter()
        .map(|row| (code(&row[0]).expect("a name").to_owned(), row[1].clone()))
        .collect();
    assert_eq!(written, exported);
}

fn admin_table(world: &World) {
    let description: Value =
        serde_json::from_str(&world.out(
            At::First,
            "curl -sf -H \"Authorization: Bearer $(cat ~/.local/state/fusebox/admin.token)\" http://127.0.0.1:3129/openapi.json",
        ))
        .expect("JSON");
    let mut real = BTreeSet::new();
    for (path, methods) in description["paths"].as_object().expect("paths") {
        if !["/", "/login", "/openapi.json"].contains(&path.as_str()) {
            let methods = methods.as_object().expect("methods").keys();
            real.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
        }
    }
    let mut written = BTreeSet::new();
    for row in rows("README.md", "| call | does |", "\n\n") {
        let mut method = "GET".to_owned();
        for call in codes(&row[0]) {
            let path = call
                .rsplit(' ')
                .next()
                .expect("a path")
                .split('?')
                .next()
                .expect("a path")
                .replace("DOMAIN", "{domain}");
            if let Some((given, _)) = call.split_once(' ') {
                given.clone_into(&mut method);
            }
            written.insert(format!("{method} {path}"));
        }
    }
    assert_eq!(written, real);
}

fn command_table(world: &World) {
    let help = world.out(At::First, "fusebox --help");
    let real: BTreeSet<String> = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.trim().is_empty())
        .filter_map(|line| line.strip_prefix("  ").filter(|line| !line.starts_with(' '))?.split_whitespace().next())
        .filter(|command| *command != "help")
        .map(str::to_owned)
        .collect();
    let words =
        |row: &Vec<String>| codes(&row[0])[0].split(' ').nth(1).map(|word| word.trim_matches(['[', ']']).to_owned());
    let written: BTreeSet<String> = rows("README.md", "| command | does |", "\n\n").iter().filter_map(words).collect();
    assert_eq!(written, real);
}

#[test]
fn the_configuration_table_has_every_key_and_its_default() {
    let mut written = BTreeSet::new();
    let mut defaults = String::new();
    for row in rows("README.md", "<!-- keys -->", "<!-- /keys -->") {
        let key = code(&row[0]).unwrap_or_else(|| panic!("{row:?}"));
        let pattern = key.replace("NAME", "*").replace("HOST", "*");
        match pattern.strip_suffix("KEY") {
            Some(table) => written.extend(PolicyPatch::KEYS.iter().map(|key| format!("{table}{key}"))),
            None => drop(written.insert(pattern)),
        }
        if let Some(default) = code(&row[1]) {
            defaults += &format!("{key} = {default}\n");
        }
    }
    assert_eq!(written, known_keys().into_iter().collect());
    assert!(defaults.lines().count() > 20, "{defaults}");
    assert_eq!(loaded(&defaults), Config::default(), "{defaults}");
}

#[test]
fn the_policy_table_has_every_key_and_its_default() {
    let (mut keys, mut defaults) = (Vec::new(), String::new());
    for row in rows("README.md", "<!-- policy -->", "<!-- /policy -->") {
        let (key, default) = (code(&row[0]).expect("a key"), code(&row[1]).expect("a default"));
        keys.push(key.to_owned());
        defaults += &format!("{key} = {default}\n");
    }
    assert_eq!(keys, PolicyPatch::KEYS);
    let patch: PolicyPatch = toml::from_str(&defaults).expect("a policy");
    assert_eq!(Policy::layered([(&patch, Source::Config)]).0, Policy::default());
}

/// The configuration in a file of its own. Panics over problems and warnings.
fn loaded(text: &str) -> Config {
    let directory = tempfile::tempdir().expect("a directory");
    let file: PathBuf = directory.path().join("config.toml");
    std::fs::write(&file, text).expect("written");
    let inputs = Inputs { file: Some(file), cwd: directory.path().to_owned(), ..Inputs::default() };
    let loaded = load(&inputs, |_| Vec::new()).unwrap_or_else(|problems| panic!("{problems}\nin\n{text}"));
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    loaded.config
}

#[test]
fn every_configuration_passes_the_check() {
    let mut texts: Vec<String> = DOCUMENTS.iter().flat_map(|document| blocks(document, "toml")).collect();
    assert!(texts.len() >= 2, "the README shows configurations");
    texts.extend([read("config.toml"), read("docs/try.toml")]);
    let directory = tempfile::tempdir().expect("a directory");
    for text in texts {
        let file = directory.path().join("config.toml");
        std::fs::write(&file, &text).expect("written");
        let mut check = Command::new(env!("CARGO_BIN_EXE_fusebox"));
        let output = check.arg("check").arg(&file).env_clear().output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr) + String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}\nabout\n{text}");
    }
}

#[test]
fn the_log_events_are_those_of_the_sources() {
    let mut real: BTreeSet<String> = EventKind::ALL.iter().map(|kind| kind.name().to_owned()).collect();
    let mut directories = vec![root().join("src")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).expect("readable") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source");
            real.extend(text.split("event = \"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned));
        }
    }
    let table = rows("docs/operations.md", "## Logs", "With `log.access");
    assert_eq!(table.iter().flat_map(|row| codes(&row[0])).collect::<BTreeSet<_>>(), real);
}

#[test]
fn links_lead_somewhere() {
    let documents = ["README.md", "CHANGELOG.md", "docs/operations.md", "docs/ARCHITECTURE.md"];
    let mut links = 0;
    for document in documents {
        let text = read(document);
        for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            links += 1;
            if target.starts_with("https://") {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let path = if file.is_empty() { document.to_owned() } else { beside(document, file) };
            assert!(root().join(&path).exists(), "{document} links to {target}");
            if !anchor.is_empty() {
                let heads = read(&path);
                let mut anchors = heads.lines().filter(|line| line.starts_with('#')).map(|line| {
                    let text = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
                    text.replace(['\'', ',', '?', '.'], "")
                });
                assert!(anchors.any(|known| known == anchor), "{document} links to {target}");
            }
        }
    }
    assert!(links > 5);
}

fn beside(document: &str, file: &str) -> String {
    let directory = Path::new(document).parent().expect("a directory");
    directory.join(file).display().to_string()
}
