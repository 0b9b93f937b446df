//! From what is written to what it means.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use toml::de::{DeTable, Error};

use super::check::Checks;
use super::env::{self, Inputs};
use super::keys;
use super::problem::{Place, Problem, Problems, Warning};
use super::sections::Config;
use super::source::{Sources, line_and_column};
use super::tree::Tree;
use crate::core::key::SuffixList;

/// More problems than anyone will read at once; the rest shows when these are gone.
const MOST_PROBLEMS: usize = 200;

/// A configuration that can be used.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// What it means.
    pub config: Config,
    /// The file that it came from, absolute, if there is one. A reload names it in [`Inputs::file`], so
    /// that a file which has gone is a problem and not a return to the defaults.
    pub path: Option<PathBuf>,
    /// What its author would want to know.
    pub warnings: Vec<Warning>,
}

/// A name that someone who knows domains objects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An entry of [`Config::domains`].
    Domain(usize),
    /// An entry of [`Config::groups`], or one of its members.
    Group(usize, Option<usize>),
}

/// Loads the configuration: flags over environment over the file, over the built-in defaults.
///
/// The file is `--config`, else `$FUSEBOX_CONFIG`, else `config.toml` in the working directory if it is
/// there. `names` judges the names in `[domains]` and `[groups]`: it says which are wrong, and why.
///
/// # Errors
///
/// Every problem that there is, in reading order. Nothing of a configuration with a problem is used.
pub fn load(inputs: &Inputs, names: impl Fn(&Config) -> Vec<(Subject, String)>) -> Result<Loaded, Problems> {
    let file = read_file(inputs).map_err(|problem| Problems { problems: vec![problem], warnings: Vec::new() })?;
    let text = file.as_ref().map_or("", |file| file.text.as_str());
    let mut sources = Sources::new(file.as_ref().map(|file| (file.shown.clone(), file.text.clone())));
    let (root, errors) = DeTable::parse_recoverable(text);
    let mut problems: Vec<Problem> = errors.iter().map(|error| syntax(error, text, &sources)).collect();
    if errors.iter().any(|error| error.message() != DUPLICATE) {
        // What follows a syntax error is guesswork; more would only mislead.
        return Err(in_order(problems, Vec::new()));
    }
    let mut tree = Tree::new(root.into_inner());
    let warnings = env::lay_variables(inputs, &mut tree, &mut sources);
    env::lay_flags(&inputs.flags, &mut tree, &mut sources);

    let mut config = understand(&mut tree, &sources, &mut problems);
    let path = file.as_ref().map(|file| file.path.clone());
    let (cwd, beside_file) = (&inputs.cwd, path.as_deref().and_then(Path::parent).unwrap_or(&inputs.cwd));
    let mut checks = Checks { config: &config, tree: &tree, sources: &sources, problems, warnings };
    checks.run();
    let mut absolute = |path: &[&str], file: &Option<PathBuf>, judge: fn(&[u8]) -> Result<(), String>| {
        file.as_ref().map(|file| checks.file(path, file, beside_file, cwd, judge))
    };
    let list = absolute(&["keys", "list"], &config.keys.list, suffix_list);
    let ca_file = absolute(&["egress", "ca_file"], &config.egress.ca_file, certificates);
    let redis_ca_file = absolute(&["redis", "ca_file"], &config.redis.ca_file, certificates);
    let mut named = config.clone();
    named.keys.list.clone_from(&list);
    checks.names(names(&named));
    let (problems, warnings) = (checks.problems, checks.warnings);
    (config.keys.list, config.egress.ca_file, config.redis.ca_file) = (list, ca_file, redis_ca_file);
    let Problems { problems, warnings } = in_order(problems, warnings);
    if problems.is_empty() { Ok(Loaded { config, path, warnings }) } else { Err(Problems { problems, warnings }) }
}

/// Where state is kept: `--data-dir`, `$FUSEBOX_DATA_DIR`, the first of `$STATE_DIRECTORY`, else
/// `fusebox` in the user's state directory. `None` if there is no such user: serve without persistence.
pub fn data_dir(inputs: &Inputs) -> Option<PathBuf> {
    let first_state_directory = || inputs.variable("STATE_DIRECTORY")?.split(':').find(|dir| !dir.is_empty());
    let given = inputs.flags.data_dir.clone();
    let given = given.or_else(|| inputs.variable("FUSEBOX_DATA_DIR").map(PathBuf::from));
    if let Some(dir) = given.or_else(|| first_state_directory().map(PathBuf::from)) {
        return Some(inputs.cwd.join(dir));
    }
    // The XDG rules say that a relative path there is to be ignored.
    let xdg = inputs.variable("XDG_STATE_HOME").map(PathBuf::from).filter(|dir| dir.is_absolute());
    let home = || inputs.variable("HOME").map(|home| Path::new(home).join(".local/state"));
    xdg.or_else(home).map(|dir| dir.join("fusebox"))
}

