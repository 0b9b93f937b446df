//! One host, as every request brings one, to its key, its section and the rule that decided.
//!
//! The most specific rule wins: a section that narrows to this very host, the longest `*.` member of a
//! group, a group by the registrable domain, the section of the registrable domain, the list alone.

use std::fmt;
use std::sync::Arc;

use super::DomainKey;
use super::host::{Authority, Host, HostError};
use super::rules::{GROUP_PREFIX, Group, KeyRules, Section};
use super::suffix::registrable_start;
use crate::core::policy::KeyScope;

/// What a host is kept under.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolved {
    /// The key of its breaker and budget.
    pub key: DomainKey,
    /// The canonical name of the `[domains]` section whose policy applies, if there is one. It differs
    /// from the key where a section narrows a domain to its hosts.
    pub section: Option<DomainKey>,
    /// Why, for people.
    pub rule: Rule,
}

/// The rule that decided about a key, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The registrable domain below this public suffix.
    PublicSuffixList {
        /// The public suffix.
        suffix: Suffix,
    },
    /// A section splits off this one host.
    HostSection,
    /// The domain's section, or `[defaults]`, says `key = "host"`.
    NarrowedByHost,
    /// A group names it.
    Group {
        /// The member that matched; none if the group itself was asked for.
        member: Option<DomainKey>,
    },
    /// An address has no registrable domain.
    IpLiteral,
    /// A name without a dot has no registrable domain.
    SingleLabel,
    /// Nobody registered it, so it stands for itself.
    ItselfASuffix,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::PublicSuffixList { suffix } => write!(f, "registrable domain below the public suffix {suffix}"),
            Rule::HostSection => f.write_str("section for this host alone"),
            Rule::NarrowedByHost => f.write_str("one breaker per host, by key = \"host\""),
            Rule::Group { member: Some(member) } => write!(f, "member {member} of the group"),
            Rule::Group { member: None } => f.write_str("the group itself"),
            Rule::IpLiteral => f.write_str("IP address, kept whole"),
            Rule::SingleLabel => f.write_str("name without a dot, kept whole"),
            Rule::ItselfASuffix => f.write_str("itself a public suffix"),
        }
    }
}

/// A public suffix, kept as the end of a key so that no request has to copy it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suffix {
    of: DomainKey,
    start: usize,
}

impl Suffix {
    /// The suffix as text.
    pub fn as_str(&self) -> &str {
        self.of.as_str().get(self.start..).unwrap_or_default()
    }
}

impl fmt::Display for Suffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl KeyRules {
    /// The key of a host that is dialled at `port` (`None`: the scheme's own). The port is part of the
    /// key only for addresses and names without a dot, where another port is another service.
    pub fn resolve(&self, host: &Host, port: Option<u16>) -> Resolved {
        match host {
            Host::Name(name) if name.contains('.') => self.resolve_name(name),
            Host::Name(_) => self.resolve_whole(host, port, Rule::SingleLabel),
            Host::V4(_) | Host::V6(_) => self.resolve_whole(host, port, Rule::IpLiteral),
        }
    }

    /// What people type: a key, `host` or `host:port`, `group:NAME`, or an http(s) or ws(s) URL.
    ///
    /// # Errors
    ///
    /// As [`Authority::parse`]; besides for other schemes and for a group that there is not.
    pub fn resolve_text(&self, text: &str) -> Result<Resolved, HostError> {
        let text = text.trim();
        if let Some(name) = group_name(text) {
            let group = self.groups.iter().find(|group| group.name() == name).ok_or(HostError::UnknownGroup)?;
            return Ok(group.resolved(None));
        }
        let authority = match text.split_once("://") {
            None => Authority::parse(text)?,
            Some((scheme, rest)) => parse_url(scheme, rest)?,
        };
        Ok(self.resolve(&authority.host, authority.port))
    }

    fn resolve_whole(&self, host: &Host, port: Option<u16>, rule: Rule) -> Resolved {
        let key = whole_key(host, port);
        let section = self.section(key.as_str()).map(|section| section.key.clone());
        Resolved { key, section, rule }
    }

    fn resolve_name(&self, name: &Arc<str>) -> Resolved {
        if let Some(Section { key, scope: KeyScope::Host, splits_off }) = self.section(name) {
            let rule = if *splits_off { Rule::HostSection } else { Rule::NarrowedByHost };
            return Resolved { key: key.clone(), section: Some(key.clone()), rule };
        }
        let suffix = self.list.suffix_start(name, self.which);
        let start = registrable_start(name, suffix);
        let registrable = &name[start..];
        if let Some((group, member)) = self.group_of(name, registrable) {
            return group.resolved(Some(member.clone()));
        }
        let section = self.section(registrable);
        if section.map_or(self.default_scope, |section| section.scope) == KeyScope::Host {
            let section = section.map(|section| section.key.clone());
            return Resolved { key: DomainKey(Arc::clone(name)), section, rule: Rule::NarrowedByHost };
        }
        let key = match section {
            Some(section) => section.key.clone(),
            None if start == 0 => DomainKey(Arc::clone(name)),
            None => DomainKey(registrable.into()),
        };
        let rule = match suffix {
            0 => Rule::ItselfASuffix,
            _ => Rule::PublicSuffixList { suffix: Suffix { of: key.clone(), start: suffix - start } },
        };
        Resolved { section: section.map(|section| section.key.clone()), key, rule }
    }

    /// The group of a name and the member that says so: the longest `*.` one, else the domain.
    pub(super) fn group_of(&self, name: &str, registrable: &str) -> Option<(&Group, &DomainKey)> {
        if self.groups.is_empty() {
            return None;
        }
        let above = name.match_indices('.').map(|(dot, _)| &name[dot + 1..]);
        let wildcard = above.into_iter().find_map(|parent| self.wildcards.get(parent));
        let member = wildcard.or_else(|| self.members.get(registrable))?;
        Some((self.groups.get(member.group)?, &member.written))
    }

    /// The section of this canonical name. Most configurations have a handful, many have none.
    pub(super) fn section(&self, name: &str) -> Option<&Section> {
        if self.sections.is_empty() { None } else { self.sections.get(name) }
    }
}

impl Group {
    fn resolved(&self, member: Option<DomainKey>) -> Resolved {
        let section = self.has_section.then(|| self.key.clone());
        Resolved { key: self.key.clone(), section, rule: Rule::Group { member } }
    }
}

/// The key of what has no registrable domain: whole, with its port unless that is a usual one.
pub(super) fn whole_key(host: &Host, port: Option<u16>) -> DomainKey {
    match (host, port) {
        (Host::Name(name), None | Some(80 | 443)) => DomainKey(Arc::clone(name)),
        (_, None | Some(80 | 443)) => DomainKey(host.to_string().into()),
        (_, Some(port)) => DomainKey(format!("{host}:{port}").into()),
    }
}

/// The NAME of `group:NAME`. `group:8080` is a host on a port: no group's name is a number.
pub(super) fn group_name(text: &str) -> Option<&str> {
    let name = text.strip_prefix(GROUP_PREFIX)?;
    (!name.bytes().all(|byte| byte.is_ascii_digit())).then_some(name)
}

fn parse_url(scheme: &str, rest: &str) -> Result<Authority, HostError> {
    if !["http", "https", "ws", "wss"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
        return Err(HostError::Scheme);
    }
    let authority = &rest[..rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len())];
    // People paste URLs with a password in them; it is not part of the host.
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Authority::parse(authority)
}
