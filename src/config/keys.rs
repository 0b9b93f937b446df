//! Which keys there are, and which one a stranger was probably meant to be.

use super::sections::{Admin, Config, Egress, Https, Keys, Limits, Log, Proxy, Redis, Timeouts};
use crate::core::policy::PolicyPatch;

/// A table of the configuration. `*` in a path stands for any name.
struct Table {
    path: &'static [&'static str],
    /// The keys it has; `None` = any name.
    keys: Option<&'static [&'static str]>,
}

const fn table(path: &'static [&'static str], keys: &'static [&'static str]) -> Table {
    Table { path, keys: Some(keys) }
}

const fn any_names(path: &'static [&'static str]) -> Table {
    Table { path, keys: None }
}

/// Every table, in the order of the documentation.
const TABLES: &[Table] = &[
    table(&[], Config::KEYS),
    table(&["proxy"], Proxy::KEYS),
    table(&["admin"], Admin::KEYS),
    table(&["https"], Https::KEYS),
    table(&["redis"], Redis::KEYS),
    table(&["defaults"], PolicyPatch::KEYS),
    any_names(&["domains"]),
    table(&["domains", "*"], PolicyPatch::KEYS),
    any_names(&["groups"]),
    table(&["keys"], Keys::KEYS),
    table(&["timeouts"], Timeouts::KEYS),
    table(&["limits"], Limits::KEYS),
    table(&["log"], Log::KEYS),
    table(&["egress"], Egress::KEYS),
    any_names(&["egress", "resolve"]),
];

/// How alike two names must be for a suggestion in the same table, and in another one.
const ALIKE: f64 = 0.65;
const ALIKE_ELSEWHERE: f64 = 0.9;

/// Every key as a dotted path, in the order of the documentation; `*` stands for a name, as in
/// `domains.*.max_errors`.
pub fn known_keys() -> Vec<String> {
    let mut known = Vec::new();
    for table in TABLES {
        for key in table.keys.unwrap_or(&["*"]) {
            let path: Vec<&str> = table.path.iter().copied().chain([*key]).collect();
            if !is_table(&path) {
                known.push(path.join("."));
            }
        }
    }
    known
}

fn table_at(path: &[impl AsRef<str>]) -> Option<&'static Table> {
    TABLES.iter().find(|table| {
        let same = |(pattern, name): (&&str, &_)| *pattern == "*" || *pattern == AsRef::<str>::as_ref(name);
        table.path.len() == path.len() && table.path.iter().zip(path).all(same)
    })
}

/// True if `path` names a table and not a value.
pub(super) fn is_table(path: &[impl AsRef<str>]) -> bool {
    table_at(path).is_some()
}

/// True if `path` names a key or a table that there is.
pub(super) fn is_known(path: &[impl AsRef<str>]) -> bool {
    let Some((last, above)) = path.split_last() else { return false };
    table_at(above).is_some_and(|table| table.keys.is_none_or(|keys| keys.contains(&last.as_ref())))
}

/// What to say about the unknown key at `path`: where it belongs, or what it was meant to be.
pub(super) fn unknown(path: &[String]) -> String {
    let Some((name, above)) = path.split_last() else { return "unknown key".to_owned() };
    let place = if above.is_empty() { "at the top level".to_owned() } else { format!("in [{}]", dotted(above)) };
    let keys = table_at(above).and_then(|table| table.keys).unwrap_or(&[]);
    format!("unknown key `{name}` {place}: {}", advice(name, keys))
}

fn advice(name: &str, here: &[&'static str]) -> String {
    let homes = tables_with(name);
    if !homes.is_empty() {
        return format!("it belongs in {homes}");
    }
    let near = nearest(name, here.iter().map(|key| (*key, *key)));
    let elsewhere = keyed_tables().flat_map(|(_, keys)| keys.iter().map(|key| (*key, *key)));
    match (near, nearest(name, elsewhere)) {
        (near, Some((likeness, key)))
            if likeness >= ALIKE_ELSEWHERE && near.is_none_or(|(here, _)| here + 0.1 < likeness) =>
        {
            format!("did you mean `{key}` in {}?", tables_with(key))
        }
        (Some((likeness, key)), _) if likeness >= ALIKE => format!("did you mean `{key}`?"),
        _ => format!("the keys here are {}", here.join(", ")),
    }
}

/// The tables that have the key `name`: `[proxy] or [admin]`; empty if there is none.
fn tables_with(name: &str) -> String {
    let homes: Vec<String> = keyed_tables().filter(|(_, keys)| keys.contains(&name)).map(|(home, _)| home).collect();
    homes.join(" or ")
}

/// Every table below the top that has keys of its own, as it is shown.
fn keyed_tables() -> impl Iterator<Item = (String, &'static [&'static str])> {
    TABLES.iter().filter(|table| !table.path.is_empty()).filter_map(|table| {
        let name = table.path.join(".").replace('*', "\"NAME\"");
        table.keys.map(|keys| (format!("[{name}]"), keys))
    })
}

