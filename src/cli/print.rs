//! What goes to the terminal. Names come from whoever made us fetch them, so nothing is printed raw.

use std::fmt;
use std::io::{self, Write as _};

use crate::clock::Clock;
use crate::core::time::{SECOND, Span};

/// Writes to the standard output. Unlike `print!` it tells of a closed pipe and does not panic.
pub(super) fn out(text: fmt::Arguments<'_>) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_fmt(text).and_then(|()| stdout.flush())
}

/// Says on the standard error what went wrong.
pub(super) fn complain(error: &anyhow::Error) {
    // each line of a list of problems stays a line
    for (i, line) in format!("{error:#}").lines().enumerate() {
        let start = if i == 0 { "fusebox: " } else { "" };
        let _ = writeln!(io::stderr(), "{start}{}", printable(line));
    }
}

/// `text` with control characters escaped, and those that turn the direction of writing round.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}');
        if c.is_control() || turns { shown.extend(c.escape_unicode()) } else { shown.push(c) }
    }
    shown
}

/// A value of JSON as people write it: no quotes around texts, commas between elements.
pub(super) fn plain(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::Null => "-".to_owned(),
        serde_json::Value::String(text) => printable(text),
        serde_json::Value::Array(values) => values.iter().map(plain).collect::<Vec<_>>().join(","),
        other => printable(&other.to_string()),
    }
}

/// A row's state with what belongs to it: `open until 2026-12-01T02:10:00Z (57m)`.
pub(super) fn state(row: &serde_json::Value) -> String {
    let state = plain(&row["state"]);
    match row["opened_until"].as_str() {
        Some(until) if state == "open" => match left(until) {
            Some(left) => format!("open until {} ({left})", printable(until)),
            None => format!("open until {}", printable(until)),
        },
        _ => state.replace('_', "-"),
    }
}

/// How long it is until then, in whole seconds.
fn left(until: &str) -> Option<Span> {
    let until = u64::try_from(until.parse::<jiff::Timestamp>().ok()?.as_microsecond()).ok()?;
    let clock = Clock::system();
    Some(Span::seconds(until.saturating_sub(clock.to_wall(clock.now())).div_ceil(SECOND)))
}

/// A table with columns that line up. The first row is its head.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let line: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(line.join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_steers_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n\u{202e}c é"), "a\\u{1b}[2Jb\\u{a}\\u{202e}c é");
        assert_eq!(plain(&serde_json::json!(["429", "5xx\u{7}"])), "429,5xx\\u{7}");
    }

    #[test]
    fn columns_line_up() {
        let rows = [vec!["A".to_owned(), "B".to_owned()], vec!["long".to_owned(), "x".to_owned()]];
        assert_eq!(table(&rows), "A     B\nlong  x\n");
    }
}
