//! What a proxy does to header fields, both ways (RFC 9110 section 7.6, RFC 9112 sections 3.2.2 and 6).
//!
//! Pure: from message to message. Most messages carry none of the fields that are looked for here, so one
//! pass over the names decides whether there is anything to do.

use http::header::{self, Entry, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode, Version};

/// The pseudonym of this process in `Via`: new for every process, so that a chain of two Fuseboxes is no
/// loop and a request that comes back is.
#[derive(Clone, Debug)]
pub struct Pseudonym {
    name: String,
    http11: HeaderValue,
    http10: HeaderValue,
    http2: HeaderValue,
}

impl Pseudonym {
    /// A new one, from 64 random bits.
    pub fn random() -> Pseudonym {
        let name = format!("fusebox-{:016x}", fastrand::u64(..));
        let value =
            |version: &str| HeaderValue::try_from(format!("{version} {name}")).unwrap_or(HeaderValue::from_static(""));
        Pseudonym { http11: value("1.1"), http10: value("1.0"), http2: value("2"), name }
    }

    fn received_as(&self, version: Version) -> HeaderValue {
        match version {
            Version::HTTP_2 => self.http2.clone(),
            Version::HTTP_10 => self.http10.clone(),
            _ => self.http11.clone(),
        }
    }

    /// True if a message with these fields has been here before.
    pub fn is_in(&self, headers: &HeaderMap) -> bool {
        headers.get_all(header::VIA).iter().any(|via| {
            via.as_bytes().split(|byte| *byte == b',').any(|hop| {
                let mut words = hop.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
                words.nth(1) == Some(self.name.as_bytes())
            })
        })
    }

    /// The name itself.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Fields that end at the next hop, whatever `Connection` says (RFC 9110 section 7.6.1).
fn is_hop_by_hop(name: &HeaderName) -> bool {
    match *name {
        header::CONNECTION
        | header::TRANSFER_ENCODING
        | header::UPGRADE
        | header::TE
        | header::PROXY_AUTHORIZATION
        | header::PROXY_AUTHENTICATE => true,
        // names without a constant: cheap to tell by their first letters
        ref other => matches!(other.as_str(), "keep-alive" | "proxy-connection" | "proxy-authentication-info"),
    }
}

/// Takes out every field that ends here, and those that `Connection` names.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if !headers.keys().any(is_hop_by_hop) {
        return;
    }
    let mut doomed: Vec<HeaderName> = headers.keys().filter(|name| is_hop_by_hop(name)).cloned().collect();
    for value in headers.get_all(header::CONNECTION) {
        let named = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        doomed.extend(named.filter_map(|name| HeaderName::from_bytes(name).ok()).filter(may_be_named));
    }
    for name in doomed {
        headers.remove(name);
    }
}

/// `Connection` can't take away what frames or routes the message.
fn may_be_named(name: &HeaderName) -> bool {
    !matches!(*name, header::HOST | header::CONTENT_LENGTH | header::VIA)
}

/// The protocol that a request asks to switch to, if `Connection` names `Upgrade` too.
///
/// Not `h2c`: it is between two neighbours, asked with a field that ends here, and obsolete (RFC 9113 section
/// 3.1); what came behind it would be a tunnel in which no status can be seen.
pub fn upgrade_asked(headers: &HeaderMap) -> Option<HeaderValue> {
    let upgrade = headers.get(header::UPGRADE)?;
    if upgrade.as_bytes().split(|byte| *byte == b',').any(|token| token.trim_ascii().eq_ignore_ascii_case(b"h2c")) {
        return None;
    }
    let named = headers.get_all(header::CONNECTION).iter().any(|value| {
        value.as_bytes().split(|byte| *byte == b',').any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"))
    });
    named.then(|| upgrade.clone())
}

/// Makes a request's fields ready for the upstream: `Host` from the target, `Via`, nothing that ends here.
pub fn to_upstream(
    headers: &mut HeaderMap,
    version: Version,
    host: &HeaderValue,
    pseudonym: &Pseudonym,
    upgrade: Option<HeaderValue>,
) {
    strip_hop_by_hop(headers);
    match headers.entry(header::HOST) {
        Entry::Occupied(present) if present.get() == host => {}
        Entry::Occupied(mut present) => {
            present.insert(host.clone());
        }
        Entry::Vacant(vacant) => {
            vacant.insert(host.clone());
        }
    }
    headers.append(header::VIA, pseudonym.received_as(version));
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
}

