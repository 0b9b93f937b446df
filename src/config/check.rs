//! What no single key can know: values that must fit one another, and files that must be there.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use super::problem::{Problem, Warning};
use super::sections::Config;
use super::source::Sources;
use super::tree::Tree;
use super::{Subject, keys};
use crate::core::policy::{Policy, PolicyPatch, Source};

/// One round of checks over a configuration that can be read.
pub(super) struct Checks<'a, 'i> {
    pub(super) config: &'a Config,
    pub(super) tree: &'a Tree<'i>,
    pub(super) sources: &'a Sources,
    pub(super) problems: Vec<Problem>,
    pub(super) warnings: Vec<Warning>,
}

impl Checks<'_, '_> {
    /// Everything but files and names.
    pub(super) fn run(&mut self) {
        self.listeners();
        self.openness();
        self.user_names();
        self.resolve_names();
        self.policies();
        self.redis();
    }

    fn listeners(&mut self) {
        let (proxy, admin) = (self.config.proxy.listen, self.config.admin.listen);
        let known = !["proxy", "admin"].iter().any(|section| self.tree.is_damaged(&[section, "listen"]));
        if known && collide(proxy, admin) {
            let message =
                format!("proxy.listen ({proxy}) and admin.listen ({admin}) want the same port: change one of them");
            // The later one is more likely the mistake; a default stands nowhere.
            let written = [["proxy", "listen"], ["admin", "listen"]]
                .into_iter()
                .filter_map(|path| Some((self.tree.value(&path)?.span().start, path)));
            if let Some((at, path)) = written.max() {
                self.problem(at, &path, &message);
            }
        }
    }

    fn openness(&mut self) {
        let proxy = &self.config.proxy;
        let guarded = !proxy.users.is_empty() || !proxy.allow_clients.is_empty();
        if proxy.listen.ip().to_canonical().is_loopback() || guarded {
            return;
        }
        if ["users", "allow_clients", "open"].iter().any(|key| self.tree.is_damaged(&["proxy", key])) {
            return;
        }
        let path = ["proxy", "listen"];
        let Some(at) = self.tree.value(&path).map(|value| value.span().start) else { return };
        let listen = proxy.listen;
        if proxy.open {
            let message = format!("{listen} is open: whoever can reach it can use this proxy");
            self.warn(at, &path, &message);
        } else {
            let message = format!(
                "{listen} is not a loopback address, so whoever can reach it could use this proxy: \
                 set `users`, or set `allow_clients`, or say `open = true` in [proxy]"
            );
            self.problem(at, &path, &message);
        }
    }

    fn user_names(&mut self) {
        let at = self.tree.elements(&["proxy", "users"]);
        let names: Vec<&str> = self.config.proxy.users.iter().map(|user| user.name.as_str()).collect();
        for (i, at) in repeated(&names, &at) {
            self.problem(at, &["proxy", "users"], &format!("the user `{}` is named twice: keep one", names[i]));
        }
    }

    fn resolve_names(&mut self) {
        let path = ["egress", "resolve"];
        let at: Vec<usize> = self.tree.names(&path).into_iter().map(|(_, at)| at).collect();
        let names: Vec<&str> = self.config.egress.resolve.iter().map(|(name, _)| name.as_str()).collect();
        for (i, at) in repeated(&names, &at) {
            self.problem(at, &[path[0], path[1], names[i]], &format!("`{}` is named twice: keep one", names[i]));
        }
    }

    fn policies(&mut self) {
        let defaults = &self.config.defaults;
        self.opening(&["defaults"], defaults, &[defaults]);
        for ((name, _), (_, patch)) in self.tree.names(&["domains"]).iter().zip(&self.config.domains) {
            self.opening(&["domains", name], patch, &[defaults, patch]);
        }
    }

    /// An `open_for` above its cap would be cut short without a word.
    fn opening(&mut self, path: &[&str], own: &PolicyPatch, layers: &[&PolicyPatch]) {
        let (policy, _) = Policy::layered(layers.iter().map(|patch| (*patch, Source::Config)));
        let key = match (own.open_for, own.max_open_for) {
            (Some(_), _) => "open_for",
            (None, Some(_)) => "max_open_for",
            (None, None) => return,
        };
        let path: Vec<&str> = path.iter().copied().chain([key]).collect();
        if policy.open_for <= policy.max_open_for || self.is_unsure(&path[..path.len() - 1]) {
            return;
        }
        let Some(at) = self.tree.value(&path).map(|value| value.span().start) else { return };
        let message = format!(
            "`open_for` ({}) is longer than its cap `max_open_for` ({}): lower the one or raise the other",
            policy.open_for, policy.max_open_for
        );
        self.warn(at, &path, &message);
    }

