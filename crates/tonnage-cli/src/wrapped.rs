// SPDX-License-Identifier: MIT OR Apache-2.0
//! Lines with a title in front, wrapped at the width of the terminal.
//!
//! The width counts what is seen: colours take none. Without a terminal, and in
//! one wider than that, lines end at 100 columns, which is what pages and issues show.

use std::fmt::Write as _;

use crate::output::wrapping;

/// Columns where there is no terminal, and at most.
const WIDE: usize = 100;
/// Columns below which nothing is wrapped any further.
const NARROW: usize = 40;
/// Columns of the title and the spaces around it.
const INDENT: usize = 13;

/// A text of titled lines.
pub(crate) struct Screen<'a> {
    width: usize,
    /// Folders that are left out of the names of files.
    folders: &'a [&'a str],
    text: String,
}

impl<'a> Screen<'a> {
    /// As wide as the terminal.
    pub(crate) fn new(folders: &'a [&'a str]) -> Self {
        Self {
            width: terminal_width().unwrap_or(WIDE).clamp(NARROW, WIDE),
            folders,
            text: String::new(),
        }
    }

    /// One line, however long, without these folders.
    pub(crate) fn unwrapped(folders: &[&str], text: &str) -> String {
        let shorten = |text: String, folder: &&str| text.replace(folder, "");
        folders.iter().fold(text.to_owned(), shorten)
    }

    /// A line from the left edge.
    pub(crate) fn title(&mut self, text: &str) {
        self.wrap("", 2, text);
    }

    /// A line behind its title.
    pub(crate) fn line(&mut self, title: &str, text: &str) {
        self.wrap(&format!("  {title:<10} "), INDENT, text);
    }

    /// A line that is copied: alone and whole, however long.
    pub(crate) fn paste(&mut self, text: &str) {
        let _ = writeln!(self.text, "{:INDENT$}    {text}", "");
    }

    /// A command that is copied: behind its title if it fits there, else below it.
    pub(crate) fn command(&mut self, title: &str, command: &str) {
        let seen = crate::output::without_colour(command);
        if INDENT + seen.chars().count() <= self.width {
            let _ = writeln!(self.text, "  {title:<10} {command}");
        } else {
            let _ = writeln!(self.text, "  {title}");
            self.paste(command);
        }
    }

    /// Puts the lines of another screen below.
    pub(crate) fn append(&mut self, other: &Self) {
        self.text.push_str(&other.text);
    }

    pub(crate) fn lines(&self) -> usize {
        self.text.lines().count()
    }

    pub(crate) fn finish(self) -> String {
        self.text
    }

    fn wrap(&mut self, start: &str, indent: usize, text: &str) {
        let mut text = text.to_owned();
        for folder in self.folders {
            text = text.replace(folder, "");
        }
        let indent = " ".repeat(indent);
        let wrapping = wrapping(self.width)
            .initial_indent(start)
            .subsequent_indent(&indent);
        for line in textwrap::wrap(&text, wrapping) {
            let _ = writeln!(self.text, "{}", line.trim_end());
        }
    }
}

#[cfg(not(target_family = "wasm"))]
fn terminal_width() -> Option<usize> {
    let seen = terminal_size::terminal_size_of(std::io::stdout());
    seen.map(|(terminal_size::Width(width), _)| usize::from(width))
}

#[cfg(target_family = "wasm")]
fn terminal_width() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wrap_behind_their_title_and_what_is_pasted_does_not() {
        let mut screen = Screen {
            width: 40,
            folders: &["/job/"],
            text: String::new(),
        };
        screen.title("out of memory: many words that need two lines");
        screen.line(
            "held by",
            "  1.00 GiB     3 × weights /job/train.py:4 and more",
        );
        screen.paste("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
        let expected = [
            "out of memory: many words that need two",
            "  lines",
            "  held by      1.00 GiB     3 × weights",
            "             train.py:4 and more",
            "                 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        ];
        assert_eq!(screen.finish().lines().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn a_command_stays_whole() {
        let mut screen = Screen {
            width: 40,
            folders: &[],
            text: String::new(),
        };
        screen.command("next", "tonnage report a.tonnage");
        screen.command("next", "tonnage report a-longer-name.tonnage");
        let expected = [
            "  next       tonnage report a.tonnage",
            "  next",
            "                 tonnage report a-longer-name.tonnage",
        ];
        assert_eq!(screen.finish().lines().collect::<Vec<_>>(), expected);
    }
}
