//! From a configuration to the parts that it describes: key rules, policies, store, upstream and proxy settings.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use super::StartError;
use crate::clock::Clock;
use crate::config::{self, Config, Inputs, Subject};
use crate::core::key::{DomainKey, KeyRules, Place, SuffixList, SuffixListError};
use crate::core::layers::Policies;
use crate::core::policy::{KeyScope, PolicyPatch};
use crate::health::Health;
use crate::metrics::{FailOpen, Metrics};
use crate::proxy::auth::{Doorman, User};
use crate::proxy::{self, ConnectPorts};
use crate::store::{self, Location, Store};
use crate::upstream::dial::Dialer;
use crate::upstream::guard::{DenyEntry, Guard, OwnListeners};
use crate::upstream::resolve::{Resolver, StaticAnswers};
use crate::upstream::tls::UpstreamTls;
use crate::upstream::{self, HeadLimits, Timeouts};

/// A suffix list with fewer rules is a part of one at best.
const FEW_RULES: usize = 1_000;

/// Why the configured suffix list can't be used.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say it")]
pub enum ListError {
    #[error("{}: {cause}", path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    #[error("{}: {cause}", path.display())]
    Parse { path: PathBuf, cause: SuffixListError },
    #[error("it makes names of the configuration wrong: {}", .0.join("; "))]
    Names(Vec<String>),
}

/// What the key rules say about the names in a configuration.
pub(super) fn name_problems(config: &Config) -> Vec<(Subject, String)> {
    // a list that can't be read is a problem of its own, told elsewhere
    let list = suffix_list(config).unwrap_or_else(|_| SuffixList::built_in());
    let Err(errors) = rules_with(config, list) else { return Vec::new() };
    let subject = |place| match place {
        Place::Section(index) => Subject::Domain(index),
        Place::Group(group) => Subject::Group(group, None),
        Place::Member { group, member } => Subject::Group(group, Some(member)),
    };
    errors.into_iter().map(|error| (subject(error.place), error.problem.to_string())).collect()
}

fn suffix_list(config: &Config) -> Result<Arc<SuffixList>, ListError> {
    let Some(path) = config.keys.list.clone() else { return Ok(SuffixList::built_in()) };
    match std::fs::read_to_string(&path) {
        Ok(text) => SuffixList::parse(&text).map(Arc::new).map_err(|cause| ListError::Parse { path, cause }),
        Err(cause) => Err(ListError::Read { path, cause }),
    }
}

fn rules_with(config: &Config, list: Arc<SuffixList>) -> Result<KeyRules, Vec<crate::core::key::KeyRuleError>> {
    let which = match config.keys.public_suffixes {
        config::PublicSuffixes::Icann => crate::core::key::PublicSuffixes::Icann,
        config::PublicSuffixes::All => crate::core::key::PublicSuffixes::All,
    };
    let scope = config.defaults.key.unwrap_or(KeyScope::Registrable);
    let sections: Vec<_> = config.domains.iter().map(|(name, patch)| (name.clone(), patch.key)).collect();
    KeyRules::new(list, which, scope, &sections, &config.groups)
}

/// The policies that a configuration makes, with these overrides.
///
/// # Errors
///
/// If the configured suffix list can't be used.
pub fn policies(config: &Config, overrides: HashMap<DomainKey, PolicyPatch>) -> Result<Policies, ListError> {
    let list = suffix_list(config)?;
    if list.count() < FEW_RULES {
        tracing::warn!(
            event = "config",
            "keys.list has {} rules, the Public Suffix List some 10 000: what it does not name is split behind its last label",
            list.count()
        );
    }
    // names were judged when the configuration was loaded; only the list can have changed since
    let rules = rules_with(config, list)
        .map_err(|errors| ListError::Names(errors.iter().map(ToString::to_string).collect()))?;
    let named = |(name, patch): &(String, PolicyPatch)| Some((rules.canonical_section(name).ok()?, patch.clone()));
    let sections = config.domains.iter().filter_map(named).collect();
    Ok(Policies::new(rules, config.defaults.clone(), sections, overrides))
}

/// The state store, and what it held.
pub(super) struct Kept {
    pub directory: Option<PathBuf>,
    pub store: Store,
    pub loaded: store::Loaded,
}

/// Opens the store in the data directory, or, where that can't be used, in memory.
///
/// # Errors
///
/// If there is no thread for a store even in memory.
pub(super) fn open_store(
    inputs: &Inputs,
    health: &Health,
    metrics: &Metrics,
    clock: &Clock,
) -> Result<Kept, StartError> {
    let directory =
        config::data_dir(inputs).ok_or_else(|| "neither --data-dir nor HOME is set".to_owned()).and_then(|path| {
            store::prepare_dir(&path).map_err(|error| format!("{}: {error}", path.display())).map(|()| path)
        });
    let (directory, trouble) = match directory {
        Ok(path) => match Store::open(Location::File(&path.join("fusebox.db"))) {
            Ok((store, loaded)) => {
                store.prune(clock.to_wall(clock.now()));
                return Ok(Kept { directory: Some(path), store, loaded });
            }
            // the token may still be kept there
            Err(error) => (Some(path), error.to_string()),
        },
        Err(trouble) => (None, format!("no data directory, and so no admin token but on a terminal: {trouble}")),
    };
    without_persistence(health, metrics, trouble);
    let (store, loaded) = Store::open(Location::Memory)?;
    Ok(Kept { directory, store, loaded })
}

fn without_persistence(health: &Health, metrics: &Metrics, why: String) {
    metrics.failed_open[FailOpen::Store].inc();
    tracing::error!(event = "store", "serving without persistence: nothing outlives this process: {why}");
    health.without_persistence(why);
}

pub(super) fn upstream_settings(config: &Config, own: &Arc<OwnListeners>) -> Result<upstream::Settings, StartError> {
    let deny = config.egress.deny.iter().map(|denied| match denied {
        config::Denied::Private => DenyEntry::Private,
        config::Denied::Net(net) => DenyEntry::Net(*net),
    });
    let resolver = Resolver::from_system(StaticAnswers::new(config.egress.resolve.iter().cloned()));
    Ok(upstream::Settings {
        dialer: Dialer {
            resolver: Arc::new(resolver),
            guard: Arc::new(Guard::new(deny.collect(), config.egress.allow.clone())),
            own: own.clone(),
            connect_timeout: config.timeouts.connect.into(),
        },
        tls: UpstreamTls::new(config.egress.ca_file.as_deref())?,
        timeouts: Timeouts {
            tls: config.timeouts.tls,
            response_head: config.timeouts.response_head,
            body_idle: config.timeouts.body_idle,
        },
        head: HeadLimits { bytes: config.limits.max_header_bytes, fields: config.limits.max_headers },
    })
}

pub(super) fn proxy_settings(config: &Config) -> proxy::Settings {
    let users = config.proxy.users.iter();
    let users = users.map(|user| User { name: user.name.clone(), hash: user.hash.expose().to_owned() }).collect();
    proxy::Settings {
        doorman: Doorman::new(users, config.proxy.allow_clients.clone()),
        connect_ports: match &config.egress.connect_ports {
            config::ConnectPorts::Any => ConnectPorts::Any,
            config::ConnectPorts::Only(ports) => ConnectPorts::These(ports.clone()),
        },
        request_head: config.timeouts.request_head,
        keep_alive: config.timeouts.keep_alive,
        body_idle: config.timeouts.body_idle,
        tunnel_idle: config.timeouts.tunnel_idle,
        max_header_bytes: config.limits.max_header_bytes,
        max_headers: config.limits.max_headers,
        access_log: config.log.access,
    }
}
