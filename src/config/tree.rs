//! The configuration as written: a tree of keys and values that know where they stand.
//!
//! serde stops at the first error. To find them all, the entry that an error points at is taken out of
//! the tree and the rest is read again.

use std::borrow::Cow;
use std::ops::Range;

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue, Deserializer};

/// A node: keys from the root down. An element of a list goes by the path of its list.
pub(super) type Path = Vec<String>;

/// A value and where it stands.
pub(super) type Node<'i> = Spanned<DeValue<'i>>;

/// Everything that file, environment and flags set, laid over one another.
#[derive(Default)]
pub(super) struct Tree<'i> {
    root: DeTable<'i>,
    taken_out: Vec<Path>,
}

impl<'i> Tree<'i> {
    pub(super) fn new(root: DeTable<'i>) -> Tree<'i> {
        Tree { root, taken_out: Vec::new() }
    }

    /// Reads the tree as a `T`.
    pub(super) fn read<T: DeserializeOwned>(&self) -> Result<T, toml::de::Error> {
        T::deserialize(Deserializer::from(Spanned::new(0..0, self.root.clone())))
    }

    /// The value at `path`.
    pub(super) fn value(&self, path: &[&str]) -> Option<&Node<'i>> {
        let (last, tables) = path.split_last()?;
        self.table(tables)?.get(*last)
    }

    /// The names in the table at `path` with their positions, in the order in which serde sees them.
    pub(super) fn names(&self, path: &[&str]) -> Vec<(String, usize)> {
        let entries = self.table(path).into_iter().flat_map(DeTable::iter);
        entries.map(|(key, _)| (key.get_ref().to_string(), key.span().start)).collect()
    }

    /// Where each element of the list at `path` is written.
    pub(super) fn elements(&self, path: &[&str]) -> Vec<usize> {
        let list = self.value(path).and_then(|value| value.get_ref().as_array());
        list.into_iter().flat_map(|list| list.iter()).map(|element| element.span().start).collect()
    }

    fn table(&self, path: &[&str]) -> Option<&DeTable<'i>> {
        path.iter().try_fold(&self.root, |table, name| table.get(*name)?.get_ref().as_table())
    }

    /// Sets the value at `path` in place of what is there. Names of domains, groups and hosts are found
    /// whatever their case: a variable's name has none.
    pub(super) fn put(&mut self, path: &[String], value: Node<'i>) {
        let Some((last, tables)) = path.split_last() else { return };
        let span = value.span();
        let mut table = &mut self.root;
        for name in tables {
            let name = spelling(table, name);
            let key = Spanned::new(span.clone(), Cow::Owned(name.clone()));
            let entry = table.entry(key).or_insert_with(|| Spanned::new(span.clone(), DeValue::Table(DeTable::new())));
            if !entry.get_ref().is_table() {
                *entry = Spanned::new(span.clone(), DeValue::Table(DeTable::new()));
            }
            let DeValue::Table(below) = entry.get_mut() else { return };
            table = below;
        }
        let name = spelling(table, last);
        table.remove(name.as_str());
        table.insert(Spanned::new(span, Cow::Owned(name)), value);
    }

    /// Takes the entry or element at exactly `span` out; returns its path, or nothing if there is none.
    pub(super) fn take_out(&mut self, span: &Range<usize>) -> Option<Path> {
        let mut path = Path::new();
        if !take_out_of_table(&mut self.root, span, &mut path) {
            return None;
        }
        self.taken_out.push(path.clone());
        Some(path)
    }

    /// True if something at or below `path` had to be taken out: what is left there is not what was meant.
    pub(super) fn is_damaged(&self, path: &[&str]) -> bool {
        self.taken_out.iter().any(|out| out.len() >= path.len() && out.iter().zip(path).all(|(a, b)| a == b))
    }

    /// Every value that stands where a table must. serde would take a list for a table, by position.
    pub(super) fn stray_values(&self, is_table: impl Fn(&[String]) -> bool) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        find_stray(&self.root, &is_table, &mut Path::new(), &mut found);
        found
    }

    /// Every string, key or value, that holds a control character.
    pub(super) fn unprintable(&self) -> Vec<Range<usize>> {
        let mut found = Vec::new();
        find_unprintable(&self.root, &mut found);
        found
    }
}

