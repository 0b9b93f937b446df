//! How single values are read. Every message says what would be right; none echoes a secret.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use argon2::password_hash::phc::PasswordHash;
use ipnet::IpNet;
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::sections::{ConnectPorts, Denied, HttpsMode, ParentProxy, Secret, User};
use crate::core::policy::PolicyPatch;
use crate::core::time::Span;

/// Reads a text with `parse`. The error is made while the text is visited, so that it points at this very
/// element of a list and not at the list.
struct Text<T> {
    wanted: &'static str,
    parse: fn(&str) -> Result<T, String>,
}

// Not derived: that would ask for a `T` that can be copied.
impl<T> Clone for Text<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Text<T> {}

impl<T> Visitor<'_> for Text<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.wanted)
    }
    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        (self.parse)(text).map_err(E::custom)
    }
}

impl<'de, T> DeserializeSeed<'de> for Text<T> {
    type Value = T;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// Reads a list, each element as the seed says.
struct List<S>(S);

impl<'de, S: DeserializeSeed<'de> + Copy> Visitor<'de> for List<S> {
    type Value = Vec<S::Value>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list, written in [ ]")
    }
    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        // serde's own message would echo the text, which may be a user's hash.
        Err(E::custom("a single text stands where a list is wanted: put it in [ ]"))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(element) = seq.next_element_seed(self.0)? {
            list.push(element);
        }
        Ok(list)
    }
}

/// Reads a table with free names in the order of the tree.
struct Entries<S> {
    name: fn(&str) -> Result<String, String>,
    value: S,
}

impl<'de, S: DeserializeSeed<'de> + Copy> Visitor<'de> for Entries<S> {
    type Value = Vec<(String, S::Value)>;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while let Some(name) = map.next_key_seed(Text { wanted: "a name", parse: self.name })? {
            entries.push((name, map.next_value_seed(self.value)?));
        }
        Ok(entries)
    }
}

/// Whatever reads itself, as a seed.
struct Itself<T>(std::marker::PhantomData<T>);

impl<T> Clone for Itself<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Itself<T> {}

impl<'de, T: serde::Deserialize<'de>> DeserializeSeed<'de> for Itself<T> {
    type Value = T;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::deserialize(deserializer)
    }
}

/// A list as a seed, for lists inside of tables.
#[derive(Clone, Copy)]
struct ListOf<S>(S);

impl<'de, S: DeserializeSeed<'de> + Copy> DeserializeSeed<'de> for ListOf<S> {
    type Value = Vec<S::Value>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(List(self.0))
    }
}

const NET: Text<IpNet> = Text { wanted: "a network such as \"10.0.0.0/8\"", parse: parse_net };
const HOST: Text<String> = Text { wanted: "a host name", parse: parse_host };
const PATTERN: Text<String> = Text { wanted: "a host name or \"*.\" and a host name", parse: parse_pattern };
const WORD: Text<String> = Text { wanted: "a text", parse: |text| Ok(text.to_owned()) };
const USER: Text<User> = Text { wanted: "a text \"name:$argon2id$…\"", parse: parse_user };

pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    Text { wanted: "an address such as \"127.0.0.1:3128\"", parse: parse_address }.deserialize(deserializer)
}

pub(super) fn users<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<User>, D::Error> {
    ListOf(USER).deserialize(deserializer)
}

pub(super) fn nets<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<IpNet>, D::Error> {
    ListOf(NET).deserialize(deserializer)
}

pub(super) fn hosts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    ListOf(HOST).deserialize(deserializer)
}

pub(super) fn patterns<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    ListOf(PATTERN).deserialize(deserializer)
}

pub(super) fn path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let parse = |text: &str| if text.is_empty() { Err("an empty path".to_owned()) } else { Ok(PathBuf::from(text)) };
    Text { wanted: "the path of a file", parse }.deserialize(deserializer).map(Some)
}

