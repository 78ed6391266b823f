// SPDX-License-Identifier: MIT OR Apache-2.0
//! The words and operators of a shell script, by the rules of bash as far as they decide where a word ends.
//!
//! A script is hostile input: each byte is read once, and what is kept of it is bounded.

/// The kernel starts no program with a longer word.
const MAX_WORD: usize = 128 << 10;
/// Bytes of arguments that are put into a script, however often it names them.
const MAX_EXPANDED: usize = 16 << 20;
/// Operators that end a command, the longer ones first.
const OPERATORS: [&str; 13] = [
    ";;&", "&&", "||", ";;", ";&", "|&", ";", "&", "|", "(", ")", "\n", "\r\n",
];
/// Operators that take the next word as a file, the longer ones first.
const REDIRECTIONS: [&str; 10] = ["&>>", "<<<", "&>", ">>", ">&", ">|", "<>", "<&", "<", ">"];
/// Here-documents of one line; bash refuses more.
const MAX_DOCUMENTS: usize = 16;

/// A word of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    /// Without its quotes; expansions as they are written.
    pub(super) text: String,
    /// Whether the command gets the text: it has no expansions but those of the script's arguments.
    pub(super) is_known: bool,
    /// Whether a part of it is quoted, so that it is not a keyword.
    pub(super) is_quoted: bool,
    /// Whether it has commands in it: `$(…)`, `` `…` `` or `<(…)`.
    pub(super) has_commands: bool,
}

