//! What an answer means: status or failure to success, error or not counted; and `Retry-After`.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::time::{Micros, SECOND};

/// A way in which no response head came, of those that a policy may count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// Refused, unreachable, reset, or no connection in time.
    Connect,
    /// Connected, but no response head in time.
    Timeout,
    /// The TLS handshake or the certificate failed.
    Tls,
}

impl Failure {
    /// Every failure.
    pub const ALL: [Failure; 3] = [Failure::Connect, Failure::Timeout, Failure::Tls];

    /// The name in `errors`, in metrics and in `last_status`.
    pub const fn name(self) -> &'static str {
        match self {
            Failure::Connect => "connect",
            Failure::Timeout => "timeout",
            Failure::Tls => "tls",
        }
    }

    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

/// What came of a request that was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A response head arrived. `retry_after` is its `Retry-After` in microseconds, if it has a valid one.
    Status {
        /// The status code.
        code: u16,
        /// See [`parse_retry_after`].
        retry_after: Option<u64>,
    },
    /// A blind tunnel's connection stands: all the success that can be seen of it.
    Connected,
    /// No response head arrived.
    Failure(Failure),
    /// No evidence about the origin: the client left, the resolver failed, we are short of something.
    NotCounted,
}

/// What an [`Outcome`] means under an [`ErrorSet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Evidence that the domain is well.
    Success,
    /// Counts against the domain.
    Error,
    /// Says nothing.
    NotCounted,
}

/// The last answer that counted against a domain, for people: a status or the name of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A status code.
    Status(u16),
    /// A failure.
    Failure(Failure),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Status(code) => write!(f, "{code}"),
            Cause::Failure(failure) => f.write_str(failure.name()),
        }
    }
}

impl std::str::FromStr for Cause {
    type Err = ();
    fn from_str(text: &str) -> Result<Cause, ()> {
        if let Some(failure) = Failure::ALL.into_iter().find(|f| f.name() == text) {
            return Ok(Cause::Failure(failure));
        }
        text.parse().map(Cause::Status).map_err(|_| ())
    }
}

impl Serialize for Cause {
    /// A status as a number, a failure as its name.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cause::Status(code) => serializer.serialize_u16(*code),
            Cause::Failure(failure) => serializer.serialize_str(failure.name()),
        }
    }
}

/// One word of the `errors` list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ErrorName {
    Class(u8),
    Code(u16),
    Failure(Failure),
}

impl std::str::FromStr for ErrorName {
    type Err = String;

    fn from_str(text: &str) -> Result<ErrorName, String> {
        if let Some(failure) = Failure::ALL.into_iter().find(|f| f.name() == text) {
            return Ok(ErrorName::Failure(failure));
        }
        match text.as_bytes() {
            [class @ b'1'..=b'5', b'x', b'x'] => Ok(ErrorName::Class(class - b'0')),
            [b'1'..=b'9', b'0'..=b'9', b'0'..=b'9'] => Ok(ErrorName::Code(text.parse().map_err(|_| text.to_owned())?)),
            _ => Err(format!(
                "`{text}` is no status and no failure: write a status (\"429\"), a class (\"5xx\"), \"connect\", \"timeout\" or \"tls\""
            )),
        }
    }
}

impl fmt::Display for ErrorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ErrorName::Class(class) => write!(f, "{class}xx"),
            ErrorName::Code(code) => write!(f, "{code}"),
            ErrorName::Failure(failure) => f.write_str(failure.name()),
        }
    }
}

/// What counts as an error: status classes, single codes and failures. Default `["429", "5xx"]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorSet {
    names: Vec<ErrorName>,
    classes: u8,
    failures: u8,
}

impl ErrorSet {
    fn of(names: Vec<ErrorName>) -> ErrorSet {
        let (mut classes, mut failures) = (0, 0);
        for name in &names {
            match name {
                ErrorName::Class(class) => classes |= 1 << class,
                ErrorName::Failure(failure) => failures |= failure.bit(),
                ErrorName::Code(_) => {}
            }
        }
        ErrorSet { names, classes, failures }
    }

