//! What a configuration says about keys: `[keys]`, `key = "host"` in a section, and `[groups]`.
//!
//! Everything is checked when the rules are built, and every mistake is reported at once with its
//! place: a section that no host could ever reach would be a policy that silently does nothing.

use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;

use super::DomainKey;
use super::host::{Authority, Host, HostError};
use super::resolve::{group_name, whole_key};
use super::suffix::{PublicSuffixes, SuffixList};
use crate::core::policy::KeyScope;

/// What a group's key begins with. No host with a port does: no group's name is a number.
pub(super) const GROUP_PREFIX: &str = "group:";

/// Where in the configuration a mistake stands. Indices are those of the slices given to [`KeyRules::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A section of `[domains]`.
    Section(usize),
    /// A key of `[groups]`.
    Group(usize),
    /// A member in the list of a group.
    Member {
        /// The group.
        group: usize,
        /// The member in it.
        member: usize,
    },
}

/// One mistake in the configuration of keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{subject}: {problem}")]
pub struct KeyRuleError {
    /// The section or group as it is written: `domains."x.example"`, `groups.medium`.
    pub subject: String,
    /// Where it stands.
    pub place: Place,
    /// What is wrong and what to write instead.
    pub problem: KeyProblem,
}

/// What is wrong with a section or a group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyProblem {
    /// The name of the section is no host.
    #[error("{0}")]
    Host(HostError),
    /// A port where it could make no difference.
    #[error("a port is part of the key only for IP addresses and names without a dot; leave it out")]
    Port,
    /// Two sections for one domain.
    #[error("the same domain as {0}")]
    SameSection(String),
    /// Below a registrable domain, and nothing says that it is to be split off.
    #[error(
        "a host below {registrable}; set key = \"host\" to give this host a breaker of its own, or name {registrable}"
    )]
    BelowRegistrable {
        /// The registrable domain.
        registrable: String,
    },
    /// Its hosts are kept under a group's key.
    #[error("a member of groups.{group}; its policy stands in domains.\"group:{group}\"")]
    SectionOfMember {
        /// The group.
        group: String,
    },
    /// `group:NAME` without `[groups] NAME`.
    #[error("there is no group {0} in [groups]")]
    NoSuchGroup(String),
    /// One key for all, and one for each.
    #[error("a group shares one breaker, key = \"host\" contradicts that")]
    NarrowedGroup,
    /// A name that could not stand in `group:NAME`.
    #[error(
        "a group's name is up to 63 lower-case letters, digits, `-` and `_`, starting with a letter, such as `medium`"
    )]
    GroupName,
    /// A member that is no host.
    #[error("{member}: {problem}")]
    Member {
        /// The member, escaped.
        member: String,
        /// What is wrong with it.
        problem: HostError,
    },
    /// An address, a name without a dot, or a port.
    #[error("{0}: a member is a registrable domain (all its hosts) or `*.` and a name (all hosts below it)")]
    NoDomain(String),
    /// A plain host below a registrable domain.
    #[error("{member}: a host below {registrable}; write \"*.{member}\" for all hosts below it, or {registrable}")]
    MemberBelowRegistrable {
        /// The member.
        member: String,
        /// The registrable domain.
        registrable: String,
    },
    /// One name cannot have two keys.
    #[error("{member}: already in groups.{group}")]
    InTwoGroups {
        /// The member.
        member: String,
        /// The group that has it.
        group: String,
    },
}

/// The rules by which hosts become keys.
#[derive(Clone, Debug)]
pub struct KeyRules {
    pub(super) list: Arc<SuffixList>,
    pub(super) which: PublicSuffixes,
    pub(super) default_scope: KeyScope,
    /// By canonical name.
    pub(super) sections: HashMap<DomainKey, Section>,
    pub(super) groups: Vec<Group>,
    /// Members that are a registrable domain, by that.
    pub(super) members: HashMap<DomainKey, Member>,
    /// Members below a name, by that name.
    pub(super) wildcards: HashMap<DomainKey, Member>,
}

