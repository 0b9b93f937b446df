//! The Public Suffix List: which part of a name somebody registered.
//!
//! The list is one hash map from a rule's name to what the rules say about it, walked from the right,
//! label by label. It has every parent of a rule too, so that the walk stops at the first name that
//! the list does not know: two lookups for most hosts. The rules are kept in punycode, as traffic is.
//! A map rather than a tree with one map a node: a tree that prefers an exact child over `*` loses
//! `*.run.app` for `mtls.run.app`, because the list has rules below it.

use std::fmt;
use std::sync::{Arc, LazyLock};

use hashbrown::HashMap;
use serde::{Deserialize, Serialize};

use super::host::{Host, HostError};

/// Which sections of the list count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PublicSuffixes {
    /// Only those of registries. A platform such as `github.io` shares its limiter, so it is one domain.
    #[default]
    Icann,
    /// Those of platforms too: `user.github.io` is a domain of its own.
    All,
}

/// Why a file is no Public Suffix List.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuffixListError {
    /// Empty, or only comments.
    #[error("the public suffix list has no rules")]
    NoRules,
    /// A line that is no rule. Lines count from 1.
    #[error("line {line} of the public suffix list is not a rule: {problem}")]
    BadRule {
        /// Where.
        line: usize,
        /// What is wrong with the name in it.
        problem: HostError,
    },
}

/// What the rules say about one name; the bits of the private section are shifted by `PRIVATE`.
#[derive(Clone, Copy, Default)]
struct Kinds(u8);

const SUFFIX: u8 = 1;
const WILDCARD: u8 = 2;
const EXCEPTION: u8 = 4;
const PRIVATE: u8 = 3;

impl Kinds {
    fn counted(self, which: PublicSuffixes) -> u8 {
        match which {
            PublicSuffixes::Icann => self.0,
            PublicSuffixes::All => self.0 | self.0 >> PRIVATE,
        }
    }
}

/// A parsed Public Suffix List.
pub struct SuffixList {
    rules: HashMap<Box<str>, Kinds>,
    date: Box<str>,
    count: usize,
}

impl SuffixList {
    /// The list that is shipped inside the binary, parsed at the first call.
    pub fn built_in() -> Arc<SuffixList> {
        static BUILT_IN: LazyLock<Arc<SuffixList>> = LazyLock::new(|| {
            let text = include_str!("../../../data/public_suffix_list.dat");
            Arc::new(SuffixList::parse(text).expect("the built-in list is parsed by a test"))
        });
        Arc::clone(&BUILT_IN)
    }

    /// Parses a list in the format of publicsuffix.org. Rules outside of its sections (a file that
    /// somebody wrote by hand) count like a registry's.
    ///
    /// # Errors
    ///
    /// When a line is no rule, and when there are no rules at all: an empty file is a mistake.
    pub fn parse(text: &str) -> Result<SuffixList, SuffixListError> {
        let mut list = SuffixList { rules: HashMap::new(), date: "unknown".into(), count: 0 };
        let mut shift = 0;
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            if let Some(comment) = line.trim_start().strip_prefix("//") {
                if comment.contains("===BEGIN PRIVATE DOMAINS===") {
                    shift = PRIVATE;
                } else if comment.contains("===BEGIN ICANN DOMAINS===") {
                    shift = 0;
                } else if let Some(version) = comment.trim_start().strip_prefix("VERSION:") {
                    list.date = version.trim().split('_').next().unwrap_or("unknown").into();
                }
            } else if let Some(rule) = line.split_whitespace().next() {
                let bad = |problem| SuffixListError::BadRule { line: index + 1, problem };
                list.insert(rule, shift).map_err(bad)?;
            }
        }
        if list.count == 0 {
            return Err(SuffixListError::NoRules);
        }
        list.rules.shrink_to_fit();
        Ok(list)
    }

    /// The day of the list as its `VERSION` line has it, such as `2026-10-22`, or `unknown`.
    pub fn date(&self) -> &str {
        &self.date
    }

    /// How many rules it has.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The registrable domain of a canonical name (see [`Host`]): its public suffix and one label more.
    /// A name that is itself a public suffix stays whole. A top-level domain that no rule names is a
    /// public suffix by the list's default rule `*`.
    pub fn registrable<'a>(&self, name: &'a str, which: PublicSuffixes) -> &'a str {
        let suffix = self.suffix_start(name, which);
        &name[registrable_start(name, suffix)..]
    }

    /// Where the public suffix of `name` starts: 0 for one that is itself a public suffix.
    pub(super) fn suffix_start(&self, name: &str, which: PublicSuffixes) -> usize {
        let mut end = name.len();
        let mut longest = label_start(name, end);
        let mut below_wildcard = false;
        loop {
            let start = label_start(name, end);
            let known = self.rules.get(&name[start..]).map(|kinds| kinds.counted(which));
            let kinds = known.unwrap_or(0);
            if kinds & EXCEPTION != 0 {
                return (end + 1).min(name.len());
            }
            if below_wildcard || kinds & SUFFIX != 0 {
                longest = start;
            }
            if start == 0 || known.is_none() {
                return longest;
            }
            below_wildcard = kinds & WILDCARD != 0;
            end = start - 1;
        }
    }

    fn insert(&mut self, rule: &str, shift: u8) -> Result<(), HostError> {
        let (kind, name) = match (rule.strip_prefix('!'), rule.strip_prefix("*.")) {
            (Some(name), _) => (EXCEPTION, name),
            (None, Some(name)) => (WILDCARD, name),
            (None, None) => (SUFFIX, rule),
        };
        self.count += 1;
        if name == "*" {
            return Ok(()); // The default rule, which holds anyway.
        }
        let Host::Name(name) = Host::parse(name)? else { return Err(HostError::NotDottedQuad) };
        if kind == EXCEPTION && !name.contains('.') {
            return Err(HostError::EmptyLabel);
        }
        for (dot, _) in name.match_indices('.') {
            self.rules.entry(name[dot + 1..].into()).or_default();
        }
        self.rules.entry((*name).into()).or_default().0 |= kind << shift;
        Ok(())
    }
}