    /// True if a response with this status is an error.
    pub fn has_status(&self, code: u16) -> bool {
        let class = code / 100;
        (class < 8 && self.classes & (1 << class) != 0) || self.names.contains(&ErrorName::Code(code))
    }

    /// True if this failure is an error.
    pub fn has_failure(&self, failure: Failure) -> bool {
        self.failures & failure.bit() != 0
    }

    /// What `outcome` means. A failure that is not named says nothing; a status that is not named is a success.
    pub fn verdict(&self, outcome: Outcome) -> Verdict {
        match outcome {
            Outcome::Status { code, .. } if self.has_status(code) => Verdict::Error,
            Outcome::Status { .. } | Outcome::Connected => Verdict::Success,
            Outcome::Failure(failure) if self.has_failure(failure) => Verdict::Error,
            Outcome::Failure(_) | Outcome::NotCounted => Verdict::NotCounted,
        }
    }
}

impl Default for ErrorSet {
    fn default() -> ErrorSet {
        ErrorSet::of(vec![ErrorName::Code(429), ErrorName::Class(5)])
    }
}

impl Serialize for ErrorSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.names.iter().map(ErrorName::to_string))
    }
}

impl<'de> Deserialize<'de> for ErrorSet {
    /// Reads a list of texts (numbers are taken as statuses), or one text separated by commas.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ErrorSet, D::Error> {
        struct Names;
        impl<'de> serde::de::Visitor<'de> for Names {
            type Value = ErrorSet;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list such as [\"429\", \"5xx\"]")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ErrorSet, E> {
                let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
                let names: Result<_, _> = words.map(str::parse).collect();
                names.map(ErrorSet::of).map_err(E::custom)
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<ErrorSet, A::Error> {
                let mut names = Vec::new();
                while let Some(word) = seq.next_element::<Word>()? {
                    names.push(word.0.parse().map_err(serde::de::Error::custom)?);
                }
                Ok(ErrorSet::of(names))
            }
        }
        deserializer.deserialize_any(Names)
    }
}

/// An element of the `errors` list as it was written: `"429"` or `429`.
struct Word(String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Word, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Word;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a status, a class or a failure")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Word, E> {
                Ok(Word(text.to_owned()))
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Word, E> {
                Ok(Word(number.to_string()))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// Reads a `Retry-After` (RFC 9110 section 10.2.3): microseconds from now, at most `cap`, or `None` if
/// the value is no valid one.
///
/// `date` is the response's own `Date`; an HTTP-date is taken relative to it, so that an origin whose
/// clock is off is still understood, else relative to `now`. A date that has passed is `Some(0)`.
/// Anything else that starts with a digit, `+` or `-` is ignored and never tried as a date; a number too
/// large to hold is the cap. The result is in `[0, cap]` for every input.
pub fn parse_retry_after(value: &[u8], date: Option<&[u8]>, now: Micros, cap: u64) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?.trim_matches([' ', '\t']);
    let first = *text.as_bytes().first()?;
    if text.bytes().all(|b| b.is_ascii_digit()) {
        // more digits than ten mean a number beyond any cap, not a malformed one
        let seconds = text.parse::<u64>().unwrap_or(u64::MAX);
        return Some(seconds.saturating_mul(SECOND).min(cap));
    }
    if !first.is_ascii_alphabetic() {
        return None;
    }
    let then = http_date(text)?;
    let from = date.and_then(|d| http_date(std::str::from_utf8(d).ok()?.trim())).unwrap_or(now);
    Some(then.saturating_sub(from).min(cap))
}

/// One of the three HTTP-date forms (RFC 9110 section 5.6.7).
fn http_date(text: &str) -> Option<Micros> {
    let time: SystemTime = httpdate::parse_http_date(text).ok()?;
    let since: Duration = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    u64::try_from(since.as_micros()).ok()
}
