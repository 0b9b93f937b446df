//! What is remembered about a domain and about what happened: the row and the event.
//!
//! Both are plain values that the gate makes, the store keeps and the API shows.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::key::DomainKey;
use super::outcome::Cause;
use super::policy::PolicyPatch;
use super::time::Micros;

/// Writes an enum of words with `name`, `FromStr` and serde from one list.
macro_rules! words {
    ($(#[doc = $doc:literal])+ $name:ident { $( $(#[doc = $vdoc:literal])+ $variant:ident = $word:literal, )+ }) => {
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $( $(#[doc = $vdoc])+ #[serde(rename = $word)] $variant, )+ }

        impl $name {
            /// Every variant.
            pub const ALL: &'static [$name] = &[$( $name::$variant ),+];

            /// The word in JSON, in the store and in labels.
            pub const fn name(self) -> &'static str { match self { $( $name::$variant => $word, )+ } }
        }

        impl FromStr for $name {
            type Err = ();
            fn from_str(text: &str) -> Result<$name, ()> {
                $name::ALL.iter().copied().find(|v| v.name() == text).ok_or(())
            }
        }
    };
}

words! {
    /// Who opened a circuit.
    Opener {
        /// Too many errors, or a probe that failed.
        Auto = "auto",
        /// A person or a program, through the admin port.
        Manual = "manual",
        /// One answer with a `Retry-After`, under `retry_after = "obey"`.
        RetryAfter = "retry_after",
    }
}

words! {
    /// What an [`Event`] tells.
    EventKind {
        /// A closed circuit opened by itself.
        Trip = "trip",
        /// A probe failed and the circuit opened again.
        Reopen = "reopen",
        /// A probe was let through.
        Probe = "probe",
        /// The circuit closed, by a probe or by hand.
        Close = "close",
        /// The circuit was opened by hand.
        Open = "open",
        /// An override was set or cleared.
        Override = "override",
        /// A row was removed.
        Delete = "delete",
        /// The configuration was read again.
        Reload = "reload",
    }
}

/// One line of the audit trail.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Rises with time and is unique: the time in microseconds, moved up where two would be equal.
    pub id: u64,
    /// Wall time.
    pub at: Micros,
    /// What happened.
    pub kind: EventKind,
    /// The domain it happened to, if to one.
    pub domain: Option<DomainKey>,
    /// `auto`, or the name of the token.
    pub by: String,
    /// The rest, for people.
    pub detail: String,
}

/// What is durable about one domain. Times are wall time; 0 means never.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The domain.
    pub domain: DomainKey,
    /// Rises with every change in this process: of two rows the one with the higher version is the newer.
    pub version: u64,
    /// When the circuit was last opened.
    pub opened_at: Micros,
    /// When the opening ends: 0 = closed, in the future = open, past = half-open.
    pub opened_until: Micros,
    /// How long the opening was made, in microseconds: no clock step may make it longer.
    pub opened_for: u64,
    /// When the circuit was last closed.
    pub closed_at: Micros,
    /// Probes that failed in a row.
    pub strikes: u32,
    /// Who opened it last.
    pub opened_by: Option<Opener>,
    /// The last answer that counted against the domain.
    pub last_status: Option<Cause>,
    /// The host that gave it.
    pub last_host: Option<String>,
    /// Automatic openings so far.
    pub trip_count: u64,
    /// What was set at run time, if anything.
    pub overrides: Option<PolicyPatch>,
}

impl Row {
    /// A row about nothing yet.
    pub fn new(domain: DomainKey) -> Row {
        Row {
            domain,
            version: 0,
            opened_at: 0,
            opened_until: 0,
            opened_for: 0,
            closed_at: 0,
            strikes: 0,
            opened_by: None,
            last_status: None,
            last_host: None,
            trip_count: 0,
            overrides: None,
        }
    }
}
