//! The wiring: configuration in, running proxy out; start, reload, drain.

mod parts;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use parts::{Kept, name_problems, open_store, proxy_settings, upstream_settings};
pub use parts::{ListError, policies};

use crate::admin::{self, Admin, token::Token};
use crate::clock::Clock;
use crate::config::{self, Config, Inputs, Loaded, Problems};
use crate::core::row::EventKind;
use crate::core::time::Span;
use crate::gate::{Gate, Parts};
use crate::health::{Health, Phase};
use crate::metrics::{FailOpen, Metrics};
use crate::proxy::{Proxy, listener};
use crate::store::{Store, is_stale};
use crate::upstream::guard::OwnListeners;
use crate::upstream::tls::TlsSetupError;
use crate::upstream::{Upstream, pool};

/// How often idle upstream connections are looked at.
const TIDY_EVERY: Duration = Duration::from_secs(5);
/// How often the wall clock is compared with the one that decides.
const CLOCK_CHECK_EVERY: Duration = Duration::from_secs(10);
/// A wall clock that is off by more than this many microseconds has been set.
const CLOCK_STEP: u64 = 1_000_000;
/// How long the last writes may take at the end.
const LAST_WRITES: Duration = Duration::from_secs(5);

/// Why Fusebox did not start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum StartError {
    #[error("{0}")]
    Config(Problems),
    #[error(
        "can't listen on {address} ({key}): {cause}; stop what listens there, or choose another address with {key}"
    )]
    Listen { address: SocketAddr, key: &'static str, cause: std::io::Error },
    #[error(transparent)]
    Tls(#[from] TlsSetupError),
    #[error("keys.list: {0}")]
    List(#[from] ListError),
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    #[error("the admin token: {0}")]
    Token(std::io::Error),
    #[error("the runtime can't start: {0}")]
    Runtime(std::io::Error),
}

/// Loads and judges the configuration.
///
/// # Errors
///
/// Every problem that there is.
pub fn load(inputs: &Inputs) -> Result<Loaded, Problems> {
    config::load(inputs, name_problems)
}

/// Runs Fusebox until a signal ends it.
///
/// # Errors
///
/// If it can't start.
pub fn serve(inputs: &Inputs) -> Result<ExitCode, StartError> {
    let loaded = load(inputs).map_err(StartError::Config)?;
    crate::logging::start(&loaded.config.log);
    raise_descriptor_limit();
    let workers = loaded.config.proxy.workers;
    let mut runtime = match workers {
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(workers) = workers.filter(|workers| *workers > 1) {
        runtime.worker_threads(workers);
    }
    let runtime = runtime.enable_all().build().map_err(StartError::Runtime)?;
    let result = runtime.block_on(async {
        let app = App::start(inputs, loaded).await?;
        app.until_signalled().await;
        Ok(ExitCode::SUCCESS)
    });
    runtime.shutdown_background();
    result
}

/// A running Fusebox.
pub struct App {
    inputs: Inputs,
    config: Mutex<Config>,
    gate: Gate,
    proxy: Arc<Proxy>,
    upstream: Arc<Upstream>,
    admin: Arc<Admin>,
    metrics: Arc<Metrics>,
    store: Store,
    health: Arc<Health>,
    own: Arc<OwnListeners>,
    ended: CancellationToken,
    serving: TaskTracker,
    proxy_address: SocketAddr,
    admin_address: SocketAddr,
}

impl App {
    /// Starts everything. When it returns, requests are served.
    ///
    /// # Errors
    ///
    /// What can't be worked around: an address that is taken, a file that can't be used. A data directory
    /// that can't be used is not among them: then nothing outlives the process, and everybody is told.
    pub async fn start(inputs: &Inputs, loaded: Loaded) -> Result<Arc<App>, StartError> {
        let Loaded { config, path, warnings } = loaded;
        for warning in &warnings {
            tracing::warn!(event = "config", "{warning}");
        }
        if !config.admin.listen.ip().is_loopback() {
            tracing::warn!(
                event = "config",
                "admin.listen = {} can be reached from elsewhere: it is plain HTTP, and whoever has the token may do anything",
                config.admin.listen
            );
        }
        let inputs = Inputs { file: path.clone().or_else(|| inputs.file.clone()), ..inputs.clone() };
        let (listener, proxy_address) = bind(config.proxy.listen, "proxy.listen")?;
        let (admin_listener, admin_address) = bind(config.admin.listen, "admin.listen")?;
        let (clock, metrics, health) = (Clock::system(), Arc::new(Metrics::new()), Arc::new(Health::default()));
        let policies = policies(&config, HashMap::new())?;
        let Kept { directory, store, loaded } = open_store(&inputs, &health, &metrics, &clock)?;
        let token = Token::load_or_create(directory.as_deref()).map_err(StartError::Token)?;
        let now = clock.to_wall(clock.now());
        let gate = Gate::new(Parts {
            policies,
            clock,
            metrics: metrics.clone(),
            store: store.clone(),
            rows: loaded.rows.into_iter().filter(|row| !is_stale(row, now)).collect(),
            last_event: loaded.last_event_id,
            max_tracked: config.limits.max_tracked_domains,
            max_waiting: config.limits.max_waiting,
        });
        let own = Arc::new(OwnListeners::new([proxy_address, admin_address]));
        let limits = pool::Limits {
            per_origin: config.limits.max_idle_per_host,
            overall: config.limits.max_idle,
            idle_for: config.limits.upstream_idle.micros(),
        };
        let upstream = Arc::new(Upstream::new(upstream_settings(&config, &own)?, limits, metrics.clone()));
        let proxy = Arc::new(Proxy::new(gate.clone(), upstream.clone(), metrics.clone(), proxy_settings(&config)));
        let admin = Arc::new(Admin::new(
            gate.clone(),
            metrics.clone(),
            store.clone(),
            health.clone(),
            token,
            config.admin.hosts.clone(),
            admin_address,
        ));
        let ended = CancellationToken::new();
        tokio::spawn(admin::run(admin_listener, admin.clone(), ended.clone()));
        let app = Arc::new_cyclic(|app: &std::sync::Weak<App>| {
            let drain = {
                let app = app.clone();
                move || app.upgrade().map_or(Span::seconds(30), |app| app.config().timeouts.drain)
            };
            let served = listener::run(proxy.clone(), listener, config.limits.max_connections, drain);
            App {
                inputs,
                config: Mutex::new(config),
                gate,
                proxy,
                upstream,
                admin,
                metrics,
                store,
                health,
                own,
                ended,
                serving: tracked(served),
                proxy_address,
                admin_address,
            }
        });
        app.keep_house(path);
        app.health.enter(Phase::Ready);
        app.announce();
        Ok(app)
    }

    /// Where programs connect.
    pub fn proxy_address(&self) -> SocketAddr {
        self.proxy_address
    }

    /// Where people and scrapers connect.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin_address
    }

    fn config(&self) -> std::sync::MutexGuard<'_, Config> {
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self) {
        for (side, address) in [("proxy", self.proxy_address), ("admin", self.admin_address)] {
            tracing::info!(event = "listening", side, %address, "{side} listening on {address}");
        }
        let policies = self.gate.policies();
        tracing::info!(
            event = "ready",
            version = env!("CARGO_PKG_VERSION"),
            suffix_list = policies.keys.list_date(),
            "ready"
        );
        if std::io::IsTerminal::is_terminal(&std::io::stderr()) {
            eprintln!("\n    the page: {}\n", self.admin.login_link());
        }
    }

    /// Tasks beside the requests: idle connections, the wall clock, the configuration file.
    fn keep_house(self: &Arc<Self>, path: Option<PathBuf>) {
        let app = Arc::downgrade(self);
        tokio::spawn(async move {
            let mut offset = None;
            let mut ticks = tokio::time::interval(TIDY_EVERY);
            let mut until_check = Duration::ZERO;
            loop {
                ticks.tick().await;
                let Some(app) = app.upgrade() else { return };
                app.upstream.tidy();
                until_check = until_check.saturating_sub(TIDY_EVERY);
                if until_check.is_zero() {
                    until_check = CLOCK_CHECK_EVERY;
                    app.check_clock(&mut offset);
                }
            }
        });
        let Some(path) = path else { return };
        match config::reload::changes(&path) {
            Ok(mut changes) => {
                let app = Arc::downgrade(self);
                tokio::spawn(async move {
                    while changes.recv().await.is_some() {
                        let Some(app) = app.upgrade() else { return };
                        app.reload("the file has changed").await;
                    }
                });
            }
            Err(error) => {
                tracing::warn!(event = "config", %error, "the configuration file is not watched; SIGHUP reloads it")
            }
        }
    }

    /// What is stored is wall time: after a step of the wall clock it is written again.
    fn check_clock(&self, last: &mut Option<i64>) {
        let offset = self.gate.wall_offset();
        if last.is_some_and(|last| offset.abs_diff(last) > CLOCK_STEP) {
            tracing::warn!(event = "clock", "the wall clock was set; openings keep their length");
            self.gate.store_again();
            *last = Some(offset);
        }
        last.get_or_insert(offset);
    }

    /// Reads the configuration again. An invalid one changes nothing.
    pub async fn reload(&self, why: &str) {
        match self.try_reload().await {
            Ok(()) => {
                self.metrics.reload_ok.set(1);
                self.health.reloaded(None);
                self.gate.tell(EventKind::Reload, None, "auto".to_owned(), format!("configuration read again: {why}"));
                tracing::info!(event = "reload", "configuration read again: {why}");
            }
            Err(error) => {
                self.metrics.reload_ok.set(0);
                self.metrics.failed_open[FailOpen::Reload].inc();
                let error = error.to_string();
                tracing::error!(event = "reload", "the configuration is not used, what was in force stays: {error}");
                self.gate.tell(EventKind::Reload, None, "auto".to_owned(), format!("not used: {error}"));
                self.health.reloaded(Some(error));
            }
        }
    }

    /// Everything that can fail comes first, on a thread that may block; then all of it is put in place.
    async fn try_reload(&self) -> Result<(), StartError> {
        let (inputs, own) = (self.inputs.clone(), self.own.clone());
        let prepared = tokio::task::spawn_blocking(move || {
            let Loaded { config, warnings, .. } = load(&inputs).map_err(StartError::Config)?;
            let (upstream, policies) = (upstream_settings(&config, &own)?, policies(&config, HashMap::new())?);
            Ok((config, warnings, upstream, policies))
        });
        let (new, warnings, upstream_settings, new_policies) =
            prepared.await.unwrap_or_else(|error| Err(StartError::Runtime(std::io::Error::other(error))))?;
        for warning in &warnings {
            tracing::warn!(event = "config", "{warning}");
        }
        let mut config = self.config();
        for (key, changed) in needs_restart(&config, &new) {
            if changed {
                tracing::warn!(event = "config", key, "{key} takes effect at the next start");
            }
        }
        self.gate.reload(new_policies, new.limits.max_tracked_domains, new.limits.max_waiting);
        self.upstream.reload(upstream_settings);
        self.proxy.reload(proxy_settings(&new));
        self.admin.set_hosts(new.admin.hosts.clone());
        *config = new;
        Ok(())
    }

    /// Serves until a signal, then drains. A second signal ends it at once.
    async fn until_signalled(self: Arc<Self>) {
        let stream = |kind| signal(kind).inspect_err(|error| tracing::error!(%error, "a signal can't be heard")).ok();
        let (mut hup, mut term, mut int) =
            (stream(SignalKind::hangup()), stream(SignalKind::terminate()), stream(SignalKind::interrupt()));
        loop {
            tokio::select! {
                () = heard(&mut hup) => self.reload("SIGHUP").await,
                () = heard(&mut term) => break,
                () = heard(&mut int) => break,
            }
        }
        tokio::select! {
            () = self.drain() => {}
            () = heard(&mut term) => tracing::warn!("second signal: ending at once"),
            () = heard(&mut int) => tracing::warn!("second signal: ending at once"),
        }
        let _ = self.store.flush(LAST_WRITES).await;
    }

    /// Finishes what runs, up to `timeouts.drain`, and writes what is left to write.
    pub async fn drain(&self) {
        tracing::info!(event = "drain", "draining: nothing new is accepted");
        self.health.enter(Phase::Draining);
        self.proxy.stop();
        self.serving.wait().await;
        self.gate.log_refusals();
        let _ = self.store.flush(LAST_WRITES).await;
        self.ended.cancel();
        tracing::info!(event = "drained", "drained");
    }
}

fn tracked(task: impl Future<Output = ()> + Send + 'static) -> TaskTracker {
    let tracker = TaskTracker::new();
    tracker.spawn(task);
    tracker.close();
    tracker
}

/// Every connection takes a descriptor: as many as the system allows are asked for.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit on open files can't be raised");
    }
}

async fn heard(stream: &mut Option<tokio::signal::unix::Signal>) {
    match stream {
        Some(stream) => {
            stream.recv().await;
        }
        None => std::future::pending().await,
    }
}

fn bind(address: SocketAddr, key: &'static str) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |cause| StartError::Listen { address, key, cause };
    let listener = listener::bind(address).map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// Keys that are read at the start alone, and whether they have changed.
fn needs_restart(old: &Config, new: &Config) -> [(&'static str, bool); 8] {
    [
        ("proxy.listen", old.proxy.listen != new.proxy.listen),
        ("proxy.workers", old.proxy.workers != new.proxy.workers),
        ("admin.listen", old.admin.listen != new.admin.listen),
        ("limits.max_connections", old.limits.max_connections != new.limits.max_connections),
        ("limits.max_idle", old.limits.max_idle != new.limits.max_idle),
        ("limits.max_idle_per_host", old.limits.max_idle_per_host != new.limits.max_idle_per_host),
        ("limits.upstream_idle", old.limits.upstream_idle != new.limits.upstream_idle),
        ("log", old.log.format != new.log.format || old.log.level != new.log.level),
    ]
}