    /// True if a policy is not what was meant, for a damage in its own section or in `[defaults]`.
    fn is_unsure(&self, section: &[&str]) -> bool {
        self.tree.is_damaged(section) || self.tree.is_damaged(&["defaults"])
    }

    fn redis(&mut self) {
        let path = ["redis", "url"];
        if let Some(value) = self.tree.value(&path).filter(|_| self.config.redis.url.is_some()) {
            let message = "shared state is not available in this version: every count stays local";
            self.warn(value.span().start, &path, message);
        }
    }

    /// Makes the path that the key at `path` names absolute, as seen from where it was written, and tries
    /// to open the file.
    pub(super) fn file(
        &mut self,
        path: &[&str],
        written: &Path,
        beside_file: &Path,
        cwd: &Path,
        judge: fn(&[u8]) -> Result<(), String>,
    ) -> PathBuf {
        let at = self.tree.value(path).map_or(0, |value| value.span().start);
        let base = if self.sources.is_in_file(at) { beside_file } else { cwd };
        let absolute = base.join(written);
        let judged = std::fs::read(&absolute).map_err(|error| error.to_string()).and_then(|octets| judge(&octets));
        if let Err(trouble) = judged {
            self.problem(at, path, &format!("can't use `{}`: {trouble}", absolute.display()));
        }
        absolute
    }

    /// Finds the place of each of `complaints` about names. One about an entry that is damaged anyway is
    /// dropped: it would only repeat the damage.
    pub(super) fn names(&mut self, complaints: Vec<(Subject, String)>) {
        let (domains, groups) = (self.tree.names(&["domains"]), self.tree.names(&["groups"]));
        for (subject, message) in complaints {
            let (table, entry) = match subject {
                Subject::Domain(i) => ("domains", domains.get(i)),
                Subject::Group(i, _) => ("groups", groups.get(i)),
            };
            let Some((name, at)) = entry else { continue };
            let follows_group = table == "domains" && name.starts_with("group:") && self.tree.is_damaged(&["groups"]);
            if self.tree.is_damaged(&[table, name]) || follows_group {
                continue;
            }
            let member = match subject {
                Subject::Group(_, Some(member)) => self.tree.elements(&[table, name]).get(member).copied(),
                _ => None,
            };
            self.problem(member.unwrap_or(*at), &[table, name], &message);
        }
    }

    fn problem(&mut self, at: usize, path: &[&str], message: &str) {
        self.problems.push(Problem::with_value(self.sources.place(at), keys::dotted(path), message));
    }

    fn warn(&mut self, at: usize, path: &[&str], message: &str) {
        self.warnings.push(Warning::with_value(self.sources.place(at), keys::dotted(path), message));
    }
}

/// True if both can't be bound: the same port on the same address, or on one that covers the other.
fn collide(a: SocketAddr, b: SocketAddr) -> bool {
    let covers = |a: IpAddr, b: IpAddr| a.is_unspecified() && (a.is_ipv6() || b.is_ipv4());
    let (a_ip, b_ip) = (a.ip(), b.ip());
    a.port() == b.port() && a.port() != 0 && (a_ip == b_ip || covers(a_ip, b_ip) || covers(b_ip, a_ip))
}

/// Each name that stands further ahead too, with its position.
fn repeated(names: &[&str], at: &[usize]) -> Vec<(usize, usize)> {
    let mut seen = std::collections::HashMap::new();
    let mut found = Vec::new();
    // By position, so that of two the lower one is reported, whatever the order of the tree.
    let mut order: Vec<(usize, usize)> = (0..names.len()).zip(at.iter().copied()).collect();
    order.sort_by_key(|(_, at)| *at);
    for (i, at) in order {
        if seen.insert(names[i], at).is_some() {
            found.push((i, at));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_collide_where_the_system_would_refuse() {
        for (a, b, expected) in [
            ("127.0.0.1:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "127.0.0.1:2", false),
            ("127.0.0.1:0", "127.0.0.1:0", false),
            ("0.0.0.0:1", "127.0.0.1:1", true),
            ("127.0.0.1:1", "[::]:1", true),
            ("0.0.0.0:1", "[::1]:1", false),
            ("127.0.0.1:1", "127.0.0.2:1", false),
        ] {
            let parse = |text: &str| text.parse::<SocketAddr>().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(collide(parse(a), parse(b)), expected, "{a} {b}");
            assert_eq!(collide(parse(b), parse(a)), expected, "{b} {a}");
        }
    }
}
