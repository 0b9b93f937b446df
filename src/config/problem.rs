//! What is wrong with a configuration, where it stands, and what to do about it.

use std::fmt;

/// Where a value was written. Places sort the way people read: the file from the top, then the rest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the file.
    Line {
        /// The file as the user named it.
        file: String,
        /// The line, counted from 1.
        line: usize,
        /// The column in characters, counted from 1.
        column: usize,
    },
    /// The file as a whole.
    File(String),
    /// An environment variable.
    Variable(String),
    /// A command-line flag, with its dashes.
    Flag(&'static str),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Place::File(file) => f.write_str(file),
            Place::Variable(name) => f.write_str(name),
            Place::Flag(name) => f.write_str(name),
        }
    }
}

/// One thing that is wrong. Its text holds no secret and no control character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it stands.
    pub place: Place,
    /// The dotted path of the key, `proxy.listen`; empty where no key is concerned.
    pub key: String,
    /// What is wrong and what to do.
    pub message: String,
}

/// Something that does not stop the start, but that its author would want to know.
pub type Warning = Problem;

impl Problem {
    /// A problem with `message` made safe to print: what a file or a variable holds may be echoed in it.
    pub fn new(place: Place, key: impl Into<String>, message: impl AsRef<str>) -> Problem {
        Problem { place, key: printable(&key.into()), message: printable(message.as_ref()) }
    }
}

impl Problem {
    /// A problem with the value of `key`, which its text names first.
    pub(super) fn with_value(place: Place, key: String, message: &str) -> Problem {
        let message = format!("{key}: {message}");
        Problem::new(place, key, message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

/// Every problem of a configuration, in reading order. There is at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// What must be put right.
    pub problems: Vec<Problem>,
    /// What came up besides.
    pub warnings: Vec<Warning>,
}

impl fmt::Display for Problems {
    /// One problem a line, without a newline at the end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// `text` with control characters escaped, so that no value can forge a line of a log or a terminal.
fn printable(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut out, c| {
        if c.is_control() {
            out.extend(c.escape_debug())
        } else {
            out.push(c)
        }
        out
    })
}
