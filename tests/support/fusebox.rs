//! The real binary, with a data directory of its own and ports that nobody else has.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;

use super::client::Client;
use super::message::Response;
use super::metrics;
use super::patience::{PATIENCE, eventually, now};

/// A configuration in which `*.test` leads to this machine and tunnels may go to any port.
pub fn loopback(rest: &str) -> String {
    format!(
        "[egress]\nallow = [\"127.0.0.0/8\", \"::1/128\"]\nconnect_ports = \"any\"\n\
         [egress.resolve]\n\"*.test\" = \"127.0.0.1\"\n{rest}"
    )
}

/// The binary, with nothing of this machine's settings around it.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fusebox"));
    let kept: BTreeSet<&str> = ["PATH", "TMPDIR", "LLVM_PROFILE_FILE"].into();
    command.env_clear().envs(std::env::vars().filter(|(name, _)| kept.contains(name.as_str())));
    command.env("FUSEBOX_LOG__FORMAT", "json");
    command.stdin(Stdio::null());
    command
}

/// How a Fusebox is started.
#[derive(Clone, Debug)]
pub struct Setup {
    home: Arc<tempfile::TempDir>,
    env: Vec<(String, String)>,
    listen: [String; 2],
    data: PathBuf,
}

impl Setup {
    pub fn new(config: &str) -> Setup {
        let home = tempfile::tempdir().expect("a directory");
        std::fs::write(home.path().join("config.toml"), config).expect("a configuration");
        let (listen, data) = (["127.0.0.1:0".to_owned(), "127.0.0.1:0".to_owned()], home.path().join("data"));
        Setup { home: Arc::new(home), env: Vec::new(), listen, data }
    }

    pub fn env(mut self, name: &str, value: &str) -> Setup {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A data directory elsewhere.
    pub fn data(mut self, data: &Path) -> Setup {
        self.data = data.to_owned();
        self
    }

    /// Listens where a Fusebox listened before.
    pub fn at(mut self, proxy: SocketAddr, admin: SocketAddr) -> Setup {
        self.listen = [proxy.to_string(), admin.to_string()];
        self
    }

    pub fn start(self) -> Fusebox {
        let (child, log) = self.spawn();
        let mut fusebox = Fusebox { setup: self, child, log, proxy: ([0; 4], 0).into(), admin: ([0; 4], 0).into() };
        fusebox.await_ready();
        fusebox
    }

    /// The command that serves with this setup.
    pub fn command(&self) -> Command {
        let mut command = command();
        command.arg("--config").arg(self.home.path().join("config.toml"));
        command.args(["--listen", &self.listen[0], "--admin-listen", &self.listen[1], "--data-dir"]).arg(&self.data);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command.env("HOME", self.home.path()).current_dir(self.home.path());
        command
    }

    fn spawn(&self) -> (Child, Log) {
        let mut child = self.command().stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let log = Log::read(child.stderr.take().expect("a pipe"));
        (child, log)
    }
}

/// What a run that came to its end said.
#[derive(Clone, Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

/// Runs a command to its end, with this on its standard input.
///
/// # Panics
///
/// If it has not ended after [`PATIENCE`].
#[track_caller]
pub fn run(mut command: Command, input: &str) -> Ran {
    use std::io::{Read, Write};
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    // a command that reads nothing may be gone already
    let _ = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    let (mut out, mut err) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let read = |stream: &mut dyn Read| {
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let err = std::thread::spawn(move || read(&mut err));
    let out = std::thread::spawn(move || read(&mut out));
    let deadline = now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        if now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            panic!("{command:?} does not end: {:?} {:?}", out.join(), err.join());
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    Ran { code: status.code(), out: out.join().expect("output"), err: err.join().expect("output") }
}

/// What was logged so far.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn read(stderr: impl std::io::Read + Send + 'static) -> Log {
        let log = Log::default();
        let lines = log.0.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
            }
        });
        log
    }

    pub fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn text(&self) -> String {
        self.lines().join("\n")
    }

    /// The lines that are JSON, their `fields` laid open.
    pub fn entries(&self) -> Vec<Value> {
        let entries = self.lines().into_iter().filter_map(|line| serde_json::from_str::<Value>(&line).ok());
        entries.map(laid_open).collect()
    }

    /// The entries with this `event`.
    pub fn events(&self, event: &str) -> Vec<Value> {
        self.entries().into_iter().filter(|entry| entry["event"] == event).collect()
    }
}

