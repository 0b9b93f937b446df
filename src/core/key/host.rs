//! The host of a URL, and `host[:port]`, in one canonical spelling.
//!
//! One site has many spellings (case, a trailing dot, Unicode or punycode, an IPv4 address inside an
//! IPv6 one), and a spelling that made its own key would dodge the breaker. What has no canonical
//! spelling is refused rather than guessed: resolvers read `127.1` or `0x7f000001` as addresses.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use idna::uts46::{AsciiDenyList, DnsLength, Hyphens, Uts46};

/// Longest label in octets (RFC 1035 section 2.3.4).
const LONGEST_LABEL: usize = 63;

/// Longest name in octets, without the trailing dot (RFC 1035 section 2.3.4).
const LONGEST_NAME: usize = 253;

/// Beyond this many octets no text can map to a name that fits; spares us the IDNA work on a flood.
const LONGEST_TEXT: usize = 4 * LONGEST_NAME;

/// Every ASCII character that may not come out of the IDNA mapping either (`％` maps to `%`).
const DENIED: AsciiDenyList = AsciiDenyList::new(true, "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}~");

/// Why a text is no host. No message repeats a control character, a quote or a line end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// Nothing there.
    #[error("the host is empty")]
    Empty,
    /// `a..b`, `.a` or `a..`.
    #[error("the host has an empty label (a dot at its start, or two in a row)")]
    EmptyLabel,
    /// RFC 1035 section 2.3.4.
    #[error("a label of the host is longer than {LONGEST_LABEL} octets")]
    LabelTooLong,
    /// RFC 1035 section 2.3.4.
    #[error("the host is longer than {LONGEST_NAME} octets")]
    NameTooLong,
    /// A character that no host may have.
    #[error("a host cannot have the character {}", Shown(*.0))]
    Forbidden(char),
    /// What UTS 46 refuses, an undecodable `xn--` label included.
    #[error("the host is not a valid international domain name (UTS 46)")]
    Idna,
    /// The last label is a number, but the whole is no dotted quad.
    #[error("the host looks like a number; an IPv4 address must be written as four decimal numbers, such as 192.0.2.7")]
    NotDottedQuad,
    /// `2001:db8::1`, with which a port would be ambiguous.
    #[error("an IPv6 address must stand in brackets, such as [2001:db8::1]")]
    Unbracketed,
    /// What stands in brackets is no IPv6 address, or the bracket is not closed.
    #[error("the brackets do not hold an IPv6 address")]
    BadIpv6,
    /// `fe80::1%eth0`: means nothing outside of one machine (RFC 9844).
    #[error("an IPv6 zone id cannot be used here")]
    ZoneId,
    /// `h:0`, `h:`, `h:99999`, `h:44x`.
    #[error("the port must be a number from 1 to 65535")]
    Port,
    /// `user:password@host`.
    #[error("a user name or password cannot stand before the host here")]
    UserInfo,
    /// A URL whose scheme is not ours to fetch.
    #[error("only http, https, ws and wss URLs have a domain")]
    Scheme,
    /// `group:NAME` that no configuration names.
    #[error("there is no such group")]
    UnknownGroup,
}

/// A character as it may stand in a log line or header: itself if it is harmless, else its number.
struct Shown(char);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            ' ' => f.write_str("space"),
            '"' | '\'' | '`' | '\\' | '<' | '>' => write!(f, "U+{:04X}", u32::from(self.0)),
            c if c.is_ascii_graphic() => write!(f, "{c}"),
            c => write!(f, "U+{:04X}", u32::from(c)),
        }
    }
}

/// The host of a URL in canonical form. Made by [`Host::parse`] alone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A DNS name: lower-case ASCII, punycode where it was Unicode, no trailing dot.
    Name(Arc<str>),
    /// An IPv4 address, also one that was written inside an IPv6 address (`::ffff:192.0.2.7`).
    V4(Ipv4Addr),
    /// Any other IPv6 address.
    V6(Ipv6Addr),
}