#[derive(Clone, Debug)]
pub(super) struct Section {
    pub key: DomainKey,
    pub scope: KeyScope,
    /// True for a host below a registrable domain.
    pub splits_off: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Group {
    /// `group:NAME`
    pub key: DomainKey,
    pub has_section: bool,
}

impl Group {
    pub fn name(&self) -> &str {
        self.key.as_str().strip_prefix(GROUP_PREFIX).unwrap_or_default()
    }
}

#[derive(Clone, Debug)]
pub(super) struct Member {
    pub group: usize,
    /// As the configuration has it, in canonical form.
    pub written: DomainKey,
}

impl KeyRules {
    /// Rules from the parts of a configuration: the sections' names with their own `key`, the groups
    /// with their members, both in the order of the file.
    ///
    /// # Errors
    ///
    /// Every mistake, each with its place.
    pub fn new(
        list: Arc<SuffixList>,
        which: PublicSuffixes,
        default_scope: KeyScope,
        sections: &[(String, Option<KeyScope>)],
        groups: &[(String, Vec<String>)],
    ) -> Result<KeyRules, Vec<KeyRuleError>> {
        let (sections_by_name, members, wildcards) = Default::default();
        let mut rules =
            KeyRules { list, which, default_scope, sections: sections_by_name, groups: Vec::new(), members, wildcards };
        let mut errors = Vec::new();
        for (group, (name, members)) in groups.iter().enumerate() {
            rules.add_group(group, name, members, &mut errors);
        }
        let mut written: HashMap<DomainKey, usize> = HashMap::new();
        for (index, (text, scope)) in sections.iter().enumerate() {
            let added = rules.section_key(text).and_then(|key| match written.entry(key) {
                Entry::Occupied(first) => Err(KeyProblem::SameSection(quoted_section(&sections[*first.get()].0))),
                Entry::Vacant(free) => rules.add_section(free.insert_entry(index).key(), *scope),
            });
            if let Err(problem) = added {
                errors.push(KeyRuleError { subject: quoted_section(text), place: Place::Section(index), problem });
            }
        }
        if errors.is_empty() { Ok(rules) } else { Err(errors) }
    }

    /// The rules without a configuration.
    pub fn built_in() -> KeyRules {
        KeyRules {
            list: SuffixList::built_in(),
            which: PublicSuffixes::default(),
            default_scope: KeyScope::Registrable,
            sections: HashMap::new(),
            groups: Vec::new(),
            members: HashMap::new(),
            wildcards: HashMap::new(),
        }
    }

    /// The date of the list, to be shown.
    pub fn list_date(&self) -> &str {
        self.list.date()
    }

    /// Which sections of the list count.
    pub fn public_suffixes(&self) -> PublicSuffixes {
        self.which
    }

    /// The canonical name of a section as [`super::Resolved::section`] has it, from what is written in the
    /// configuration. It does not matter whether there is such a section.
    ///
    /// # Errors
    ///
    /// For what cannot name a section.
    pub fn canonical_section(&self, text: &str) -> Result<DomainKey, KeyProblem> {
        self.section_key(text)
    }

    fn section_key(&self, text: &str) -> Result<DomainKey, KeyProblem> {
        if let Some(name) = group_name(text) {
            return match self.groups.iter().find(|group| group.name() == name) {
                Some(group) => Ok(group.key.clone()),
                None => Err(KeyProblem::NoSuchGroup(shown(name))),
            };
        }
        let Authority { host, port } = Authority::parse(text).map_err(KeyProblem::Host)?;
        if port.is_some() && host.dns_name().is_some_and(|name| name.contains('.')) {
            return Err(KeyProblem::Port);
        }
        Ok(whole_key(&host, port))
    }

    /// `key` is canonical, and no section has it yet.
    fn add_section(&mut self, key: &DomainKey, own_scope: Option<KeyScope>) -> Result<(), KeyProblem> {
        let name = key.as_str();
        if group_name(name).is_some() {
            return self.add_group_section(key, own_scope);
        }
        let scope = own_scope.unwrap_or(self.default_scope);
        let mut section = Section { key: key.clone(), scope, splits_off: false };
        if let Ok(Host::Name(name)) = Host::parse(name)
            && name.contains('.')
        {
            let registrable = self.list.registrable(&name, self.which);
            section.splits_off = registrable.len() < name.len();
            let member = self.group_of(&name, registrable);
            if section.splits_off && scope != KeyScope::Host {
                return Err(KeyProblem::BelowRegistrable { registrable: registrable.to_owned() });
            }
            // A section that splits one host off is more specific than any group, but the very name of
            // a member belongs to the group.
            if let Some((group, _)) = member
                && (scope != KeyScope::Host || self.members.contains_key(&*name))
            {
                return Err(KeyProblem::SectionOfMember { group: group.name().to_owned() });
            }
        }
        self.sections.insert(key.clone(), section);
        Ok(())
    }