fn suffix_list(octets: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(octets).map_err(|error| error.to_string())?;
    SuffixList::parse(text).map(|_| ()).map_err(|error| error.to_string())
}

fn certificates(octets: &[u8]) -> Result<(), String> {
    match CertificateDer::pem_slice_iter(octets).next() {
        Some(Ok(_)) => Ok(()),
        Some(Err(error)) => Err(format!("it is no PEM file: {error}")),
        None => Err("it holds no certificate in PEM form".to_owned()),
    }
}

/// A file that was read.
struct File {
    path: PathBuf,
    /// As the user named it.
    shown: String,
    text: String,
}

fn read_file(inputs: &Inputs) -> Result<Option<File>, Problem> {
    let named = inputs.file.clone().or_else(|| inputs.variable("FUSEBOX_CONFIG").map(PathBuf::from));
    let is_named = named.is_some();
    let written = named.unwrap_or_else(|| PathBuf::from("config.toml"));
    let (path, shown) = (inputs.cwd.join(&written), written.display().to_string());
    let octets = match std::fs::read(&path) {
        Ok(octets) => octets,
        Err(error) if error.kind() == ErrorKind::NotFound && !is_named => return Ok(None),
        Err(error) => {
            return Err(Problem::new(Place::File(shown), "", format!("can't read the configuration: {error}")));
        }
    };
    match String::from_utf8(octets) {
        Ok(text) => Ok(Some(File { path, shown, text })),
        Err(error) => {
            let at = error.utf8_error().valid_up_to();
            let place = line_and_column(&shown, &String::from_utf8_lossy(&error.as_bytes()[..at]), at);
            Err(Problem::new(place, "", "this is not UTF-8: save the file as UTF-8"))
        }
    }
}

/// How the parser words it.
const DUPLICATE: &str = "duplicate key";

fn syntax(error: &Error, text: &str, sources: &Sources) -> Problem {
    let span = error.span().unwrap_or(0..0);
    let place = sources.place(span.start);
    if error.message() == DUPLICATE {
        let key = text.get(span).unwrap_or_default();
        return Problem::new(place, key, format!("`{key}` is written twice: keep one of them"));
    }
    let told = error.message().trim_end_matches(", expected nothing");
    let hint = if told.starts_with("invalid ") { " (a text needs quotes, \"…\")" } else { "" };
    Problem::new(place, "", format!("not TOML: {told}{hint}"))
}

/// Reads the tree as a configuration; each entry that can't be read becomes a problem and is taken out.
fn understand(tree: &mut Tree<'_>, sources: &Sources, problems: &mut Vec<Problem>) -> Config {
    let control = "a control character (line end, NUL, …) can't be part of this text";
    let not_a_table = "this must be a table, in [ ] on a line of its own or in { }";
    let unprintable = tree.unprintable().into_iter().map(|span| (span, control));
    let stray = tree.stray_values(keys::is_table).into_iter().map(|span| (span, not_a_table));
    for (span, message) in unprintable.chain(stray).collect::<Vec<_>>() {
        if let Some(path) = tree.take_out(&span) {
            problems.push(Problem::with_value(sources.place(span.start), keys::dotted(&path), message));
        }
    }
    loop {
        let error = match tree.read::<Config>() {
            Ok(config) => return config,
            Err(error) => error,
        };
        let span = error.span().unwrap_or(0..0);
        let place = sources.place(span.start);
        if problems.len() >= MOST_PROBLEMS {
            problems.push(Problem::new(place, "", "there are more problems than these: put these right first"));
            return Config::default();
        }
        let Some(path) = tree.take_out(&span) else {
            problems.push(Problem::new(place, "", plain(error.message())));
            return Config::default();
        };
        let key = keys::dotted(&path);
        problems.push(match keys::is_known(&path) {
            true => Problem::with_value(place, key, &plain(error.message())),
            false => Problem::new(place, key, keys::unknown(&path)),
        });
    }
}

/// serde's words, put for people who never heard of it.
fn plain(message: &str) -> String {
    let (told, expected) = message.split_once(", expected ").unwrap_or((message, ""));
    if let Some(value) = told.strip_prefix("unknown variant ") {
        return format!("{value} is not possible here: write {expected}");
    }
    let expected = match expected {
        "i64" | "u32" | "usize" => "a whole number",
        "f64" => "a number",
        "a boolean" => "true or false",
        other => other,
    };
    match told.strip_prefix("invalid type: ").or(told.strip_prefix("invalid value: ")) {
        Some(found) => format!("this is a wrong value ({found}): write {expected}"),
        None => message.to_owned(),
    }
}

fn in_order(mut problems: Vec<Problem>, mut warnings: Vec<Warning>) -> Problems {
    problems.sort_by(|a, b| a.place.cmp(&b.place));
    warnings.sort_by(|a, b| a.place.cmp(&b.place));
    Problems { problems, warnings }
}
