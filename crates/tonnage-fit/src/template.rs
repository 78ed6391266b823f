// SPDX-License-Identifier: MIT OR Apache-2.0
//! The numbers of a job that may change, written into its own command.
//!
//! `{batch=1..256}` is every whole number in between, `{batch=8..256+8}` every eighth, `{batch=1..256*2}` every power
//! of two, `{seq=1024,2048,4096}` one of a list. `{batch}` repeats the value in another place. `{steps=64/batch}` is 64
//! divided by the value of `batch`, of which only the values that divide 64 are tried. Anything else in braces is part of
//! the command and stays as it is.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// How many values a list or range may have.
const MAX_VALUES: u64 = 1 << 20;

/// The values that one parameter may take, from the one that takes least memory on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Choice {
    /// Each of these is tried.
    List(Vec<String>),
    /// Whole numbers in growing order, of which the largest that fits is searched.
    Range(Vec<u64>),
}

impl Choice {
    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::List(values) => values.len(),
            Self::Range(values) => values.len(),
        }
    }

    /// Whether there is none, which no parsed choice yields.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One of them as text.
    pub(crate) fn value(&self, index: usize) -> String {
        match self {
            Self::List(values) => values[index].clone(),
            Self::Range(values) => values[index].to_string(),
        }
    }
}

/// The problem of a placeholder.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TemplateError {
    /// The values cannot be read.
    #[error("cannot read the values of {{{name}={values}}}: {why}")]
    Values {
        /// The parameter.
        name: String,
        /// The text.
        values: String,
        /// The problem.
        why: String,
    },
    /// A range has no name.
    #[error("{{{written}}} is a range without a name")]
    NoName {
        /// The text.
        written: String,
    },
    /// A parameter is given values twice.
    #[error("{{{name}=…}} is given twice")]
    Twice {
        /// The parameter.
        name: String,
    },
    /// No value of a parameter divides a number.
    #[error("no value of {of} divides {total}, of which {{{name}={total}/{of}}} is a part")]
    NoDivisor {
        /// The parameter that is computed.
        name: String,
        /// The number.
        total: u64,
        /// The parameter by which it is divided.
        of: String,
    },
    /// Two parameters have ranges.
    #[error("{first} and {second} both have a range, and only one can be searched at a time")]
    TwoRanges {
        /// The first of them.
        first: String,
        /// The other.
        second: String,
    },
}

impl TemplateError {
    /// The fix.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Values { .. } => Some(
                "a range {batch=1..256}, with a step {batch=8..256+8} or a factor {batch=1..256*2}, or a list {seq=1024,2048}"
                    .to_owned(),
            ),
            Self::NoName { written } => {
                let range = written.trim_start_matches(|c: char| !c.is_ascii_digit());
                Some(format!("write {{batch={range}}}"))
            }
            Self::Twice { name } => Some(format!("write {{{name}}} where its value is to be repeated")),
            Self::NoDivisor { of, total, .. } => {
                Some(format!("choose values of {of} that divide {total}: {{{of}=1..{total}*2}}"))
            }
            Self::TwoRanges { second, .. } => {
                Some(format!("give {second} a list: {{{second}=1024,2048,4096}}"))
            }
        }
    }
}

/// ```
/// use tonnage_fit::Choice;
///
/// assert_eq!("1..8*2".parse(), Ok(Choice::Range(vec![1, 2, 4, 8])));
/// assert_eq!("adamw,sgd".parse::<Choice>().unwrap().len(), 2);
/// assert!("8..1".parse::<Choice>().is_err());
/// ```
impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains(',') {
            let values: Vec<String> = text.split(',').map(|v| v.trim().to_owned()).collect();
            return match values.iter().find(|value| value.is_empty()) {
                Some(_) => Err("a value of the list is empty".to_owned()),
                None => Ok(Self::List(values)),
            };
        }
        let Some((first, rest)) = text.split_once("..") else {
            return match text.trim() {
                "" => Err("there are none".to_owned()),
                value => Ok(Self::List(vec![value.to_owned()])),
            };
        };
        let (last, step) = match rest.find(['+', '*']) {
            Some(at) => (&rest[..at], Some((&rest[at..=at], &rest[at + 1..]))),
            None => (rest, None),
        };
        let number = |text: &str| {
            let text = text.trim();
            text.parse::<u64>()
                .map_err(|_| format!("{text:?} is not a whole number"))
        };
        let (first, last) = (number(first)?, number(last)?);
        let times = step.is_some_and(|(sign, _)| sign == "*");
        let step = step.map_or(Ok(1), |(_, by)| number(by))?;
        if last < first {
            return Err(format!("{first} is more than {last}"));
        }
        if step == 0 || times && (step == 1 || first == 0) {
            return Err("it does not grow".to_owned());
        }
        if !times && (last - first) / step >= MAX_VALUES {
            return Err(format!("there are more than {MAX_VALUES}"));
        }
        let next = |value: &u64| {
            let next = if times {
                value.checked_mul(step)
            } else {
                value.checked_add(step)
            };
            next.filter(|next| *next <= last)
        };
        Ok(Self::Range(
            std::iter::successors(Some(first), next).collect(),
        ))
    }
}