/// `node` moved to where its text starts in the whole.
pub(super) fn shifted(node: Node<'_>, start: usize) -> Node<'_> {
    let span = node.span();
    let value = match node.into_inner() {
        DeValue::Table(table) => {
            let entries = table.into_iter().map(|(key, value)| {
                let span = key.span();
                (Spanned::new(span.start + start..span.end + start, key.into_inner()), shifted(value, start))
            });
            DeValue::Table(entries.collect())
        }
        DeValue::Array(list) => DeValue::Array(list.into_iter().map(|element| shifted(element, start)).collect()),
        scalar => scalar,
    };
    Spanned::new(span.start + start..span.end + start, value)
}

/// How `name` is already spelt in `table`, else as it is.
fn spelling(table: &DeTable<'_>, name: &str) -> String {
    let known = table.keys().find(|key| key.get_ref().eq_ignore_ascii_case(name));
    known.map_or_else(|| name.to_owned(), |key| key.get_ref().to_string())
}

/// Takes the innermost entry at `span` out of `table`, leaving the way to it in `path`.
fn take_out_of_table(table: &mut DeTable<'_>, span: &Range<usize>, path: &mut Path) -> bool {
    let mut here = None;
    for (key, value) in table.iter_mut() {
        path.push(key.get_ref().to_string());
        // `[[x]]` gives the list and its first element the same span; the list is meant.
        let is_this_list = value.get_ref().is_array() && value.span() == *span;
        if !is_this_list && take_out_of_value(value.get_mut(), span, path) {
            return true;
        }
        if key.span() == *span || value.span() == *span {
            here = Some(key.get_ref().to_string());
        }
        path.pop();
    }
    let Some(name) = here else { return false };
    table.remove(name.as_str());
    path.push(name);
    true
}

fn take_out_of_value(value: &mut DeValue<'_>, span: &Range<usize>, path: &mut Path) -> bool {
    match value {
        DeValue::Table(table) => take_out_of_table(table, span, path),
        DeValue::Array(list) => {
            if list.iter_mut().any(|element| take_out_of_value(element.get_mut(), span, path)) {
                return true;
            }
            let before = list.len();
            let rest = std::mem::replace(list, DeArray::new()).into_iter().filter(|element| element.span() != *span);
            *list = rest.collect();
            list.len() < before
        }
        _ => false,
    }
}

fn find_stray(
    table: &DeTable<'_>,
    is_table: &impl Fn(&[String]) -> bool,
    path: &mut Path,
    found: &mut Vec<Range<usize>>,
) {
    for (key, value) in table.iter() {
        path.push(key.get_ref().to_string());
        match value.get_ref() {
            DeValue::Table(below) => find_stray(below, is_table, path, found),
            _ if is_table(path) => found.push(value.span()),
            _ => {}
        }
        path.pop();
    }
}

fn find_unprintable(table: &DeTable<'_>, found: &mut Vec<Range<usize>>) {
    for (key, value) in table.iter() {
        if has_control(key.get_ref()) {
            found.push(key.span());
        } else {
            find_unprintable_in(value, found);
        }
    }
}

fn find_unprintable_in(node: &Node<'_>, found: &mut Vec<Range<usize>>) {
    match node.get_ref() {
        DeValue::String(text) if has_control(text) => found.push(node.span()),
        DeValue::Array(list) => list.iter().for_each(|element| find_unprintable_in(element, found)),
        DeValue::Table(table) => find_unprintable(table, found),
        _ => {}
    }
}

fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}