pub(super) fn redis_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    Text { wanted: "a URL such as \"redis://127.0.0.1:6379/0\"", parse: parse_redis_url }
        .deserialize(deserializer)
        .map(Some)
}

pub(super) fn https_mode<'de, D: Deserializer<'de>>(deserializer: D) -> Result<HttpsMode, D::Error> {
    let parse = |text: &str| match text {
        "tunnel" => Ok(HttpsMode::Tunnel),
        "intercept" => Err("interception is not available in this version: write \"tunnel\"".to_owned()),
        other => Err(format!("`{other}` is not possible here: write \"tunnel\"")),
    };
    Text { wanted: "\"tunnel\"", parse }.deserialize(deserializer)
}

pub(super) fn parent_proxy<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ParentProxy>, D::Error> {
    // Not echoed: it may hold a password.
    <serde::de::IgnoredAny as serde::Deserialize>::deserialize(deserializer)?;
    Err(D::Error::custom("a parent proxy is not available in this version: take the key out"))
}

pub(super) fn span<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
    let span: Span = serde::Deserialize::deserialize(deserializer)?;
    if span.is_zero() { Err(D::Error::custom("must be longer than zero")) } else { Ok(span) }
}

/// A whole number from `LEAST` to `MOST`.
pub(super) fn count<'de, const LEAST: usize, const MOST: usize, D>(deserializer: D) -> Result<usize, D::Error>
where
    D: Deserializer<'de>,
{
    struct Count<const LEAST: usize, const MOST: usize>;
    impl<const LEAST: usize, const MOST: usize> Visitor<'_> for Count<LEAST, MOST> {
        type Value = usize;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "a whole number from {LEAST} to {MOST}")
        }
        fn visit_i64<E: Error>(self, number: i64) -> Result<usize, E> {
            match usize::try_from(number) {
                Ok(count) if (LEAST..=MOST).contains(&count) => Ok(count),
                _ => Err(E::custom(format!("{number} is not a whole number from {LEAST} to {MOST}"))),
            }
        }
        fn visit_u64<E: Error>(self, number: u64) -> Result<usize, E> {
            self.visit_i64(i64::try_from(number).unwrap_or(i64::MAX))
        }
    }
    deserializer.deserialize_any(Count::<LEAST, MOST>)
}

pub(super) fn workers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    count::<1, 1024, D>(deserializer).map(Some)
}

pub(super) fn connect_ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ConnectPorts, D::Error> {
    #[derive(Clone, Copy)]
    struct Port;
    impl<'de> DeserializeSeed<'de> for Port {
        type Value = u16;
        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<u16, D::Error> {
            count::<1, 65_535, D>(deserializer).map(|port| port as u16)
        }
    }
    struct Ports;
    impl<'de> Visitor<'de> for Ports {
        type Value = ConnectPorts;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list of ports such as [80, 443], or \"any\"")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<ConnectPorts, E> {
            if text == "any" {
                Ok(ConnectPorts::Any)
            } else {
                Err(E::custom("write a list of ports such as [80, 443], or \"any\""))
            }
        }
        fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<ConnectPorts, A::Error> {
            List(Port).visit_seq(seq).map(ConnectPorts::Only)
        }
    }
    deserializer.deserialize_any(Ports)
}

pub(super) fn denied<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Denied>, D::Error> {
    let parse = |text: &str| match text {
        "private" => Ok(Denied::Private),
        net => parse_net(net).map(Denied::Net).map_err(|message| format!("{message}, or \"private\"")),
    };
    ListOf(Text { wanted: "a network such as \"10.0.0.0/8\", or \"private\"", parse }).deserialize(deserializer)
}

pub(super) fn domains<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, PolicyPatch)>, D::Error> {
    let value = Itself::<PolicyPatch>(std::marker::PhantomData);
    deserializer.deserialize_any(Entries { name: |name| Ok(name.to_owned()), value })
}

pub(super) fn groups<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, Vec<String>)>, D::Error> {
    deserializer.deserialize_any(Entries { name: |name| Ok(name.to_owned()), value: ListOf(WORD) })
}

