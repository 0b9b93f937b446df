//! Imports point down only: core, then the adapters, then gate and upstream, then proxy and admin, then app.

use std::fs;
use std::path::{Path, PathBuf};

/// Every module below `src`, lowest floor first, and the modules that it may use besides itself.
const FLOORS: &[(&str, &[&str])] = &[
    ("core", &[]),
    ("clock", &["core"]),
    ("config", &["core"]),
    ("deadline", &["core"]),
    ("health", &[]),
    ("logging", &["config", "core"]),
    // the time of the start is a metric
    ("metrics", &["clock", "core"]),
    ("store", &["core"]),
    ("gate", &["clock", "core", "metrics", "store"]),
    ("upstream", &["clock", "core", "deadline", "metrics"]),
    ("proxy", &["clock", "config", "core", "deadline", "gate", "metrics", "upstream"]),
    ("admin", &["clock", "config", "core", "gate", "health", "metrics", "proxy", "store"]),
];

/// What wires everything, and what it is made of.
const TOP: &[&str] = &["app", "cli", "lib", "main"];

/// Crates that do I/O or need a runtime.
const IMPURE: &[&str] = &["tokio", "hyper", "hyper_util", "redis", "rusqlite", "axum", "rustls", "hickory_resolver"];

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Every source file of a module, be it a file, a directory, or both.
fn files(module: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut rest = vec![source().join(format!("{module}.rs")), source().join(module)];
    while let Some(path) = rest.pop() {
        if path.is_dir() {
            rest.extend(fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()));
        } else if path.is_file() && path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}

/// The code of a file: without its tests and without comments.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).expect("a source file");
    let product = text.split("#[cfg(test)]").next().unwrap_or_default();
    product.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Every name that stands right after `crate::`, in groups too.
fn after_crate(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            None => names.push(word(rest)),
            Some(group) => {
                let (mut depth, mut start) = (0usize, true);
                for (at, letter) in group.char_indices() {
                    match letter {
                        '{' => depth += 1,
                        '}' if depth == 0 => break,
                        '}' => depth -= 1,
                        ',' if depth == 0 => start = true,
                        letter if start && letter.is_alphabetic() => {
                            names.push(word(&group[at..]));
                            start = false;
                        }
                        _ => {}
                    }
                }
            }
        }
    }
    names
}

fn word(text: &str) -> String {
    text.chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect()
}

#[test]
fn imports_point_down() {
    let mut problems = Vec::new();
    for (module, allowed) in FLOORS {
        let files = files(module);
        assert!(!files.is_empty(), "there is no src/{module}");
        for path in files {
            for name in after_crate(&code(&path)) {
                if name != *module && !allowed.contains(&name.as_str()) {
                    problems.push(format!("{} uses crate::{name}", path.display()));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn every_module_has_its_floor() {
    let mut seen = 0;
    for entry in fs::read_dir(source()).expect("the source") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let known = TOP.contains(&name.as_str()) || FLOORS.iter().any(|(module, _)| *module == name);
        assert!(known, "src/{name} stands on no floor: add it to the list");
        seen += 1;
    }
    assert!(seen > FLOORS.len());
}

#[test]
fn the_core_is_pure() {
    let files = files("core");
    assert!(files.len() > 5, "{files:?}");
    for path in files {
        let code = code(&path);
        for name in IMPURE {
            let used = code.match_indices(name).any(|(at, _)| {
                let before = code[..at].chars().next_back().is_none_or(|c| !c.is_alphanumeric() && c != '_');
                before && code[at + name.len()..].starts_with("::")
            });
            assert!(!used, "{} uses {name}", path.display());
        }
        assert!(!code.contains("async ") && !code.contains("Instant::now"), "{}", path.display());
    }
}

#[test]
fn admin_takes_nothing_of_the_proxy_but_its_refusals() {
    let files = files("admin");
    assert!(!files.is_empty());
    for path in files {
        for (at, _) in code(&path).match_indices("crate::proxy::") {
            let rest = code(&path)[at + "crate::proxy::".len()..].to_owned();
            assert!(rest.starts_with("refuse"), "{} uses proxy::{}", path.display(), word(&rest));
        }
    }
}

#[test]
fn the_reader_of_imports_reads_groups() {
    let code = "use crate::{core::{key, time}, gate::Gate, store};\nlet x = crate::app::run();";
    assert_eq!(after_crate(code), ["core", "gate", "store", "app"]);
}
