//! What applies to a domain: the policy, its layers, and where each value came from.
//!
//! A policy is written in layers, lowest first: the built-in default, `[defaults]`, `[domains."x"]`,
//! and an override set at run time. Each layer is a [`PolicyPatch`] that names some keys; laid over
//! one another they make a [`Policy`] that has them all. The one list of keys is at the end of the
//! `policy!` call below: configuration, API and `explain` are all made from it.

use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::outcome::ErrorSet;
use super::time::Span;

/// Whether a domain's refusals are carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Refuse while open or over budget.
    Enforce,
    /// The same states and events, but nothing is refused; `would_refuse_total` counts.
    Report,
    /// Only forward, whatever the row says.
    Off,
}

/// What an upstream's own `Retry-After` does to an opening.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RetryAfterMode {
    /// A trip or failed probe opens at least as long as the very response asks.
    Extend,
    /// Besides, one counted 429 or 503 that carries it opens at once, for that long.
    Obey,
    /// It changes nothing.
    Ignore,
}

/// What shares one breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeyScope {
    /// All hosts below one registrable domain.
    Registrable,
    /// Each host by itself.
    Host,
}

/// A whole number of at least 1, or `"none"` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Unlimited, written `"none"`: lets one domain escape a limit in `[defaults]`.
    None,
    /// At most this many.
    Of(u32),
}

impl Limit {
    /// The number, if there is a limit.
    pub fn number(self) -> Option<u32> {
        match self {
            Limit::None => None,
            Limit::Of(number) => Some(number),
        }
    }
}

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Limit::None => serializer.serialize_str("none"),
            Limit::Of(number) => serializer.serialize_u32(*number),
        }
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
        struct NumberOrNone;
        const WANTED: &str = "a whole number of at least 1, or \"none\"";
        impl serde::de::Visitor<'_> for NumberOrNone {
            type Value = Limit;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(WANTED)
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Limit, E> {
                u64::try_from(number)
                    .map_err(|_| E::custom(format!("{number} is not {WANTED}")))
                    .and_then(|n| self.visit_u64(n))
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Limit, E> {
                match u32::try_from(number) {
                    Ok(number) if number > 0 => Ok(Limit::Of(number)),
                    _ => Err(E::custom(format!("{number} is not {WANTED} (and at most {})", u32::MAX))),
                }
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Limit, E> {
                if text == "none" { Ok(Limit::None) } else { Err(E::custom(format!("`{text}` is not {WANTED}"))) }
            }
        }
        deserializer.deserialize_any(NumberOrNone)
    }
}

/// Which layer a value came from, as the API and `explain` show it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    /// Built in.
    #[default]
    Default,
    /// `[defaults]` or a section of the configuration.
    Config,
    /// Set at run time.
    Override,
}

fn positive_span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Span>, D::Error> {
    match Option::<Span>::deserialize(deserializer)? {
        Some(span) if span.is_zero() => Err(D::Error::custom("must be longer than zero")),
        span => Ok(span),
    }
}

fn ratio<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    match Option::<f64>::deserialize(deserializer)? {
        Some(ratio) if !(0.0..=1.0).contains(&ratio) => {
            Err(D::Error::custom(format!("{ratio} is not between 0.0 and 1.0")))
        }
        ratio => Ok(ratio),
    }
}

fn growth<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    match Option::<f64>::deserialize(deserializer)? {
        Some(growth) if !(1.0..=1000.0).contains(&growth) => {
            Err(D::Error::custom(format!("{growth} is not between 1.0 and 1000.0")))
        }
        growth => Ok(growth),
    }
}

/// How many error timestamps a domain may make us keep: 16 bytes at the default, 8 KiB at most.
const MOST_ERRORS: u32 = 1_000;

fn error_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u32>, D::Error> {
    match Option::<i64>::deserialize(deserializer)? {
        None => Ok(None),
        Some(count) => match u32::try_from(count) {
            Ok(count) if count <= MOST_ERRORS => Ok(Some(count)),
            _ => Err(D::Error::custom(format!("{count} is not a whole number from 0 to {MOST_ERRORS}"))),
        },
    }
}

