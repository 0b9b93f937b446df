//! Host to domain key: what shares one breaker and one budget.
//!
//! ```text
//! "WWW.Example.co.uk.:8080" ─ Authority::parse ─> Host, port ─ KeyRules::resolve ─> example.co.uk
//! ```
//!
//! [`Host`] gives a host its one spelling or refuses it, [`SuffixList`] knows which part of a name was
//! registered, and [`KeyRules`] adds what the configuration narrows (`key = "host"`) and widens
//! (`[groups]`). The key is made from the host that is dialled, never from a Host line or SNI.

mod host;
mod resolve;
mod rules;
mod suffix;
#[cfg(test)]
mod tests;

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};

pub use host::{Authority, Host, HostError};
pub use resolve::{Resolved, Rule, Suffix};
pub use rules::{KeyProblem, KeyRuleError, KeyRules, Place};
pub use suffix::{PublicSuffixes, SuffixList, SuffixListError};

/// The name under which one breaker and one budget are kept.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DomainKey(Arc<str>);

impl DomainKey {
    /// A key that was made by [`DomainKey`]'s own rules before: from the store or a test.
    pub fn from_stored(text: &str) -> DomainKey {
        DomainKey(text.into())
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for DomainKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Borrow<str> for DomainKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for DomainKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Serialize for DomainKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// The Unicode form of a key where it has one of its own, to be shown *beside* the key and never instead
/// of it: two different names can look the same in Unicode.
pub fn to_unicode(key: &str) -> Option<String> {
    if !key.starts_with("xn--") && !key.contains(".xn--") {
        return None;
    }
    let (host, port) = key.split_at(key.find(':').unwrap_or(key.len()));
    let (unicode, result) = idna::domain_to_unicode(host);
    (result.is_ok() && unicode != host).then(|| unicode + port)
}