pub(super) fn resolve<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, Vec<IpAddr>)>, D::Error> {
    #[derive(Clone, Copy)]
    struct Addresses;
    const IP: Text<IpAddr> = Text { wanted: "an IP address", parse: parse_ip };
    impl<'de> Visitor<'de> for Addresses {
        type Value = Vec<IpAddr>;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an IP address or a list of them")
        }
        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<IpAddr>, E> {
            parse_ip(text).map(|ip| vec![ip]).map_err(E::custom)
        }
        fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Vec<IpAddr>, A::Error> {
            match List(IP).visit_seq(seq)? {
                list if list.is_empty() => Err(A::Error::custom("an empty list: name at least one IP address")),
                list => Ok(list),
            }
        }
    }
    impl<'de> DeserializeSeed<'de> for Addresses {
        type Value = Vec<IpAddr>;
        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<IpAddr>, D::Error> {
            deserializer.deserialize_any(self)
        }
    }
    deserializer.deserialize_any(Entries { name: parse_pattern, value: Addresses })
}

fn parse_address(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is no address: write IP and port such as \"127.0.0.1:3128\" or \"[::1]:3128\""))
}

fn parse_ip(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("`{text}` is no IP address"))
}

/// A network, its host bits cleared; an address alone is the network of just itself.
fn parse_net(text: &str) -> Result<IpNet, String> {
    let net = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    net.map(|net| net.trunc()).map_err(|_| format!("`{text}` is no network: write for instance \"10.0.0.0/8\""))
}

/// An IP address, or a host name in lower case and its ASCII form.
fn parse_host(text: &str) -> Result<String, String> {
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        return Ok(ip.to_string());
    }
    let wrong = || format!("`{text}` is no host name: write it without scheme, port and path");
    if text.contains(|c: char| !(c.is_alphanumeric() || matches!(c, '.' | '-' | '_'))) {
        return Err(wrong());
    }
    let ascii = idna::domain_to_ascii(text).map_err(|_| wrong())?;
    let name = ascii.strip_suffix('.').unwrap_or(&ascii);
    let right = name.len() <= 253 && name.split('.').all(|label| (1..=63).contains(&label.len()));
    if right { Ok(name.to_owned()) } else { Err(wrong()) }
}

/// A host name, or `*.` and a host name.
fn parse_pattern(text: &str) -> Result<String, String> {
    match text.strip_prefix("*.") {
        Some(rest) => Ok(format!("*.{}", parse_host(rest)?)),
        None => parse_host(text),
    }
}

fn parse_redis_url(text: &str) -> Result<Secret, String> {
    let known = text.split_once("://").is_some_and(|(scheme, rest)| scheme.starts_with("redis") && !rest.is_empty());
    if known { Ok(Secret::new(text)) } else { Err("not a redis:// or rediss:// URL".to_owned()) }
}

/// `name:$argon2id$…`. The message never holds the text: it may be a password.
fn parse_user(text: &str) -> Result<User, String> {
    const HOW: &str = "write \"name:$argon2id$…\" (`fusebox hash-password` makes it)";
    let Some((name, hash)) = text.split_once(':') else { return Err(format!("a user without a `:`: {HOW}")) };
    if name.is_empty() {
        return Err(format!("a user without a name: {HOW}"));
    }
    if !hash.starts_with('$') {
        return Err(format!("no hash follows the first `:`, and a name can't contain one: {HOW}"));
    }
    let phc = PasswordHash::new(hash).map_err(|_| format!("a hash that is damaged: {HOW}"))?;
    if phc.algorithm.as_str() != "argon2id" {
        return Err(format!("a hash of another kind than argon2id: {HOW}"));
    }
    if phc.salt.is_none() || phc.hash.is_none() || argon2::Params::try_from(&phc).is_err() {
        return Err(format!("a hash that is cut short or damaged: {HOW}"));
    }
    Ok(User { name: name.to_owned(), hash: Secret::new(hash) })
}
