//! Which policy applies to which key: the configuration's layers and the overrides, made ready.
//!
//! A [`Policies`] is a snapshot that never changes: a reload or an override makes a new one. On the way of
//! a request it costs a lookup for each kind of layer that exists at all.

use std::collections::HashMap;
use std::sync::Arc;

use super::key::{DomainKey, KeyRules, Resolved};
use super::policy::{Policy, PolicyPatch, PolicySources, Source};

/// Key rules, configured layers and overrides.
#[derive(Clone, Debug)]
pub struct Policies {
    /// How a host becomes a key.
    pub keys: Arc<KeyRules>,
    defaults: Arc<PolicyPatch>,
    sections: Arc<HashMap<DomainKey, PolicyPatch>>,
    overrides: HashMap<DomainKey, PolicyPatch>,
    default: Arc<Policy>,
    by_section: Arc<HashMap<DomainKey, Arc<Policy>>>,
    by_override: HashMap<DomainKey, Arc<Policy>>,
}

impl Policies {
    /// The layers of a configuration. `sections` are keyed by their canonical name.
    pub fn new(
        keys: KeyRules,
        defaults: PolicyPatch,
        sections: HashMap<DomainKey, PolicyPatch>,
        overrides: HashMap<DomainKey, PolicyPatch>,
    ) -> Policies {
        let by_section = sections
            .iter()
            .map(|(name, patch)| {
                let layers = [(&defaults, Source::Config), (patch, Source::Config)];
                (name.clone(), Arc::new(Policy::layered(layers).0))
            })
            .collect();
        let mut policies = Policies {
            keys: Arc::new(keys),
            default: Arc::new(Policy::layered([(&defaults, Source::Config)]).0),
            defaults: Arc::new(defaults),
            sections: Arc::new(sections),
            overrides: HashMap::new(),
            by_section: Arc::new(by_section),
            by_override: HashMap::new(),
        };
        for (key, patch) in overrides {
            policies.set_override(&key, Some(patch));
        }
        policies
    }

    /// What applies to a key whose section is `section`.
    pub fn effective(&self, key: &DomainKey, section: Option<&DomainKey>) -> &Arc<Policy> {
        if !self.by_override.is_empty()
            && let Some(policy) = self.by_override.get(key)
        {
            return policy;
        }
        section.and_then(|section| self.by_section.get(section)).unwrap_or(&self.default)
    }

    /// What applies to a key, with the source of every value.
    pub fn describe(&self, resolved: &Resolved) -> (Policy, PolicySources) {
        let section = resolved.section.as_ref().and_then(|section| self.sections.get(section));
        let layers = [(&*self.defaults, Source::Config)]
            .into_iter()
            .chain(section.map(|patch| (patch, Source::Config)))
            .chain(self.overrides.get(&resolved.key).map(|patch| (patch, Source::Override)));
        Policy::layered(layers)
    }

    /// The overrides of a key.
    pub fn override_of(&self, key: &DomainKey) -> Option<&PolicyPatch> {
        self.overrides.get(key)
    }

    /// Every override.
    pub fn overrides(&self) -> &HashMap<DomainKey, PolicyPatch> {
        &self.overrides
    }

    /// True if a section of the configuration speaks of this key, or an override does.
    pub fn names(&self, key: &DomainKey) -> bool {
        self.sections.contains_key(key) || self.overrides.contains_key(key)
    }

    /// Replaces the overrides of a key; an empty patch, or none, takes them away.
    pub fn set_override(&mut self, key: &DomainKey, patch: Option<PolicyPatch>) {
        let Some(patch) = patch.filter(|patch| !patch.is_empty()) else {
            self.overrides.remove(key);
            self.by_override.remove(key);
            return;
        };
        let section = self.keys.resolve_text(key.as_str()).ok().and_then(|resolved| resolved.section);
        let section = section.and_then(|section| self.sections.get(&section));
        let layers = [(&*self.defaults, Source::Config)]
            .into_iter()
            .chain(section.map(|patch| (patch, Source::Config)))
            .chain([(&patch, Source::Override)]);
        let policy = Arc::new(Policy::layered(layers).0);
        self.by_override.insert(key.clone(), policy);
        self.overrides.insert(key.clone(), patch);
    }
}