/// A number of the job that may change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its values as they were written.
    pub written: String,
    /// Its values.
    pub choice: Choice,
}

/// A part of a word.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(OsString),
    Value(usize),
    Quotient(usize),
}

/// A number that is computed from a parameter, so that their product stays.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Quotient {
    name: String,
    total: u64,
    /// The index of the parameter by which it is divided.
    of: usize,
}

/// Words with placeholders.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template {
    /// The parameters, in the order in which they were first given values.
    pub parameters: Vec<Parameter>,
    quotients: Vec<Quotient>,
    words: Vec<Vec<Piece>>,
}

impl Template {
    /// Reads words with placeholders; a pair of a name and words gives the name that a placeholder without one has,
    /// as in `--env BATCH={1..64}`.
    ///
    /// ```
    /// use tonnage_fit::Template;
    ///
    /// let words = ["train.py", "--batch={batch=1..4}", "--lr={lr}"].map(|word| (None, word.into()));
    /// let template = Template::read(words)?;
    /// assert_eq!(template.words(&[2]), ["train.py", "--batch=3", "--lr={lr}"]);
    /// # Ok::<(), tonnage_fit::TemplateError>(())
    /// ```
    pub fn read(
        words: impl IntoIterator<Item = (Option<String>, OsString)>,
    ) -> Result<Self, TemplateError> {
        let words: Vec<(Option<String>, OsString)> = words.into_iter().collect();
        let mut parameters: Vec<Parameter> = Vec::new();
        let mut divided: Vec<(String, u64, String)> = Vec::new();
        // Values first: a name may be used before the place that gives it values.
        for (name, word) in &words {
            for braced in placeholders(word) {
                let Some((name, values)) = definition(braced.inner, name.as_deref()) else {
                    if is_range(braced.inner) {
                        let written = braced.inner.to_owned();
                        return Err(TemplateError::NoName { written });
                    }
                    continue;
                };
                let is_given = parameters.iter().any(|known| known.name == name);
                if is_given || divided.iter().any(|(known, ..)| *known == name) {
                    return Err(TemplateError::Twice { name });
                }
                if let Some((total, of)) = quotient(values) {
                    divided.push((name, total, of.to_owned()));
                    continue;
                }
                let choice = values.parse().map_err(|why| TemplateError::Values {
                    name: name.clone(),
                    values: values.to_owned(),
                    why,
                })?;
                parameters.push(Parameter {
                    name,
                    written: values.to_owned(),
                    choice,
                });
            }
        }
        let quotients = divided
            .into_iter()
            .map(|(name, total, of)| quotient_of(&mut parameters, name, total, &of))
            .collect::<Result<Vec<Quotient>, TemplateError>>()?;
        let mut ranges = parameters
            .iter()
            .filter(|parameter| matches!(parameter.choice, Choice::Range(_)));
        if let (Some(first), Some(second)) = (ranges.next(), ranges.next()) {
            return Err(TemplateError::TwoRanges {
                first: first.name.clone(),
                second: second.name.clone(),
            });
        }
        let words = words
            .iter()
            .map(|(name, word)| pieces(word, name.as_deref(), &parameters, &quotients))
            .collect();
        Ok(Self {
            parameters,
            quotients,
            words,
        })
    }