impl Host {
    /// Reads the host of a URL, without its port; an IPv6 address stands in brackets.
    ///
    /// # Errors
    ///
    /// A [`HostError`] for whatever is not one DNS name or address, fit to be shown to the client.
    pub fn parse(text: &str) -> Result<Host, HostError> {
        if let Some(rest) = text.strip_prefix('[') {
            return parse_ipv6(rest.strip_suffix(']').ok_or(HostError::BadIpv6)?);
        }
        if text.contains(':') && Ipv6Addr::from_str(text).is_ok() {
            return Err(HostError::Unbracketed);
        }
        let ascii = map_to_ascii(text)?;
        let name = ascii.strip_suffix('.').unwrap_or(&ascii);
        check_labels(name)?;
        if ends_in_number(name) {
            return name.parse().map(Host::V4).map_err(|_| HostError::NotDottedQuad);
        }
        Ok(Host::Name(name.into()))
    }

    /// The DNS name, if it is one.
    pub fn dns_name(&self) -> Option<&str> {
        match self {
            Host::Name(name) => Some(name),
            Host::V4(_) | Host::V6(_) => None,
        }
    }

    /// The address, if it is one.
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Host::Name(_) => None,
            Host::V4(address) => Some(IpAddr::V4(*address)),
            Host::V6(address) => Some(IpAddr::V6(*address)),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Host::Name(name) => f.write_str(name),
            Host::V4(address) => write!(f, "{address}"),
            Host::V6(address) => write!(f, "[{address}]"),
        }
    }
}

impl FromStr for Host {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Host, HostError> {
        Host::parse(text)
    }
}

/// `host` or `host:port`, as in a CONNECT target (RFC 9110 section 7.1) or a Host field.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Authority {
    /// The host.
    pub host: Host,
    /// The port, if one is written.
    pub port: Option<u16>,
}

impl Authority {
    /// Reads `host` or `host:port`, and nothing around it.
    ///
    /// # Errors
    ///
    /// As [`Host::parse`]; besides, for a port that is empty, 0, over 65535 or not only digits, and for
    /// user information.
    pub fn parse(text: &str) -> Result<Authority, HostError> {
        if text.contains('@') {
            return Err(HostError::UserInfo);
        }
        let host_ends = if text.starts_with('[') {
            text.find(']').ok_or(HostError::BadIpv6)? + 1
        } else {
            text.find(':').unwrap_or(text.len())
        };
        let (host, rest) = text.split_at(host_ends);
        let port = match rest.strip_prefix(':') {
            None if rest.is_empty() => None,
            None => return Err(HostError::BadIpv6),
            Some(port) if port.contains(':') && !text.starts_with('[') => return Err(HostError::Unbracketed),
            Some(port) => Some(parse_port(port)?),
        };
        Ok(Authority { host: Host::parse(host)?, port })
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            None => self.host.fmt(f),
            Some(port) => write!(f, "{}:{port}", self.host),
        }
    }
}

impl FromStr for Authority {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Authority, HostError> {
        Authority::parse(text)
    }
}

fn parse_port(text: &str) -> Result<u16, HostError> {
    // `u16::from_str` takes a leading plus.
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(HostError::Port);
    }
    text.parse().ok().filter(|port| *port != 0).ok_or(HostError::Port)
}

fn parse_ipv6(text: &str) -> Result<Host, HostError> {
    if text.contains('%') {
        return Err(HostError::ZoneId);
    }
    let address = Ipv6Addr::from_str(text).map_err(|_| HostError::BadIpv6)?;
    Ok(address.to_ipv4_mapped().map_or(Host::V6(address), Host::V4))
}

/// The name in lower-case ASCII. Borrowed, and without a look at the IDNA tables, in the usual case.
fn map_to_ascii(text: &str) -> Result<Cow<'_, str>, HostError> {
    if text.is_empty() {
        return Err(HostError::Empty);
    }
    if text.len() > LONGEST_TEXT {
        return Err(HostError::NameTooLong);
    }
    if let Some(forbidden) = text.chars().find(|c| c.is_ascii() && !may_stand_in_host(*c)) {
        return Err(HostError::Forbidden(forbidden));
    }
    let lower = if text.bytes().any(|byte| byte.is_ascii_uppercase()) {
        Cow::Owned(text.to_ascii_lowercase())
    } else {
        Cow::Borrowed(text)
    };
    if lower.is_ascii() && !lower.starts_with("xn--") && !lower.contains(".xn--") {
        return Ok(lower);
    }
    Uts46::new()
        .to_ascii(lower.as_bytes(), DENIED, Hyphens::Allow, DnsLength::Ignore)
        .map(|mapped| Cow::Owned(mapped.into_owned()))
        .map_err(|_| HostError::Idna)
}