/// The variable that an unknown one, split into the path that it would set, was probably meant to be.
pub(super) fn nearest_variable(path: &[String]) -> Option<String> {
    let (last, above) = path.split_last()?;
    if let Some(keys) = table_at(above).filter(|table| !table.path.is_empty()).and_then(|table| table.keys) {
        let (likeness, key) = nearest(last, keys.iter().map(|key| (*key, *key)))?;
        return (likeness >= ALIKE).then(|| variable(above.iter().map(String::as_str).chain([key])));
    }
    let known = known_keys();
    let whole = path.join("_");
    let (likeness, key) = nearest(&whole, known.iter().map(|key| (key.as_str(), key)))?;
    let same_key = |key: &&String| key.rsplit('.').next() == Some(&whole);
    let key = if likeness >= ALIKE_ELSEWHERE { Some(key) } else { known.iter().find(same_key) };
    key.map(|key| variable(key.split('.').map(|name| if name == "*" { "NAME" } else { name })))
}

/// The environment variable for the key at `path`: `FUSEBOX_PROXY__LISTEN` for `proxy` and `listen`.
pub fn variable<'a>(path: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = path.into_iter().collect();
    format!("{}{}", super::env::PREFIX, names.join("__").to_uppercase())
}

/// The candidate whose name is most like `name`, and how much: from 0 to 1.
fn nearest<'a, T>(name: &str, candidates: impl Iterator<Item = (&'a str, T)>) -> Option<(f64, T)> {
    let plain = |text: &str| text.to_lowercase().replace(['-', '.'], "_");
    let name = plain(name);
    candidates.map(|(key, candidate)| (likeness(&name, &plain(key)), candidate)).max_by(|(a, _), (b, _)| a.total_cmp(b))
}

/// Jaro's measure with Winkler's bonus for a common start. strsim gives the bonus only to names that are
/// alike anyway, but `min_` says a lot about what `min_sampels` was meant to be.
fn likeness(a: &str, b: &str) -> f64 {
    let jaro = strsim::jaro(a, b);
    let start = a.bytes().zip(b.bytes()).take(4).take_while(|(a, b)| a == b).count();
    jaro + 0.1 * start as f64 * (1.0 - jaro)
}

/// A path as TOML writes it: `domains."medium.com".max_errors`.
pub(super) fn dotted(path: &[impl AsRef<str>]) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let names = path.iter().map(|name| match name.as_ref() {
        name if !name.is_empty() && name.chars().all(bare) => name.to_owned(),
        name => format!("\"{name}\""),
    });
    names.collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_has_a_home_in_the_table_above() {
        assert!(TABLES.len() > 10);
        for table in TABLES.iter().filter(|table| !table.path.is_empty()) {
            assert!(is_known(table.path), "{:?}", table.path);
        }
    }

    #[test]
    fn known_keys_are_values_and_not_tables() {
        let known = known_keys();
        for key in ["proxy.listen", "defaults.window", "domains.*.key", "groups.*", "egress.deny", "egress.resolve.*"] {
            assert!(known.iter().any(|k| k == key), "{key}");
        }
        for table in ["proxy", "domains", "groups", "egress.resolve"] {
            assert!(!known.iter().any(|k| k == table), "{table}");
        }
    }

    #[test]
    fn strangers_are_told_where_to_go() {
        for (path, advice) in [
            (&["defaults", "min_sampels"][..], "in [defaults]: did you mean `min_error_ratio`?"),
            (&["defaults", "max-errors"], "in [defaults]: did you mean `max_errors`?"),
            (&["listen"], "at the top level: it belongs in [proxy] or [admin]"),
            (&["lisen"], "at the top level: did you mean `listen` in [proxy] or [admin]?"),
            (&["default"], "at the top level: did you mean `defaults`?"),
            (&["https", "max_errors"], "in [https]: it belongs in [defaults] or [domains.\"NAME\"]"),
            (&["domains", "medium.com", "windw"], "in [domains.\"medium.com\"]: did you mean `window`?"),
            (&["redis", "zzz"], "in [redis]: the keys here are url, ca_file"),
        ] {
            let path: Vec<String> = path.iter().map(|name| (*name).to_owned()).collect();
            let name = &path[path.len() - 1];
            assert_eq!(unknown(&path), format!("unknown key `{name}` {advice}"));
        }
    }

    #[test]
    fn variables_are_told_too() {
        for (name, meant) in [
            ("proxy_listen", Some("FUSEBOX_PROXY__LISTEN")),
            ("listen", Some("FUSEBOX_PROXY__LISTEN")),
            ("defaults__min_eror_ratio", Some("FUSEBOX_DEFAULTS__MIN_ERROR_RATIO")),
            ("domains__medium.com__max_eror", Some("FUSEBOX_DOMAINS__MEDIUM.COM__MAX_ERRORS")),
            ("open_for", Some("FUSEBOX_DEFAULTS__OPEN_FOR")),
            ("service_host", None),
            ("port_3128_tcp", None),
        ] {
            let path: Vec<String> = name.split("__").map(str::to_owned).collect();
            assert_eq!(nearest_variable(&path).as_deref(), meant, "{name}");
        }
    }
}
