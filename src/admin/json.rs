//! The shapes of the API's JSON.

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use crate::clock::rfc3339;
use crate::core::circuit::State;
use crate::core::key::to_unicode;
use crate::core::policy::{Policy, PolicySources, Source};
use crate::core::row::Event;
use crate::core::time::Micros;
use crate::gate::RowView;

/// A state of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StateName {
    /// Requests are refused.
    Open,
    /// The next request is the probe.
    HalfOpen,
    /// Requests flow.
    Closed,
}

impl From<State> for StateName {
    fn from(state: State) -> StateName {
        match state {
            State::Open(_) => StateName::Open,
            State::HalfOpen => StateName::HalfOpen,
            State::Closed => StateName::Closed,
        }
    }
}

impl std::str::FromStr for StateName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<StateName, &'static str> {
        match text {
            "open" => Ok(StateName::Open),
            "half_open" => Ok(StateName::HalfOpen),
            "closed" => Ok(StateName::Closed),
            _ => Err("state: write open, half_open or closed"),
        }
    }
}

/// One value of a policy.
#[derive(Debug, Serialize, ToSchema)]
pub struct PolicyValue {
    /// The value, written as in the configuration.
    value: serde_json::Value,
    /// The highest layer that says so.
    #[schema(value_type = String, example = "default", pattern = "^(default|config|override)$")]
    source: Source,
}

/// What applies to a domain: every key, in the order of the documentation.
#[derive(Debug)]
pub struct EffectivePolicy(Vec<(&'static str, PolicyValue)>);

impl EffectivePolicy {
    /// A policy with where its values came from.
    pub fn new(policy: &Policy, sources: &PolicySources) -> EffectivePolicy {
        let values = policy.describe(sources).into_iter();
        EffectivePolicy(values.map(|(key, value, source)| (key, PolicyValue { value, source })).collect())
    }
}

impl Serialize for EffectivePolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

/// One domain.
#[derive(Debug, Serialize, ToSchema)]
pub struct Breaker {
    /// The key that the breaker is kept under.
    #[schema(example = "medium.com")]
    domain: String,
    /// The Unicode form of the key, where it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "bücher.example")]
    domain_unicode: Option<String>,
    /// The state now.
    state: StateName,
    /// When the circuit was last opened (RFC 3339).
    opened_at: Option<String>,
    /// When the opening ends, or ended; null while closed.
    opened_until: Option<String>,
    /// Who opened it last: `auto`, `manual` or `retry_after`.
    #[schema(example = "auto")]
    opened_by: Option<&'static str>,
    /// The last answer that counted: a status, or `connect`, `timeout` or `tls`.
    #[schema(value_type = Option<serde_json::Value>, example = 429)]
    last_status: Option<crate::core::outcome::Cause>,
    /// The host that gave it.
    last_host: Option<String>,
    /// Automatic openings so far.
    trip_count: u64,
    /// Errors in the window now.
    errors_in_window: usize,
    /// What applies, by key.
    #[schema(value_type = std::collections::BTreeMap<String, PolicyValue>)]
    policy: EffectivePolicy,
}

impl From<RowView> for Breaker {
    fn from(row: RowView) -> Breaker {
        Breaker {
            domain_unicode: to_unicode(row.domain.as_str()),
            domain: row.domain.to_string(),
            state: row.state.into(),
            opened_at: time(row.opened_at),
            opened_until: time(row.opened_until),
            opened_by: row.opened_by.map(|opener| opener.name()),
            last_status: row.last_status,
            last_host: row.last_host,
            trip_count: row.trip_count,
            errors_in_window: row.errors_in_window,
            policy: EffectivePolicy::new(&row.policy, &row.sources),
        }
    }
}

/// A time, or nothing for never.
fn time(time: Micros) -> Option<String> {
    (time != 0).then(|| rfc3339(time))
}

/// Rows, sorted by domain.
#[derive(Debug, Serialize, ToSchema)]
pub struct Breakers {
    /// The rows.
    pub(super) breakers: Vec<Breaker>,
    /// Pass it as `after` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

/// One line of the audit trail.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Event)]
pub struct EventJson {
    /// Rises with time, and is unique.
    id: u64,
    /// When (RFC 3339).
    at: String,
    /// What happened: `trip`, `reopen`, `probe`, `close`, `open`, `override`, `delete`, `reload`.
    #[schema(example = "trip")]
    kind: &'static str,
    /// The domain it happened to, if to one.
    domain: Option<String>,
    /// `auto`, or the name of the token.
    by: String,
    /// The rest, for people.
    detail: String,
}

impl From<Event> for EventJson {
    fn from(event: Event) -> EventJson {
        EventJson {
            id: event.id,
            at: rfc3339(event.at),
            kind: event.kind.name(),
            domain: event.domain.map(|domain| domain.to_string()),
            by: event.by,
            detail: event.detail,
        }
    }
}

/// Events, newest first.
#[derive(Debug, Serialize, ToSchema)]
pub struct Events {
    /// The events.
    pub(super) events: Vec<EventJson>,
    /// Pass it as `before` for the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<u64>,
}

/// Leave to fetch.
#[derive(Debug, Serialize, ToSchema)]
pub struct Admitted {
    /// True.
    pub(super) admit: bool,
    /// The key that the URL is kept under.
    pub(super) domain: String,
    /// To be handed in with the result.
    pub(super) permit: String,
}

/// What is known about URLs, in the order of the question.
#[derive(Debug, Serialize, ToSchema)]
pub struct LookedUp {
    /// One for each URL.
    pub(super) results: Vec<LookUp>,
}

/// What is known about one URL.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub enum LookUp {
    /// It has a domain.
    Known {
        /// The URL as it was sent.
        url: String,
        /// The key.
        domain: String,
        /// The state now.
        state: StateName,
        /// When it would be admitted (RFC 3339), if not now.
        retry_at: Option<String>,
    },
    /// It has none.
    Bad {
        /// The URL as it was sent.
        url: String,
        /// Why not.
        error: String,
    },
}