    /// The words with the value of each parameter, by its index among the values.
    pub fn words(&self, values: &[usize]) -> Vec<OsString> {
        let join = |pieces: &Vec<Piece>| {
            let mut word = OsString::new();
            for piece in pieces {
                match piece {
                    Piece::Text(text) => word.push(text),
                    Piece::Value(number) => {
                        word.push(self.parameters[*number].choice.value(values[*number]));
                    }
                    Piece::Quotient(number) => word.push(self.quotient(*number, values)),
                }
            }
            word
        };
        self.words.iter().map(join).collect()
    }

    /// The names and values of the numbers that are computed from the others.
    pub(crate) fn computed(&self, values: &[usize]) -> Vec<(String, String)> {
        let numbers = self.quotients.iter().enumerate();
        numbers
            .map(|(number, one)| (one.name.clone(), self.quotient(number, values)))
            .collect()
    }

    fn quotient(&self, number: usize, values: &[usize]) -> String {
        let Quotient { total, of, .. } = &self.quotients[number];
        let by = self.parameters[*of].choice.value(values[*of]);
        // Only divisors are left among the values.
        by.parse().map_or_else(
            |_| total.to_string(),
            |by: u64| (total / by.max(1)).to_string(),
        )
    }

    /// The parameter with a range, which is searched.
    pub fn searched(&self) -> Option<usize> {
        let is_range = |parameter: &Parameter| matches!(parameter.choice, Choice::Range(_));
        self.parameters.iter().position(is_range)
    }
}

/// The text, for people.
impl fmt::Display for Parameter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.written)
    }
}

/// Text in braces.
struct Braced<'a> {
    inner: &'a str,
    begin: usize,
    end: usize,
}

/// Every text in braces without braces inside.
fn placeholders(word: &OsStr) -> Vec<Braced<'_>> {
    let Some(text) = word.to_str() else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut begin = None;
    for (at, letter) in text.char_indices() {
        match (letter, begin) {
            ('{', _) => begin = Some(at),
            ('}', Some(begun)) => {
                found.push(Braced {
                    inner: &text[begun + 1..at],
                    begin: begun,
                    end: at + 1,
                });
                begin = None;
            }
            _ => {}
        }
    }
    found
}

fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters
        .next()
        .is_some_and(|first| first.is_alphabetic() || first == '_')
        && letters.all(|letter| letter.is_alphanumeric() || letter == '_' || letter == '-')
}

/// Whether it holds two numbers as a range has them, which no script requests.
fn is_range(text: &str) -> bool {
    text.split_once("..").is_some_and(|(from, to)| {
        from.ends_with(|c: char| c.is_ascii_digit()) && to.starts_with(|c: char| c.is_ascii_digit())
    })
}

/// A number and the name by which it is divided: `64/batch`.
fn quotient(values: &str) -> Option<(u64, &str)> {
    let (total, of) = values.split_once('/')?;
    let total = total.trim().parse().ok()?;
    is_name(of.trim()).then_some((total, of.trim()))
}

/// The number that is computed from the parameter `of`, whose values that do not divide `total` are left out.
fn quotient_of(
    parameters: &mut [Parameter],
    name: String,
    total: u64,
    of: &str,
) -> Result<Quotient, TemplateError> {
    let divides = |value: &u64| *value != 0 && total.is_multiple_of(*value);
    let mut found = parameters.iter_mut().enumerate();
    if let Some((index, parameter)) = found.find(|(_, parameter)| parameter.name == of) {
        match &mut parameter.choice {
            Choice::List(values) => {
                values.retain(|value| value.parse().is_ok_and(|value| divides(&value)));
            }
            Choice::Range(values) => values.retain(divides),
        }
        if !parameter.choice.is_empty() {
            let of = index;
            return Ok(Quotient { name, total, of });
        }
    }
    let of = of.to_owned();
    Err(TemplateError::NoDivisor { name, total, of })
}

/// The name and the values that a placeholder gives, if it gives values.
fn definition<'a>(inner: &'a str, implied: Option<&str>) -> Option<(String, &'a str)> {
    if let Some((name, values)) = inner.split_once('=') {
        return is_name(name).then(|| (name.to_owned(), values));
    }
    let name = implied.filter(|_| !is_name(inner) || inner.contains(','))?;
    Some((name.to_owned(), inner))
}