impl fmt::Debug for SuffixList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuffixList").field("date", &self.date).field("count", &self.count).finish_non_exhaustive()
    }
}

/// Where the registrable domain starts in a name whose public suffix starts at `suffix`.
pub(super) fn registrable_start(name: &str, suffix: usize) -> usize {
    if suffix == 0 { 0 } else { label_start(name, suffix - 1) }
}

/// Where the label starts that ends at `end`.
fn label_start(name: &str, end: usize) -> usize {
    name[..end].rfind('.').map_or(0, |dot| dot + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_list_is_whole_and_dated() {
        let list = SuffixList::built_in();
        assert!(list.count() > 10_000, "{}", list.count());
        assert!(list.date().starts_with("20") && list.date().len() == 10, "{}", list.date());
        assert_ne!(
            list.registrable("a.github.io", PublicSuffixes::All),
            list.registrable("a.github.io", PublicSuffixes::Icann)
        );
    }

    #[test]
    fn a_file_without_rules_is_refused_and_a_bad_rule_is_named() {
        for text in ["", "\n\n", "// VERSION: 2026-01-02_03-04-05_UTC\n// ===BEGIN ICANN DOMAINS===\n"] {
            assert_eq!(SuffixList::parse(text).err(), Some(SuffixListError::NoRules), "{text:?}");
        }
        for rule in ["a..b", "!com", "a.*.b", "<html>", ".com", "1.2.3.4"] {
            let error = SuffixList::parse(&format!("// by hand\ncom\n{rule}")).err();
            assert!(matches!(error, Some(SuffixListError::BadRule { line: 3, .. })), "{rule}: {error:?}");
        }
    }

    #[test]
    fn a_list_by_hand_needs_no_sections() {
        let list =
            SuffixList::parse("\u{feff}com\r\n*.UK // all of them\r\n!parliament.uk\n*\n公司.cn").expect("a list");
        assert_eq!((list.date(), list.count()), ("unknown", 5));
        for (name, registrable) in [
            ("a.b.example.com", "example.com"),
            ("a.b.co.uk", "b.co.uk"),
            ("uk", "uk"),
            ("co.uk", "co.uk"),
            ("www.parliament.uk", "parliament.uk"),
            ("a.x.xn--55qx5d.cn", "x.xn--55qx5d.cn"),
            ("a.b.unlisted", "b.unlisted"),
        ] {
            assert_eq!(list.registrable(name, PublicSuffixes::Icann), registrable, "{name}");
        }
    }

    #[test]
    fn a_rule_below_a_wildcard_does_not_hide_it() {
        let list = SuffixList::built_in();
        let all = |name| list.registrable(name, PublicSuffixes::All);
        assert_eq!(all("mtls.run.app"), "mtls.run.app");
        assert_eq!(all("a.us.run.app"), "a.us.run.app");
        assert_eq!(all("b.a.us.run.app"), "a.us.run.app");
        let icann = SuffixList::parse("*.mm\n// ===BEGIN PRIVATE DOMAINS===\nx.y.mm\n").expect("a list");
        assert_eq!(icann.registrable("a.x.y.mm", PublicSuffixes::Icann), "x.y.mm");
        assert_eq!(icann.registrable("b.a.x.y.mm", PublicSuffixes::All), "a.x.y.mm");
    }

    #[test]
    fn odd_names_do_not_panic() {
        let list = SuffixList::built_in();
        for name in ["", ".", "..", ".com", "com.", "é.é"] {
            let _ = list.registrable(name, PublicSuffixes::All);
        }
    }
}