/// Makes a response's fields ready for the client, and its framing ours.
pub fn to_downstream(headers: &mut HeaderMap, version: Version, status: StatusCode, pseudonym: &Pseudonym) {
    let chunked = headers.contains_key(header::TRANSFER_ENCODING);
    strip_hop_by_hop(headers);
    settle_length(headers, status, chunked);
    strip_fusebox(headers);
    headers.append(header::VIA, pseudonym.received_as(version));
}

/// One `Content-Length`, and only where it frames the body that is sent (RFC 9112 section 6.3).
fn settle_length(headers: &mut HeaderMap, status: StatusCode, chunked: bool) {
    if chunked || status == StatusCode::NO_CONTENT || status.is_informational() {
        headers.remove(header::CONTENT_LENGTH);
        return;
    }
    let mut lengths = headers.get_all(header::CONTENT_LENGTH).iter();
    let Some(first) = lengths.next() else { return };
    if lengths.next().is_none() && first.as_bytes().iter().all(u8::is_ascii_digit) {
        return;
    }
    // the same number several times, or it would not have been accepted
    let number: Vec<u8> = first.as_bytes().iter().copied().take_while(u8::is_ascii_digit).collect();
    if let Ok(number) = HeaderValue::from_bytes(&number) {
        headers.insert(header::CONTENT_LENGTH, number);
    }
}

/// Why a response can't be passed on as it is: a switch of protocols that nobody asked for, or a transfer
/// coding that ends here and was not undone (RFC 9112 section 7).
pub fn response_trouble(status: StatusCode, headers: &HeaderMap) -> Option<&'static str> {
    if status == StatusCode::SWITCHING_PROTOCOLS {
        return Some("it switches protocols, which was not asked for");
    }
    let codings = headers
        .get_all(header::TRANSFER_ENCODING)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let known = |coding: &[u8]| coding.eq_ignore_ascii_case(b"chunked") || coding.eq_ignore_ascii_case(b"identity");
    let strange = codings.map(<[u8]>::trim_ascii).any(|coding| !coding.is_empty() && !known(coding));
    strange.then_some("its transfer coding is not known")
}

/// Takes out of a trailer section what may not come from an origin.
pub fn to_downstream_trailers(trailers: &mut HeaderMap) {
    strip_hop_by_hop(trailers);
    strip_fusebox(trailers);
}

/// `Fusebox-*` fields speak for this proxy: nobody else may.
fn strip_fusebox(headers: &mut HeaderMap) {
    if headers.keys().any(|name| name.as_str().starts_with("fusebox-")) {
        let doomed: Vec<HeaderName> =
            headers.keys().filter(|name| name.as_str().starts_with("fusebox-")).cloned().collect();
        for name in doomed {
            headers.remove(name);
        }
    }
}