fn laid_open(mut entry: Value) -> Value {
    if let Some(Value::Object(fields)) = entry.as_object_mut().and_then(|entry| entry.remove("fields")) {
        for (name, value) in fields {
            entry[name] = value;
        }
    }
    entry
}

/// A running Fusebox. It is killed when it is dropped.
#[derive(Debug)]
pub struct Fusebox {
    setup: Setup,
    child: Child,
    log: Log,
    proxy: SocketAddr,
    admin: SocketAddr,
}

impl Fusebox {
    /// Starts one with this configuration and waits until it is ready.
    #[track_caller]
    pub fn start(config: &str) -> Fusebox {
        Setup::new(config).start()
    }

    fn await_ready(&mut self) {
        let deadline = now() + PATIENCE;
        let address = |side: &str| {
            let entries = self.log.events("listening");
            let entry = entries.iter().find(|entry| entry["side"] == side)?;
            entry["address"].as_str()?.parse::<SocketAddr>().ok()
        };
        loop {
            if let (Some(proxy), Some(admin)) = (address("proxy"), address("admin")) {
                (self.proxy, self.admin) = (proxy, admin);
                break;
            }
            let ended = self.child.try_wait().ok().flatten();
            assert!(ended.is_none(), "it did not start: {ended:?}\n{}", self.log.text());
            assert!(now() < deadline, "it does not listen:\n{}", self.log.text());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let admin = self.admin;
        eventually("/readyz says 200", || (Client::connect(admin).get("/readyz").status == 200).then_some(()));
    }

    pub fn proxy(&self) -> SocketAddr {
        self.proxy
    }

    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    pub fn log(&self) -> &Log {
        &self.log
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn data(&self) -> &Path {
        &self.setup.data
    }

    pub fn config_file(&self) -> PathBuf {
        self.setup.home.path().join("config.toml")
    }

    /// Writes another configuration over the one in force. The file is replaced as a whole.
    pub fn write_config(&self, config: &str) {
        let (file, new) = (self.config_file(), self.setup.home.path().join("config.new"));
        std::fs::write(&new, config).and_then(|()| std::fs::rename(&new, &file)).expect("a configuration");
    }

    /// A connection to the proxy.
    #[track_caller]
    pub fn client(&self) -> Client {
        Client::connect(self.proxy)
    }

    /// Fetches a URL on a connection of its own.
    #[track_caller]
    pub fn get(&self, url: &str) -> Response {
        self.client().get(url)
    }

    /// Sends raw bytes on a connection of their own and reads one answer.
    #[track_caller]
    pub fn exchange(&self, request: impl AsRef<[u8]>) -> Response {
        self.client().exchange(request)
    }

    /// Opens a tunnel: the connection, and what was answered.
    #[track_caller]
    pub fn tunnel(&self, authority: &str) -> (Client, Response) {
        let mut client = self.client();
        let response = client.exchange(format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n"));
        (client, response)
    }

    pub fn token(&self) -> String {
        let path = self.setup.data.join("admin.token");
        std::fs::read_to_string(path).expect("a token").trim().to_owned()
    }

    /// Calls the admin port with the token.
    #[track_caller]
    pub fn admin(&self, method: &str, path: &str, body: Option<Value>) -> Response {
        let token = self.token();
        self.admin_with(method, path, &[("Authorization", &format!("Bearer {token}"))], body)
    }

    /// Calls the admin port with these fields and no others.
    #[track_caller]
    pub fn admin_with(&self, method: &str, path: &str, fields: &[(&str, &str)], body: Option<Value>) -> Response {
        let mut head = format!("{method} {path} HTTP/1.1\r\nConnection: close\r\n");
        if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            head += &format!("Host: {}\r\n", self.admin);
        }
        for (name, value) in fields {
            head += &format!("{name}: {value}\r\n");
        }
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        if !body.is_empty() {
            head += "Content-Type: application/json\r\n";
        }
        if !body.is_empty() || method != "GET" {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        Client::connect(self.admin).exchange(format!("{head}\r\n{body}"))
    }

    /// A domain's row, if there is one.
    #[track_caller]
    pub fn row(&self, domain: &str) -> Option<Value> {
        let response = self.admin("GET", &format!("/api/v1/breakers/{domain}"), None);
        match response.status {
            200 => Some(response.json()),
            404 => None,
            _ => panic!("{response:?}"),
        }
    }

    /// A domain's state: `closed` where there is no row.
    #[track_caller]
    pub fn state(&self, domain: &str) -> String {
        self.row(domain).map_or("closed".to_owned(), |row| row["state"].as_str().unwrap_or_default().to_owned())
    }

    /// Errors of a domain in its window.
    #[track_caller]
    pub fn errors(&self, domain: &str) -> u64 {
        self.row(domain).map_or(0, |row| row["errors_in_window"].as_u64().expect("a count"))
    }

    /// How often a domain has tripped.
    #[track_caller]
    pub fn trips(&self, domain: &str) -> u64 {
        self.row(domain).map_or(0, |row| row["trip_count"].as_u64().expect("a count"))
    }

    /// Opens a circuit by hand.
    #[track_caller]
    pub fn open(&self, domain: &str, length: &str) {
        let body = serde_json::json!({ "for": length });
        let response = self.admin("POST", &format!("/api/v1/breakers/{domain}/open"), Some(body));
        assert_eq!(response.status, 200, "{response:?}");
    }

    /// The keys that these URLs have, errors as `!…`.
    #[track_caller]
    pub fn keys(&self, urls: &[&str]) -> Vec<String> {
        let response = self.admin("POST", "/api/v1/lookup", Some(serde_json::json!({ "urls": urls })));
        assert_eq!(response.status, 200, "{response:?}");
        let json = response.json();
        let results = json["results"].as_array().unwrap_or_else(|| panic!("{json}")).clone();
        assert_eq!(results.len(), urls.len(), "{json}");
        let key = |result: &Value| match result["domain"].as_str() {
            Some(domain) => domain.to_owned(),
            None => format!("!{}", result["error"].as_str().unwrap_or_default()),
        };
        results.iter().map(key).collect()
    }

    /// `/metrics` as it is.
    #[track_caller]
    pub fn metrics(&self) -> String {
        let response = self.admin_with("GET", "/metrics", &[], None);
        assert_eq!(response.status, 200, "{response:?}");
        response.text()
    }

    /// The sum of the series that `selector` names.
    #[track_caller]
    pub fn metric(&self, selector: &str) -> f64 {
        metrics::sum(&self.metrics(), selector)
    }

    /// Waits until a metric has this value.
    #[track_caller]
    pub fn await_metric(&self, selector: &str, value: f64) {
        let deadline = now() + PATIENCE;
        loop {
            let is = self.metric(selector);
            if is == value {
                return;
            }
            assert!(now() < deadline, "{selector} is {is}, not {value}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Resident memory in bytes.
    pub fn rss(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("a process");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("VmRSS");
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") * 1024
    }

    /// Open file descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("a process").count()
    }

    /// Runs a command of the binary against this one.
    #[track_caller]
    pub fn cli(&self, args: &[&str]) -> Ran {
        let mut command = command();
        command.args(args).arg("--config").arg(self.config_file());
        command.args(["--admin-listen", &self.admin.to_string(), "--data-dir"]).arg(self.data());
        command.env("HOME", self.setup.home.path());
        run(command, "")
    }

    /// Sends a signal by name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status();
        assert!(status.expect("kill runs").success(), "signal {name}");
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_some()
    }

    /// Waits for the end.
    #[track_caller]
    pub fn await_end(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("it ends", || child.try_wait().expect("a child"))
    }

    /// `kill -9`.
    pub fn crash(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// `kill -9`, and starts again on the same data.
    pub fn crash_and_restart(&mut self) {
        self.crash();
        self.start_again();
    }

    /// Ends it in order, and starts again on the same data.
    #[track_caller]
    pub fn restart(&mut self) {
        self.signal("TERM");
        let status = self.await_end();
        assert!(status.success(), "{status}\n{}", self.log.text());
        self.start_again();
    }

    fn start_again(&mut self) {
        (self.child, self.log) = self.setup.spawn();
        self.await_ready();
    }
}

impl Drop for Fusebox {
    fn drop(&mut self) {
        self.crash();
        if std::thread::panicking() {
            eprintln!("--- the log of Fusebox\n{}\n---", self.log.text());
        }
    }
}

/// A port on this machine at which nobody listens, and nobody will as long as the tests run.
pub fn closed_port() -> u16 {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
    let address = socket.local_addr().ok().and_then(|address| address.as_socket()).expect("an address");
    // bound and never listening: a connection is refused, and nobody else is given the port
    std::mem::forget(socket);
    address.port()
}

/// A port that was free a moment ago, to be listened on.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}
