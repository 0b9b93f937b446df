//! What the environment and the command line say, laid over the file.

use std::path::PathBuf;

use toml::Spanned;
use toml::de::DeValue;

use super::keys;
use super::problem::{Place, Warning};
use super::sections::Config;
use super::source::Sources;
use super::tree::{Node, Path, Tree, shifted};

/// What every variable of Fusebox starts with.
pub(super) const PREFIX: &str = "FUSEBOX_";

/// Variables with the prefix that are no keys.
const OTHER_VARIABLES: [&str; 2] = ["FUSEBOX_CONFIG", "FUSEBOX_DATA_DIR"];

/// What the command line says; `None` where it is silent.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// `--listen`: sets `proxy.listen`.
    pub listen: Option<String>,
    /// `--admin-listen`: sets `admin.listen`.
    pub admin_listen: Option<String>,
    /// `--data-dir`: see [`data_dir`](super::data_dir).
    pub data_dir: Option<PathBuf>,
}

/// Everything from outside that a configuration depends on. Nothing else is read but the files it names.
#[derive(Clone, Default)]
pub struct Inputs {
    /// `--config`. For a reload: the path that the first load found.
    pub file: Option<PathBuf>,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// The command line.
    pub flags: Flags,
    /// The working directory, absolute.
    pub cwd: PathBuf,
}

impl std::fmt::Debug for Inputs {
    /// Without the environment, which holds secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Inputs { file, env: _, flags, cwd } = self;
        f.debug_struct("Inputs").field("file", file).field("flags", flags).field("cwd", cwd).finish_non_exhaustive()
    }
}

impl Inputs {
    /// A variable's text; a blank one counts as unset.
    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        let found = self.env.iter().rev().find(|(n, _)| n == name)?;
        Some(found.1.trim()).filter(|text| !text.is_empty())
    }
}

/// Lays every variable over `tree`; what is no key becomes a warning.
pub(super) fn lay_variables<'i>(inputs: &'i Inputs, tree: &mut Tree<'i>, sources: &mut Sources) -> Vec<Warning> {
    let mut warnings = Vec::new();
    if let Some(url) = inputs.variable("REDIS_URL") {
        let start = sources.append(Place::Variable("REDIS_URL".to_owned()), url.len());
        tree.put(&["redis".to_owned(), "url".to_owned()], text(url, start));
    }
    let mut names: Vec<&str> = inputs.env.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let Some(rest) = name.strip_prefix(PREFIX) else { continue };
        let Some(text) = inputs.variable(name).filter(|_| !OTHER_VARIABLES.contains(&name)) else { continue };
        let path: Path = rest.to_lowercase().split("__").map(str::to_owned).collect();
        let place = Place::Variable(name.to_owned());
        if keys::is_known(&path) && (!keys::is_table(&path) || text.starts_with('{')) {
            let start = sources.append(place, text.len());
            lay(tree, &path, value(&path, text, start));
        } else {
            let hint = keys::nearest_variable(&path).map_or(String::new(), |known| format!(": did you mean {known}?"));
            warnings.push(Warning::new(place, "", format!("this variable sets no key and is ignored{hint}")));
        }
    }
    warnings
}

/// Lays the flags over `tree`.
pub(super) fn lay_flags<'i>(flags: &'i Flags, tree: &mut Tree<'i>, sources: &mut Sources) {
    let given = [("--listen", "proxy", &flags.listen), ("--admin-listen", "admin", &flags.admin_listen)];
    for (flag, section, address) in given {
        if let Some(address) = address {
            let start = sources.append(Place::Flag(flag), address.len());
            tree.put(&[section.to_owned(), "listen".to_owned()], text(address, start));
        }
    }
}

/// Puts `value` at `path`; a table is laid over what is there, entry by entry.
fn lay<'i>(tree: &mut Tree<'i>, path: &[String], value: Node<'i>) {
    if !value.get_ref().is_table() {
        return tree.put(path, value);
    }
    let DeValue::Table(entries) = value.into_inner() else { return };
    for (name, value) in entries {
        let below: Path = path.iter().cloned().chain([name.into_inner().into_owned()]).collect();
        lay(tree, &below, value);
    }
}

/// What `text` means for the key at `path`: a TOML value if that is what the key takes, else a plain
/// string, else a list separated by commas. If none will do, the likeliest, for its error.
fn value<'i>(path: &[String], text_given: &'i str, start: usize) -> Node<'i> {
    let toml = DeValue::parse(text_given).ok().map(|node| shifted(node, start));
    let string = text(text_given, start);
    if keys::is_table(path) {
        return toml.unwrap_or(string);
    }
    let is_list = fits(path, &Spanned::new(0..0, DeValue::Array(Default::default())));
    let list = by_commas(path, text_given, start);
    let likeliest = match &toml {
        Some(toml) if !is_list || toml.get_ref().is_array() => toml,
        _ if is_list => &list,
        _ => &string,
    };
    let fitting = toml.iter().chain([&string, &list]).find(|candidate| fits(path, candidate));
    fitting.unwrap_or(likeliest).clone()
}

/// True if the key at `path` takes this value.
fn fits(path: &[String], value: &Node<'_>) -> bool {
    let mut alone = Tree::default();
    alone.put(path, value.clone());
    alone.read::<Config>().is_ok()
}

fn by_commas<'i>(path: &[String], whole: &'i str, start: usize) -> Node<'i> {
    // An argon2 hash has commas of its own, but only a name is followed by a colon.
    let is_users = path.len() == 2 && path[0] == "proxy" && path[1] == "users";
    let mut cuts = vec![0];
    for (at, _) in whole.match_indices(',') {
        let next = whole[at + 1..].split(',').next().unwrap_or_default();
        if !is_users || next.contains(':') {
            cuts.push(at + 1);
        }
    }
    let mut elements = Vec::new();
    for (i, from) in cuts.iter().enumerate() {
        let to = cuts.get(i + 1).map_or(whole.len(), |next| next - 1);
        let piece = whole[*from..to].trim();
        if !piece.is_empty() {
            elements.push(element(piece, start + from));
        }
    }
    Spanned::new(start..start + whole.len(), DeValue::Array(elements.into_iter().collect()))
}

/// A number where it is one (ports are), else a string.
fn element(piece: &str, start: usize) -> Node<'_> {
    match DeValue::parse(piece) {
        Ok(node) if node.get_ref().is_integer() || node.get_ref().is_str() => shifted(node, start),
        _ => text(piece, start),
    }
}

fn text(text: &str, start: usize) -> Node<'_> {
    Spanned::new(start..start + text.len(), DeValue::String(text.into()))
}