/// Why the `Host` field of a request is not acceptable (RFC 9112 section 3.2).
pub fn host_trouble(headers: &HeaderMap, version: Version, method: &Method) -> Option<&'static str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let first = hosts.next();
    if hosts.next().is_some() {
        return Some("more than one Host field");
    }
    match first {
        None if version == Version::HTTP_11 && method != Method::CONNECT => Some("no Host field"),
        Some(host) if host.as_bytes().iter().any(|byte| matches!(byte, b' ' | b'\t' | b',' | b'/' | b'@')) => {
            Some("a malformed Host field")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a name");
            headers.append(name, HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    fn fields(headers: &HeaderMap) -> Vec<String> {
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().expect("text"))).collect()
    }

    #[test]
    fn what_ends_at_the_proxy_is_stripped() {
        let mut headers = map(&[
            ("connection", ""),
            ("connection", "close, X-Secret, content-length, host"),
            ("x-secret", "1"),
            ("content-length", "3"),
            ("proxy-authorization", "Basic c2VjcmV0"),
            ("proxy-connection", "keep-alive"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("authorization", "Bearer kept"),
        ]);
        let pseudonym = Pseudonym::random();
        to_upstream(&mut headers, Version::HTTP_11, &HeaderValue::from_static("a.test"), &pseudonym, None);
        let via = format!("via: 1.1 {}", pseudonym.name());
        let mut left = fields(&headers);
        left.sort();
        assert_eq!(left, ["authorization: Bearer kept", "content-length: 3", "host: a.test", &via]);
    }

    #[test]
    fn the_host_field_is_made_from_the_target() {
        let mut headers = map(&[("host", "b.test"), ("accept", "*/*")]);
        to_upstream(&mut headers, Version::HTTP_10, &HeaderValue::from_static("a.test:81"), &Pseudonym::random(), None);
        assert_eq!(headers[header::HOST], "a.test:81");
        assert!(headers[header::VIA].to_str().expect("text").starts_with("1.0 fusebox-"));
    }

    #[test]
    fn an_upgrade_is_made_anew() {
        let mut headers = map(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        let upgrade = upgrade_asked(&headers);
        assert!(upgrade.is_some());
        to_upstream(&mut headers, Version::HTTP_11, &HeaderValue::from_static("a.test"), &Pseudonym::random(), upgrade);
        assert_eq!(
            (&headers[header::CONNECTION], &headers[header::UPGRADE]),
            (&HeaderValue::from_static("Upgrade"), &HeaderValue::from_static("websocket"))
        );
        assert_eq!(upgrade_asked(&map(&[("upgrade", "websocket")])), None);
    }

    #[test]
    fn framing_is_settled_once() {
        let pseudonym = Pseudonym::random();
        let settle = |fields: &[(&str, &str)], status: u16| {
            let mut headers = map(fields);
            to_downstream(&mut headers, Version::HTTP_11, StatusCode::from_u16(status).expect("a status"), &pseudonym);
            headers
                .get_all(header::CONTENT_LENGTH)
                .iter()
                .map(|v| v.to_str().expect("text").to_owned())
                .collect::<Vec<_>>()
        };
        let none: [&str; 0] = [];
        assert_eq!(settle(&[("content-length", "5"), ("transfer-encoding", "chunked")], 200), none);
        assert_eq!(settle(&[("content-length", "5"), ("content-length", "5")], 200), ["5"]);
        assert_eq!(settle(&[("content-length", "5, 5")], 200), ["5"]);
        assert_eq!(settle(&[("content-length", "5")], 204), none);
        assert_eq!(settle(&[("content-length", "5")], 304), ["5"]);
    }

    #[test]
    fn what_can_not_be_passed_on_is_known() {
        let trouble = |fields: &[(&str, &str)], status| response_trouble(status, &map(fields));
        assert_eq!(trouble(&[("transfer-encoding", "Chunked")], StatusCode::OK), None);
        assert_eq!(trouble(&[], StatusCode::OK), None);
        assert!(trouble(&[("transfer-encoding", "gzip, chunked")], StatusCode::OK).is_some());
        assert!(trouble(&[("transfer-encoding", "gzip")], StatusCode::OK).is_some());
        assert!(trouble(&[], StatusCode::SWITCHING_PROTOCOLS).is_some());
        assert_eq!(upgrade_asked(&map(&[("connection", "upgrade, http2-settings"), ("upgrade", "h2c")])), None);
    }

    #[test]
    fn a_loop_is_known_by_the_whole_name() {
        let pseudonym = Pseudonym::random();
        let via = format!("1.0 other, 1.1 {} (comment)", pseudonym.name());
        assert!(pseudonym.is_in(&map(&[("via", &via)])));
        assert!(!pseudonym.is_in(&map(&[("via", &format!("1.1 x{}", pseudonym.name()))])));
        assert!(!pseudonym.is_in(&map(&[("via", "1.1 fusebox")])));
    }

    #[test]
    fn nobody_else_speaks_as_fusebox() {
        let mut headers = map(&[("fusebox-reason", "open"), ("fusebox-domain", "x"), ("x-fusebox", "kept")]);
        to_downstream(&mut headers, Version::HTTP_2, StatusCode::OK, &Pseudonym::random());
        let names: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names, ["x-fusebox", "via"]);
    }

    #[test]
    fn a_host_field_is_there_once() {
        let get = |fields: &[(&str, &str)], version| host_trouble(&map(fields), version, &Method::GET);
        assert_eq!(get(&[("host", "a.test")], Version::HTTP_11), None);
        assert_eq!(get(&[], Version::HTTP_10), None);
        assert!(get(&[], Version::HTTP_11).is_some());
        assert!(get(&[("host", "a.test"), ("host", "a.test")], Version::HTTP_11).is_some());
        assert!(get(&[("host", "a.test, b.test")], Version::HTTP_11).is_some());
    }
}
