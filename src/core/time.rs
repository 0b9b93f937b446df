//! Points in time and lengths of time, as plain numbers.
//!
//! The core never reads a clock: time is an argument. A point in time is a [`Micros`], whole
//! microseconds since the Unix epoch; a length of time is a [`Span`]. All arithmetic saturates, so a
//! hostile or mistaken number can make a wait long but can never make the process panic.

use std::fmt;
use std::str::FromStr;

/// A point in time: microseconds since the Unix epoch. `0` means "never" wherever a state keeps one.
pub type Micros = u64;

/// One second in microseconds.
pub const SECOND: u64 = 1_000_000;

/// The longest [`Span`] that can be written: 100 years. Everything beyond is a mistake.
pub const MAX_SPAN: Span = Span(100 * 365 * 86_400 * SECOND);

/// A length of time in whole microseconds, written `"500ms"`, `"60s"` or `"1h30m"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub u64);

impl Span {
    /// A span of whole seconds.
    pub const fn seconds(seconds: u64) -> Span {
        Span(seconds.saturating_mul(SECOND))
    }

    /// The length in microseconds.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// True for `"0s"`.
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<Span> for std::time::Duration {
    fn from(span: Span) -> Self {
        std::time::Duration::from_micros(span.0)
    }
}

/// Why a text is no [`Span`]. The message says what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpanError {
    /// A number without a unit.
    #[error("`{0}` has no unit: write it as \"{0}s\" (units: ms, s, m, h, d)")]
    NoUnit(String),
    /// Anything else that does not read as a length of time.
    #[error("`{0}` is not a length of time: write for instance \"500ms\", \"60s\" or \"1h30m\"")]
    Malformed(String),
    /// Longer than [`MAX_SPAN`].
    #[error("`{0}` is too long: 100 years is the most")]
    TooLong(String),
}

/// The units, longest first, in microseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400 * SECOND), ("h", 3_600 * SECOND), ("m", 60 * SECOND), ("s", SECOND), ("ms", 1_000)];

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Span, SpanError> {
        let malformed = || SpanError::Malformed(text.to_owned());
        let too_long = || SpanError::TooLong(text.to_owned());
        let mut rest = text.trim();
        if rest.is_empty() {
            return Err(malformed());
        }
        let mut total = 0u64;
        let mut previous_unit = u64::MAX;
        while !rest.is_empty() {
            let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            if digits == 0 {
                return Err(malformed());
            }
            let number: u64 = rest[..digits].parse().map_err(|_| too_long())?;
            rest = &rest[digits..];
            let letters = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
            if letters == 0 {
                let whole_number = digits == text.trim().len();
                return Err(if whole_number { SpanError::NoUnit(text.trim().to_owned()) } else { malformed() });
            }
            let name = &rest[..letters];
            let unit = UNITS.iter().find(|(unit, _)| *unit == name).ok_or_else(malformed)?.1;
            if unit >= previous_unit {
                return Err(malformed());
            }
            previous_unit = unit;
            total = number.checked_mul(unit).and_then(|part| total.checked_add(part)).ok_or_else(too_long)?;
            rest = &rest[letters..];
        }
        if total > MAX_SPAN.0 { Err(too_long()) } else { Ok(Span(total)) }
    }
}

impl fmt::Display for Span {
    /// As people write it, in a form that reads back as the same span: `1h30m`, but `60s` and `90s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0 / 1_000 * 1_000;
        if rest < 120 * SECOND && rest.is_multiple_of(SECOND) {
            return write!(f, "{}s", rest / SECOND);
        }
        for (name, unit) in UNITS {
            if rest >= unit {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        Ok(())
    }
}

impl serde::Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Span, D::Error> {
        struct Text;
        impl serde::de::Visitor<'_> for Text {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a length of time such as \"60s\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<Span, E> {
                Err(E::custom(SpanError::NoUnit(number.to_string())))
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<Span, E> {
                Err(E::custom(SpanError::NoUnit(number.to_string())))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

/// Whole seconds from `now` to `then`, rounded up, at least 1: what a `Retry-After` says.
pub fn seconds_until(then: Micros, now: Micros) -> u64 {
    then.saturating_sub(now).div_ceil(SECOND).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_read_and_print() {
        for (text, micros, printed) in [
            ("500ms", 500_000, "500ms"),
            ("60s", 60 * SECOND, "60s"),
            ("1h30m", 5_400 * SECOND, "1h30m"),
            ("7d", 7 * 86_400 * SECOND, "7d"),
            ("0s", 0, "0s"),
            (" 90s ", 90 * SECOND, "90s"),
            ("150s", 150 * SECOND, "2m30s"),
        ] {
            let span: Span = text.parse().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(span.0, micros, "{text}");
            assert_eq!(span.to_string(), printed);
            assert_eq!(printed.parse::<Span>(), Ok(span));
        }
    }

    #[test]
    fn what_is_no_span_says_so() {
        assert_eq!("60".parse::<Span>(), Err(SpanError::NoUnit("60".into())));
        for text in ["", "s", "1.5h", "-1s", "1 h", "1m1h", "1s1s", "1x", "1h30", "²s"] {
            assert!(matches!(text.parse::<Span>(), Err(SpanError::Malformed(_))), "{text}");
        }
        for text in ["99999999999999999999s", "18446744073709551615d", "36501d"] {
            assert!(matches!(text.parse::<Span>(), Err(SpanError::TooLong(_))), "{text}");
        }
    }

    #[test]
    fn retry_after_rounds_up_and_is_never_zero() {
        assert_eq!(seconds_until(10, 10), 1);
        assert_eq!(seconds_until(5, 10), 1);
        assert_eq!(seconds_until(10 + SECOND, 10), 1);
        assert_eq!(seconds_until(11 + SECOND, 10), 2);
    }
}
