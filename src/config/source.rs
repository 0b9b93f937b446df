//! Which text a position belongs to.
//!
//! File, variables and flags are laid end to end as if they were one long text, so that one number, the
//! span that the TOML parser keeps anyway, says where any value came from.

use super::problem::Place;

/// All texts that a configuration is made of.
pub(super) struct Sources {
    /// The file's name as the user gave it, and what is in it.
    file: Option<(String, String)>,
    /// Where each further text starts.
    further: Vec<(usize, Place)>,
    end: usize,
}

impl Sources {
    pub(super) fn new(file: Option<(String, String)>) -> Sources {
        // One position more than the text has: an error at its end is still the file's.
        let end = file.as_ref().map_or(0, |(_, text)| text.len() + 1);
        Sources { file, further: Vec::new(), end }
    }

    /// Appends a text of `length` octets that stands at `place`; returns where it starts.
    pub(super) fn append(&mut self, place: Place, length: usize) -> usize {
        let start = self.end;
        self.further.push((start, place));
        self.end += length + 1;
        start
    }

    /// The place of the position `at`.
    pub(super) fn place(&self, at: usize) -> Place {
        if let Some((_, place)) = self.further.iter().rev().find(|(start, _)| *start <= at) {
            return place.clone();
        }
        match &self.file {
            Some((file, text)) => line_and_column(file, text, at),
            None => Place::File("built-in defaults".to_owned()),
        }
    }

    /// True if the position `at` is in the file.
    pub(super) fn is_in_file(&self, at: usize) -> bool {
        self.further.first().map_or(self.end, |(start, _)| *start) > at
    }
}

/// The place of the octet `at` of `text`.
pub(super) fn line_and_column(file: &str, text: &str, at: usize) -> Place {
    let before = text.as_bytes().get(..at).unwrap_or(text.as_bytes());
    let line_start = before.iter().rposition(|b| *b == b'\n').map_or(0, |newline| newline + 1);
    Place::Line {
        file: file.to_owned(),
        line: before.iter().filter(|b| **b == b'\n').count() + 1,
        column: String::from_utf8_lossy(&before[line_start..]).chars().count() + 1,
    }
}