fn pieces(
    word: &OsStr,
    implied: Option<&str>,
    parameters: &[Parameter],
    quotients: &[Quotient],
) -> Vec<Piece> {
    let Some(text) = word.to_str() else {
        return vec![Piece::Text(word.to_owned())];
    };
    let mut pieces = Vec::new();
    let mut done = 0;
    for braced in placeholders(word) {
        let name = definition(braced.inner, implied)
            .map_or_else(|| braced.inner.to_owned(), |(name, _)| name);
        let value = parameters.iter().position(|known| known.name == name);
        let quotient = || quotients.iter().position(|known| known.name == name);
        let Some(piece) = value
            .map(Piece::Value)
            .or_else(|| quotient().map(Piece::Quotient))
        else {
            continue;
        };
        pieces.push(Piece::Text(text[done..braced.begin].into()));
        pieces.push(piece);
        done = braced.end;
    }
    pieces.push(Piece::Text(text[done..].into()));
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(words: &[&str]) -> Result<Template, TemplateError> {
        Template::read(words.iter().map(|word| (None, word.into())))
    }

    #[test]
    fn a_name_may_be_used_before_it_is_given_values() {
        let template = read(&["x-{b}", "{b=4,8}", "{a=1..3}-{b}"]).unwrap();
        assert_eq!(template.words(&[1, 2]), ["x-8", "8", "3-8"]);
        assert_eq!(template.searched(), Some(1));
    }

    #[test]
    fn braces_that_are_no_placeholder_stay() {
        let json = r#"{"lr": 0.1, "batch": {batch=1..3}}"#;
        let template = read(&["--config", json, "${HOME}", "{a b=1}"]).unwrap();
        let words = template.words(&[0]);
        assert_eq!(words[1], r#"{"lr": 0.1, "batch": 1}"#);
        assert_eq!(words[2..], ["${HOME}", "{a b=1}"]);
    }

    #[test]
    fn a_product_stays_where_a_number_is_divided() {
        let template = read(&["{steps=64/batch}", "{batch=1..64+1}", "{steps}"]).unwrap();
        let divisors = vec![1, 2, 4, 8, 16, 32, 64];
        assert_eq!(template.parameters[0].choice, Choice::Range(divisors));
        assert_eq!(template.words(&[3]), ["8", "8", "8"]);
        assert_eq!(template.words(&[6]), ["1", "64", "1"]);
        assert_eq!(
            template.computed(&[2]),
            [("steps".to_owned(), "16".to_owned())]
        );
        let list = read(&["{a=3,4,x}", "{b=12/a}"]).unwrap();
        assert_eq!(list.words(&[1]), ["4", "3"]);
        // A path has a slash, too.
        let path = read(&["{file=a/b}"]).unwrap();
        assert_eq!(path.words(&[0]), ["a/b"]);
    }

    #[test]
    fn a_variable_names_its_placeholder() {
        let words = [
            (Some("BATCH".to_owned()), "{1..9+4}".into()),
            (Some("NAME".to_owned()), "{run}".into()),
        ];
        let template = Template::read(words).unwrap();
        assert_eq!(template.parameters[0].choice, Choice::Range(vec![1, 5, 9]));
        assert_eq!(template.words(&[2]), ["9", "{run}"]);
    }

    #[test]
    fn what_cannot_be_meant_is_an_error_with_a_next_step() {
        for words in [
            &["{a=1..x}"][..],
            &["{a=}"],
            &["{a=1,,2}"],
            &["{a=1..9*1}"],
            &["{a=0..9*2}"],
            &["{a=1..9+0}"],
            &["{a=0..99999999999}"],
            &["{a=1..3}", "{a=4..5}"],
            &["{batch:1..9}"],
            &["{1..9}"],
            &["{a=1..3}", "{b=4..5}"],
            &["{a=5..7}", "{b=64/a}"],
            &["{b=64/a}"],
        ] {
            let error = read(words).unwrap_err();
            assert!(error.hint().is_some(), "{error}");
        }
        let colon = read(&["{batch:8..64+8}"]).unwrap_err();
        assert_eq!(colon.hint().as_deref(), Some("write {batch=8..64+8}"));
    }
}