/// The underscore is in no host name by the letter of RFC 952, but in real ones.
fn may_stand_in_host(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')
}

fn check_labels(name: &str) -> Result<(), HostError> {
    if name.len() > LONGEST_NAME {
        return Err(HostError::NameTooLong);
    }
    for label in name.split('.') {
        match label.len() {
            0 => return Err(HostError::EmptyLabel),
            1..=LONGEST_LABEL => {}
            _ => return Err(HostError::LabelTooLong),
        }
    }
    Ok(())
}

/// The "ends in a number" rule of the WHATWG URL Standard, section 3.5: such a name is an IPv4 address
/// or nothing, since resolvers would read it as one.
fn ends_in_number(name: &str) -> bool {
    let last = name.rsplit('.').next().unwrap_or(name);
    match last.strip_prefix("0x") {
        Some(hex) => hex.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => last.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(text: &str) -> Result<String, HostError> {
        Host::parse(text).map(|host| host.to_string())
    }

    #[test]
    fn one_host_has_one_spelling() {
        for (text, canonical) in [
            ("medium.com", "medium.com"),
            ("MEDIUM.com.", "medium.com"),
            ("r3---sn-4g5e.example", "r3---sn-4g5e.example"),
            ("_dmarc.a_b.example", "_dmarc.a_b.example"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example.", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
            ("faß.test", "xn--fa-hia.test"),
            ("食狮。公司。cn", "xn--85x722f.xn--55qx5d.cn"),
            ("192.0.2.7", "192.0.2.7"),
            ("1.2.3.4.", "1.2.3.4"),
            ("１９２.0.2.7", "192.0.2.7"),
            ("[2001:DB8:0::1]", "[2001:db8::1]"),
            ("[::ffff:192.0.2.7]", "192.0.2.7"),
            ("[::ffff:c000:207]", "192.0.2.7"),
            ("[::192.0.2.7]", "[::c000:207]"),
            ("1.2.3.4.test", "1.2.3.4.test"),
            ("0xg", "0xg"),
        ] {
            assert_eq!(shown(text).as_deref(), Ok(canonical), "{text}");
        }
    }

    #[test]
    fn what_has_no_canonical_spelling_is_refused() {
        let long_label = format!("{}.test", "a".repeat(64));
        let long_name = format!("{}b", "ab.".repeat(85));
        for (text, error) in [
            ("", HostError::Empty),
            (".", HostError::EmptyLabel),
            ("example.test..", HostError::EmptyLabel),
            (".com", HostError::EmptyLabel),
            ("a..b", HostError::EmptyLabel),
            ("\u{ad}.test", HostError::EmptyLabel),
            (&long_label, HostError::LabelTooLong),
            (&long_name, HostError::NameTooLong),
            (&"a.".repeat(5_000), HostError::NameTooLong),
            ("127.1", HostError::NotDottedQuad),
            ("0", HostError::NotDottedQuad),
            ("0x", HostError::NotDottedQuad),
            ("0x1", HostError::NotDottedQuad),
            ("0xA9FEA9FE", HostError::NotDottedQuad),
            ("2130706433", HostError::NotDottedQuad),
            ("0251.0376.0251.0376", HostError::NotDottedQuad),
            ("169.254.43518", HostError::NotDottedQuad),
            ("1.2.3.4.5", HostError::NotDottedQuad),
            ("256.1.1.1", HostError::NotDottedQuad),
            ("a.09", HostError::NotDottedQuad),
            ("１２７.1", HostError::NotDottedQuad),
            ("2001:db8::1", HostError::Unbracketed),
            ("[::1", HostError::BadIpv6),
            ("[::1].", HostError::BadIpv6),
            ("[192.0.2.7]", HostError::BadIpv6),
            ("[]", HostError::BadIpv6),
            ("[fe80::1%eth0]", HostError::ZoneId),
            ("[fe80::1%25eth0]", HostError::ZoneId),
            ("u.test%0d%0aX", HostError::Forbidden('%')),
            ("u.test\r\nX", HostError::Forbidden('\r')),
            ("u\0.test", HostError::Forbidden('\0')),
            ("u .test", HostError::Forbidden(' ')),
            ("ü\".test", HostError::Forbidden('"')),
            ("*.test", HostError::Forbidden('*')),
            ("h:1", HostError::Forbidden(':')),
            ("％.test", HostError::Idna),
            ("a\u{85}b.test", HostError::Idna),
            ("xn--\u{fc}.test", HostError::Idna),
            ("xn--.test", HostError::Idna),
            ("xn--0000h.test", HostError::Idna),
        ] {
            assert_eq!(Host::parse(text), Err(error), "{text:?}");
        }
        for c in "/@:\\\"<>^|?#[]%' \r\n\t\0\u{7f}".chars() {
            assert!(Host::parse(&format!("a{c}b.test")).is_err(), "{c:?}");
        }
    }

    #[test]
    fn an_authority_is_a_host_and_perhaps_a_port() {
        for (text, canonical) in [
            ("U.test:443", "u.test:443"),
            ("u.test", "u.test"),
            ("u.test.:65535", "u.test:65535"),
            ("[::1]:8080", "[::1]:8080"),
            ("[::1]", "[::1]"),
            ("[::ffff:1.2.3.4]:1", "1.2.3.4:1"),
        ] {
            assert_eq!(Authority::parse(text).map(|a| a.to_string()).as_deref(), Ok(canonical), "{text}");
        }
        for (text, error) in [
            ("u.test:", HostError::Port),
            ("[::1]:", HostError::Port),
            ("u.test:0", HostError::Port),
            ("u.test:99999", HostError::Port),
            ("u.test:+44", HostError::Port),
            ("u.test:44x", HostError::Port),
            ("h:1/x", HostError::Port),
            ("h/x", HostError::Forbidden('/')),
            ("2001:db8::1:443", HostError::Unbracketed),
            ("::1", HostError::Unbracketed),
            ("[::1", HostError::BadIpv6),
            ("[::1]443", HostError::BadIpv6),
            ("user@h:1", HostError::UserInfo),
            ("a:b@h:1", HostError::UserInfo),
            (":443", HostError::Empty),
            ("", HostError::Empty),
            ("u.test%0d%0aX:443", HostError::Forbidden('%')),
        ] {
            assert_eq!(Authority::parse(text), Err(error), "{text:?}");
        }
    }

    #[test]
    fn x8_no_message_repeats_what_could_break_a_line() {
        for number in 0..=0x2100 {
            let Some(c) = char::from_u32(number) else { continue };
            let message = HostError::Forbidden(c).to_string();
            assert!(message.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{message:?}");
            assert!(!message.contains(['"', '\'', '\\', '<', '>']), "{message:?}");
        }
        assert_eq!(HostError::Forbidden('\r').to_string(), "a host cannot have the character U+000D");
        assert_eq!(HostError::Forbidden('%').to_string(), "a host cannot have the character %");
    }

    fn hostlike() -> impl Strategy<Value = String> {
        prop_oneof![
            any::<String>(),
            "[a-zA-Z0-9_.-]{0,30}",
            "(xn--)?[a-z0-9-]{0,12}\\.(xn--)?[a-z0-9-]{1,12}",
            "\\PC{0,12}\\.[a-zß-ÿ食狮公司]{1,4}\\.?",
            "\\[[0-9a-fA-F:.]{0,24}\\]",
            "[0-9a-fx.]{0,20}",
        ]
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_is_idempotent(text in hostlike()) {
            let _ = Authority::parse(&text);
            if let Ok(host) = Host::parse(&text) {
                let shown = host.to_string();
                prop_assert!(shown.bytes().all(|b| b.is_ascii_graphic() && !b"\"'\\%/@<>".contains(&b)), "{}", shown);
                prop_assert_eq!(Host::parse(&shown), Ok(host));
            }
        }
    }
}