/// Writes the policy, its patch and its sources from one list of keys.
macro_rules! policy {
    ($( $(#[doc = $doc:literal])+ $key:ident: $type:ty = $default:expr $(, read by $reader:literal)?; )+) => {
        /// Everything that decides about one domain. Every value is set.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Policy { $( $(#[doc = $doc])+ pub $key: $type, )+ }

        impl Default for Policy {
            fn default() -> Policy { Policy { $( $key: $default, )+ } }
        }

        /// One layer: the keys that a configuration section or an override names.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct PolicyPatch {
            $( $(#[doc = $doc])+
               #[serde(default, skip_serializing_if = "Option::is_none" $(, deserialize_with = $reader)?)]
               pub $key: Option<$type>, )+
        }

        /// Where each value of a [`Policy`] came from.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct PolicySources { $( $(#[doc = $doc])+ pub $key: Source, )+ }

        impl PolicyPatch {
            /// Every key that a policy has, in the order of the documentation.
            pub const KEYS: &'static [&'static str] = &[$( stringify!($key) ),+];

            /// True if the patch names no key.
            pub fn is_empty(&self) -> bool { true $( && self.$key.is_none() )+ }

            /// Lays this patch over `policy`, noting `source` for every key that it names.
            pub fn lay_over(&self, policy: &mut Policy, sources: &mut PolicySources, source: Source) {
                $( if let Some(value) = &self.$key {
                    policy.$key = value.clone();
                    sources.$key = source;
                } )+
            }
        }

        impl Policy {
            /// Every key with its value as JSON and its source, in the order of the documentation.
            pub fn describe(&self, sources: &PolicySources) -> Vec<(&'static str, serde_json::Value, Source)> {
                vec![$( (stringify!($key), serde_json::json!(self.$key), sources.$key) ),+]
            }
        }
    };
}

policy! {
    /// Whether refusals are carried out.
    mode: Mode = Mode::Enforce;
    /// What counts as an error.
    errors: ErrorSet = ErrorSet::default();
    /// More than this many errors inside `window` trips.
    max_errors: u32 = 2, read by "error_count";
    /// The sliding window in which errors are counted.
    window: Span = Span::seconds(60), read by "positive_span";
    /// When above 0, a trip also needs errors / requests in the window to reach it.
    min_error_ratio: f64 = 0.0, read by "ratio";
    /// How long a trip opens the circuit.
    open_for: Span = Span::seconds(3_600), read by "positive_span";
    /// Factor on `open_for` for each probe that failed in a row.
    open_growth: f64 = 1.0, read by "growth";
    /// Cap on any automatic opening.
    max_open_for: Span = Span::seconds(7 * 86_400), read by "positive_span";
    /// What an upstream's `Retry-After` does.
    retry_after: RetryAfterMode = RetryAfterMode::Extend;
    /// Whether one probe decides after the opening, or the circuit simply closes.
    half_open: bool = true;
    /// How long a probe may take before the next request may probe instead.
    probe_timeout: Span = Span::seconds(30), read by "positive_span";
    /// Request budget: this many evenly spaced requests in ten seconds.
    requests_per_10s: Limit = Limit::None;
    /// How long a request over budget may wait for its turn inside the proxy.
    max_wait: Span = Span(0);
    /// Concurrent requests to the domain.
    max_in_flight: Limit = Limit::None;
    /// At most this much is added at random to the `Retry-After` of a throttled request.
    retry_jitter: Span = Span::seconds(5);
    /// What shares one breaker.
    key: KeyScope = KeyScope::Registrable;
}

impl Policy {
    /// The built-in default with `layers` laid over it, lowest first.
    pub fn layered<'a>(layers: impl IntoIterator<Item = (&'a PolicyPatch, Source)>) -> (Policy, PolicySources) {
        let (mut policy, mut sources) = (Policy::default(), PolicySources::default());
        for (patch, source) in layers {
            patch.lay_over(&mut policy, &mut sources, source);
        }
        (policy, sources)
    }

    /// Microseconds between two admitted requests, if there is a budget (10 s / N, at least 1).
    pub fn interval(&self) -> Option<u64> {
        self.requests_per_10s.number().map(|n| (10 * super::time::SECOND / u64::from(n)).max(1))
    }

    /// True if a closed domain without errors needs no memory at all under this policy.
    pub fn is_stateless(&self) -> bool {
        self.requests_per_10s == Limit::None && self.max_in_flight == Limit::None && self.min_error_ratio == 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_override_in_order_and_remember_their_source() {
        let config: PolicyPatch = serde_json::from_str(r#"{"max_errors":4,"open_for":"30m"}"#).expect("a patch");
        let at_run_time: PolicyPatch = serde_json::from_str(r#"{"max_errors":9}"#).expect("a patch");
        let (policy, sources) = Policy::layered([(&config, Source::Config), (&at_run_time, Source::Override)]);
        assert_eq!((policy.max_errors, sources.max_errors), (9, Source::Override));
        assert_eq!((policy.open_for, sources.open_for), (Span::seconds(1_800), Source::Config));
        assert_eq!((policy.window, sources.window), (Span::seconds(60), Source::Default));
    }

    #[test]
    fn wrong_values_are_refused() {
        for text in [
            r#"{"window":"0s"}"#,
            r#"{"window":60}"#,
            r#"{"min_error_ratio":1.5}"#,
            r#"{"open_growth":0.5}"#,
            r#"{"requests_per_10s":0}"#,
            r#"{"requests_per_10s":-1}"#,
            r#"{"requests_per_10s":1.5}"#,
            r#"{"requests_per_10s":"nan"}"#,
            r#"{"max_errors":-1}"#,
            r#"{"max_errors":1001}"#,
            r#"{"mode":"on"}"#,
            r#"{"max_eror":1}"#,
            r#"{"errors":["4xx","99"]}"#,
        ] {
            assert!(serde_json::from_str::<PolicyPatch>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_interval_is_ten_seconds_over_n() {
        let budget = |n| Policy { requests_per_10s: Limit::Of(n), ..Policy::default() }.interval();
        assert_eq!(budget(3), Some(3_333_333));
        assert_eq!(budget(u32::MAX), Some(1));
        assert_eq!(Policy::default().interval(), None);
    }

    #[test]
    fn a_patch_keeps_what_it_says_through_json() {
        let text = r#"{"errors":["429","5xx","connect"],"requests_per_10s":"none","max_wait":"90s"}"#;
        let patch: PolicyPatch = serde_json::from_str(text).expect("a patch");
        assert_eq!(serde_json::to_string(&patch).expect("JSON"), text);
    }
}