    fn add_group_section(&mut self, key: &DomainKey, own_scope: Option<KeyScope>) -> Result<(), KeyProblem> {
        if own_scope == Some(KeyScope::Host) {
            return Err(KeyProblem::NarrowedGroup);
        }
        for group in self.groups.iter_mut().filter(|group| group.key == *key) {
            group.has_section = true;
        }
        Ok(())
    }

    fn add_group(&mut self, index: usize, name: &str, members: &[String], errors: &mut Vec<KeyRuleError>) {
        let subject =
            if is_group_name(name) { format!("groups.{name}") } else { format!("groups.\"{}\"", shown(name)) };
        if !is_group_name(name) {
            let (place, problem) = (Place::Group(index), KeyProblem::GroupName);
            errors.push(KeyRuleError { subject: subject.clone(), place, problem });
        }
        // One with a wrong name is kept, so that the members' own mistakes are found in the same go.
        self.groups.push(Group { key: DomainKey(format!("{GROUP_PREFIX}{name}").into()), has_section: false });
        for (member, text) in members.iter().enumerate() {
            if let Err(problem) = self.add_member(index, text) {
                let place = Place::Member { group: index, member };
                errors.push(KeyRuleError { subject: subject.clone(), place, problem });
            }
        }
    }

    fn add_member(&mut self, group: usize, text: &str) -> Result<(), KeyProblem> {
        let (wildcard, text) = text.strip_prefix("*.").map_or((false, text), |below| (true, below));
        let parsed = Authority::parse(text);
        let Authority { host, port } = parsed.map_err(|problem| KeyProblem::Member { member: shown(text), problem })?;
        let (Host::Name(name), None) = (host, port) else { return Err(KeyProblem::NoDomain(shown(text))) };
        if wildcard {
            return self.insert_member(group, name, true);
        }
        if !name.contains('.') {
            return Err(KeyProblem::NoDomain(shown(text)));
        }
        let suffix = self.list.suffix_start(&name, self.which);
        let registrable = self.list.registrable(&name, self.which);
        if registrable.len() < name.len() {
            let (member, registrable) = (name.to_string(), registrable.to_owned());
            return Err(KeyProblem::MemberBelowRegistrable { member, registrable });
        }
        // "All hosts below" holds for a public suffix too, whose hosts have registrable domains of
        // their own: this is how all of `github.io` becomes one again under `public_suffixes = "all"`.
        if suffix == 0 {
            self.insert_member(group, Arc::clone(&name), true)?;
        }
        self.insert_member(group, name, false)
    }

    fn insert_member(&mut self, group: usize, name: Arc<str>, wildcard: bool) -> Result<(), KeyProblem> {
        let written = if wildcard { DomainKey(format!("*.{name}").into()) } else { DomainKey(Arc::clone(&name)) };
        let members = if wildcard { &mut self.wildcards } else { &mut self.members };
        let member = members.entry(DomainKey(name)).or_insert(Member { group, written: written.clone() });
        if member.group == group {
            return Ok(());
        }
        let taken_by = self.groups.get(member.group).map(|group| shown(group.name())).unwrap_or_default();
        Err(KeyProblem::InTwoGroups { member: written.to_string(), group: taken_by })
    }
}

fn is_group_name(name: &str) -> bool {
    name.len() <= 63
        && name.starts_with(|first: char| first.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'_'))
}

fn quoted_section(text: &str) -> String {
    format!("domains.\"{}\"", shown(text))
}

/// A text of the configuration as it may stand in a message: on one line, and not without end.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().nth(80).is_some() {
        shown.push('…');
    }
    shown
}