impl Word {
    pub(super) fn literal(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            is_known: true,
            is_quoted: true,
            has_commands: false,
        }
    }

    /// Whether it is this word of the shell's grammar.
    pub(super) fn is(&self, keyword: &str) -> bool {
        !self.is_quoted && self.text == keyword
    }

    fn push(&mut self, part: &str) {
        if self.text.len() + part.len() > MAX_WORD {
            self.is_known = false;
        } else {
            self.text.push_str(part);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token {
    Word(Word),
    /// The end of a command, or a bracket.
    Operator(&'static str),
    /// The next word is a file and not part of the command.
    Redirection,
    /// A quote or a bracket without its end: nothing after it can be read.
    Unclosed,
}

/// Reads a script from its start to its end.
#[derive(Debug)]
pub(super) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    pub(super) line: usize,
    /// The values of `$1` and the following, as long as they are known.
    pub(super) arguments: Option<&'a [String]>,
    /// How many of the arguments are still to be returned for a `$@`.
    expanded: &'a [String],
    /// Bytes of arguments that may still be put into the script.
    budget: usize,
    /// The delimiters of here-documents that begin with the next line, and whether tabs before them do not count.
    documents: Vec<(String, bool)>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a str, arguments: Option<&'a [String]>) -> Self {
        Self {
            text,
            at: 0,
            line: 1,
            arguments,
            expanded: &[],
            budget: MAX_EXPANDED,
            documents: Vec::new(),
        }
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn take(&mut self, prefix: &str) -> bool {
        let is_there = self.rest().starts_with(prefix);
        if is_there {
            self.at += prefix.len();
        }
        is_there
    }

    pub(super) fn next(&mut self) -> Option<Token> {
        loop {
            if let Some((first, others)) = self.expanded.split_first() {
                self.expanded = others;
                return Some(Token::Word(Word::literal(first)));
            }
            self.skip_blanks();
            let rest = self.rest();
            if rest.is_empty() {
                return None;
            }
            let is_arithmetic = rest.starts_with("((");
            let is_process = rest.starts_with("<(") || rest.starts_with(">(");
            if is_arithmetic || is_process {
                return Some(self.word());
            }
            if self.take("<<-") || (!rest.starts_with("<<<") && self.take("<<")) {
                self.skip_blanks();
                let strips_tabs = rest.starts_with("<<-");
                match self.word() {
                    Token::Word(word) if self.documents.len() < MAX_DOCUMENTS => {
                        self.documents.push((word.text, strips_tabs));
                        continue;
                    }
                    _ => {
                        self.at = self.text.len();
                        return Some(Token::Unclosed);
                    }
                }
            }
            if let Some(one) = REDIRECTIONS.iter().find(|one| rest.starts_with(**one)) {
                self.at += one.len();
                return Some(Token::Redirection);
            }
            if let Some(one) = OPERATORS.iter().find(|one| rest.starts_with(**one)) {
                self.at += one.len();
                if one.ends_with('\n') {
                    self.line += 1;
                    self.skip_documents();
                    return Some(Token::Operator("\n"));
                }
                return Some(Token::Operator(one));
            }
            let from = self.at;
            let word = self.word();
            let raw = self.text.get(from..self.at).unwrap_or_default();
            // `2>` is a redirection, and `2` not a word.
            let is_descriptor = raw.bytes().all(|byte| byte.is_ascii_digit())
                && self.rest().starts_with(['<', '>']);
            if is_descriptor {
                continue;
            }
            let is_all = |arguments: &[String]| match raw {
                "\"$@\"" | "\"${@}\"" => true,
                "$@" | "$*" => arguments.iter().all(|one| is_plain(one)),
                _ => false,
            };
            match self.arguments.filter(|arguments| is_all(arguments)) {
                Some(arguments) if self.spend(arguments) => self.expanded = arguments,
                _ => return Some(word),
            }
        }
    }

    /// Skips blanks, comments and ends of lines that are escaped.
    fn skip_blanks(&mut self) {
        loop {
            if self.take(" ") || self.take("\t") {
            } else if self.take("\\\n") || self.take("\\\r\n") {
                self.line += 1;
            } else if self.rest().starts_with('#') {
                self.at += self.rest().find('\n').unwrap_or(self.rest().len());
            } else {
                return;
            }
        }
    }

    /// Skips the here-documents of the line that has ended.
    fn skip_documents(&mut self) {
        for (delimiter, strips_tabs) in std::mem::take(&mut self.documents) {
            while !self.rest().is_empty() {
                let rest = self.rest();
                let (line, length) = match rest.split_once('\n') {
                    Some((line, _)) => (line, line.len() + 1),
                    None => (rest, rest.len()),
                };
                self.at += length;
                self.line += 1;
                let line = line.strip_suffix('\r').unwrap_or(line);
                let line = if strips_tabs {
                    line.trim_start_matches('\t')
                } else {
                    line
                };
                if line == delimiter {
                    break;
                }
            }
        }
    }

    /// A word; it begins here.
    fn word(&mut self) -> Token {
        let mut word = Word {
            is_quoted: false,
            ..Word::literal("")
        };
        // `{a,b}` and `{1..3}` are several words.
        let (mut has_brace, mut has_choice) = (false, false);
        while let Some(next) = self.rest().chars().next() {
            let is_closed = match next {
                '\'' => self.single_quotes(&mut word),
                '"' => {
                    self.at += 1;
                    self.double_quotes(&mut word)
                }
                '$' => self.expansion(&mut word, false),
                '`' => self.commands(0, &mut word),
                '<' | '>' if self.rest()[1..].starts_with('(') => self.commands(1, &mut word),
                // Only `((` comes here, and a list: `A=(b c)`.
                '(' if word.text.is_empty() => {
                    let from = self.at;
                    let is_closed = self.skip_nested(false);
                    word.push(self.text.get(from..self.at).unwrap_or_default());
                    is_closed
                }
                '(' if word.text.ends_with('=') && !word.is_quoted => self.commands(0, &mut word),
                '\r' if self.rest().starts_with("\r\n") => break,
                ' ' | '\t' | '\n' | ';' | '&' | '|' | '(' | ')' | '<' | '>' => break,
                '\\' => {
                    self.at += 1;
                    if self.take("\n") {
                        self.line += 1;
                    } else if let Some(escaped) = self.rest().chars().next() {
                        self.at += escaped.len_utf8();
                        word.is_quoted = true;
                        word.push(escaped.encode_utf8(&mut [0; 4]));
                    }
                    true
                }
                plain => {
                    has_brace |= plain == '{';
                    has_choice |=
                        has_brace && (plain == ',' || (plain == '.' && word.text.ends_with('.')));
                    let is_home =
                        plain == '~' && (word.text.is_empty() || word.text.ends_with(['=', ':']));
                    if is_home || (plain == '}' && has_choice) {
                        word.is_known = false;
                    }
                    self.at += plain.len_utf8();
                    word.push(plain.encode_utf8(&mut [0; 4]));
                    true
                }
            };
            if !is_closed {
                self.at = self.text.len();
                return Token::Unclosed;
            }
        }
        Token::Word(word)
    }

    fn single_quotes(&mut self, word: &mut Word) -> bool {
        let inside = &self.rest()[1..];
        let Some(length) = inside.find('\'') else {
            return false;
        };
        word.is_quoted = true;
        word.push(&inside[..length]);
        self.line += inside[..length].matches('\n').count();
        self.at += length + 2;
        true
    }

    /// Reads the text after a `"`.
    fn double_quotes(&mut self, word: &mut Word) -> bool {
        word.is_quoted = true;
        while let Some(next) = self.rest().chars().next() {
            let is_closed = match next {
                '"' => {
                    self.at += 1;
                    return true;
                }
                '$' => self.expansion(word, true),
                '`' => self.commands(0, word),
                '\\' if self.rest()[1..].starts_with(['$', '`', '"', '\\']) => {
                    word.push(&self.rest()[1..2]);
                    self.at += 2;
                    true
                }
                '\\' if self.take("\\\n") => {
                    self.line += 1;
                    true
                }
                plain => {
                    self.line += usize::from(plain == '\n');
                    self.at += plain.len_utf8();
                    word.push(plain.encode_utf8(&mut [0; 4]));
                    true
                }
            };
            if !is_closed {
                return false;
            }
        }
        false
    }

    /// Reads the expansion that a `$` begins.
    fn expansion(&mut self, word: &mut Word, in_quotes: bool) -> bool {
        let after = &self.rest()[1..];
        if after.starts_with('(') {
            return self.commands(1, word);
        }
        if after.starts_with('\'') && !in_quotes {
            return self.escaped_quotes(word);
        }
        if after.starts_with('"') && !in_quotes {
            self.at += 2;
            return self.double_quotes(word);
        }
        let from = self.at;
        let is_closed = if after.starts_with('{') {
            self.at += 1;
            self.skip_nested(in_quotes)
        } else {
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            let length = match after.chars().next() {
                Some(one) if one.is_ascii_digit() || "@*#?-$!".contains(one) => 1,
                _ => after.find(|c| !is_name(c)).unwrap_or(after.len()),
            };
            self.at += 1 + length;
            true
        };
        let written = self.text.get(from..self.at).unwrap_or_default();
        match self.argument(written) {
            Some(value) if in_quotes || is_plain(value) => word.push(value),
            _ => {
                // A `$` before another character is one.
                word.is_known &= written == "$";
                word.push(written);
            }
        }
        is_closed
    }

    /// Whether these arguments may be put into the script once more.
    fn spend(&mut self, arguments: &[String]) -> bool {
        let bytes = arguments.iter().map(|one| one.len() + 1).sum();
        self.budget = self.budget.saturating_sub(bytes);
        self.budget > 0
    }

    /// The argument of the script that `$1` or `${1}` stands for.
    fn argument(&mut self, written: &str) -> Option<&'a str> {
        let name = written.strip_prefix('$')?;
        let inner = name
            .strip_prefix('{')
            .and_then(|name| name.strip_suffix('}'));
        let number: usize = inner.unwrap_or(name).parse().ok()?;
        let value = self.arguments?.get(number.checked_sub(1)?)?;
        self.spend(std::slice::from_ref(value)).then_some(value)
    }

    /// `$'…'`, of which the escapes are not computed.
    fn escaped_quotes(&mut self, word: &mut Word) -> bool {
        let inside = &self.rest()[2..];
        let mut is_escaped = false;
        let end = inside.bytes().position(|byte| {
            let is_end = byte == b'\'' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            is_end
        });
        let Some(length) = end else { return false };
        let inside = &inside[..length];
        word.is_quoted = true;
        word.is_known &= !inside.contains('\\');
        word.push(inside);
        self.line += inside.matches('\n').count();
        self.at += length + 3;
        true
    }

    /// Commands within a word, in brackets that open after `skipped` bytes, or in backquotes.
    fn commands(&mut self, skipped: usize, word: &mut Word) -> bool {
        let from = self.at;
        self.at += skipped;
        let is_closed = self.skip_nested(false);
        let written = self.text.get(from..self.at).unwrap_or_default();
        word.push(written);
        word.is_known = false;
        // A list has words in it, and commands only in these.
        word.has_commands |=
            !written.starts_with('(') || ["$(", "`"].iter().any(|one| written.contains(one));
        is_closed
    }

    /// Skips what is between two brackets or quotes, of which the first is here, and all brackets and quotes in it.
    fn skip_nested(&mut self, starts_in_quotes: bool) -> bool {
        let bytes = self.text.as_bytes();
        // The end of each of them, and whether `'` is an ordinary character in it.
        let mut open: Vec<(u8, bool)> = Vec::new();
        while let Some(&byte) = bytes.get(self.at) {
            let in_quotes = open.last().map_or(starts_in_quotes, |one| one.1);
            let next = bytes.get(self.at + 1).copied();
            self.at += 1;
            self.line += usize::from(byte == b'\n');
            match byte {
                b'\\' => {
                    self.line += usize::from(next == Some(b'\n'));
                    self.at += 1;
                }
                _ if open.last().is_some_and(|one| one.0 == byte) => {
                    open.pop();
                    if open.is_empty() {
                        return true;
                    }
                }
                b'\'' if !in_quotes => {
                    let inside = &bytes[self.at..];
                    let Some(length) = inside.iter().position(|&byte| byte == b'\'') else {
                        return false;
                    };
                    let lines = inside[..length].iter().filter(|&&byte| byte == b'\n');
                    self.line += lines.count();
                    self.at += length + 1;
                }
                b'"' => open.push((b'"', true)),
                b'`' => open.push((b'`', false)),
                b'$' if next == Some(b'(') => {
                    self.at += 1;
                    open.push((b')', false));
                }
                b'$' if next == Some(b'{') => {
                    self.at += 1;
                    open.push((b'}', in_quotes));
                }
                b'(' if !in_quotes => open.push((b')', false)),
                b'{' if open.is_empty() => open.push((b'}', in_quotes)),
                _ => {}
            }
        }
        false
    }
}

/// Whether a value stays one word without quotes.
fn is_plain(value: &str) -> bool {
    !value.is_empty() && !value.contains([' ', '\t', '\n', '*', '?', '['])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a script; `/` stands for an operator, `>` for a redirection, `$` before a word that is not known.
    fn read(script: &str) -> Vec<String> {
        let arguments = ["one".to_owned(), "two words".to_owned()];
        let mut lexer = Lexer::new(script, Some(&arguments));
        let mut found = Vec::new();
        while let Some(token) = lexer.next() {
            found.push(match token {
                Token::Word(word) if word.is_known => word.text,
                Token::Word(word) => format!("${}", word.text),
                Token::Operator(_) => "/".to_owned(),
                Token::Redirection => ">".to_owned(),
                Token::Unclosed => "unclosed".to_owned(),
            });
        }
        found
    }

    #[test]
    fn words_are_those_of_bash() {
        // The output of bash itself for `printf '%s\n' …`, without the marks.
        for (script, expected) in [
            ("a \"b;c\" 'd && e'", "a|b;c|d && e"),
            ("a;b&&c||d|e&f", "a|/|b|/|c|/|d|/|e|/|f"),
            ("a\\;b \\\n c # d;e", "a;b|c"),
            ("a#b '#c'", "a#b|#c"),
            ("a >b 2>&1 <c d &>e", "a|>|b|>|1|>|c|d|>|e"),
            ("\"a\nb\" c", "a\nb|c"),
            ("'it'\\''s' \"a\\\"b\\$c\"", "it's|a\"b$c"),
            ("$1 \"$2\" x${1}y $3 '$1' $", "one|two words|xoney|$$3|$1|$"),
            ("$2 \"$@\" $* $HOME", "$$2|one|two words|$$*|$$HOME"),
            ("a$(b; c \"d)\" ')')e f", "$a$(b; c \"d)\" ')')e|f"),
            (
                "`b; c` ${a:-b;c} \"${x:-it's}\" d",
                "$`b; c`|$${a:-b;c}|$${x:-it's}|d",
            ),
            ("A=(b; c) ((i++)) d", "$A=(b; c)|((i++))|d"),
            ("~/a b~ {a,b} {a} {1..3}", "$~/a|b~|${a,b}|{a}|${1..3}"),
            ("a <<E b\nc; d\nE\ne", "a|b|/|e"),
            ("a <<-'E' <<F\n\tc\n\tE\nd\nF\ne <<< f", "a|/|e|>|f"),
            ("a <(b c) d", "a|$<(b c)|d"),
            ("$'a b' $'a\\tb'", "a b|$a\\tb"),
            ("a\r\nb", "a|/|b"),
            ("a 'b", "a|unclosed"),
            ("a \"b $(c", "a|unclosed"),
            ("é \\é \"é\" $é", "é|é|é|$é"),
            ("\\", ""),
            ("a\rb (\r", "a\rb|/|\r"),
            ("a <<", "a"),
        ] {
            assert_eq!(read(script).join("|"), expected, "{script}");
        }
    }

    #[test]
    fn lines_are_counted_in_quotes_and_documents() {
        let script = "a 'b\nc' \"d\ne\" $(f\n) \\\n g <<E\nh\nE\nlast";
        let mut lexer = Lexer::new(script, None);
        let mut line = 0;
        while let Some(token) = lexer.next() {
            if token == Token::Operator("\n") {
                continue;
            }
            line = lexer.line;
        }
        assert_eq!(line, 8);
    }
}
