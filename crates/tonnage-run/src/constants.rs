// SPDX-License-Identifier: MIT OR Apache-2.0
//! A constant of the user's source that a variant gives another value, without a change to the file.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::error::RunError;
use crate::job::Job;
use crate::python;

/// Prints where a name gets its value: run by the Python of the job, which knows its own syntax.
const QUESTION: &str = include_str!("constants.py");

/// The place in a source file that gives a name its value.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Constant {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// The value as it is written there.
    pub value: String,
    text: String,
    begin: usize,
    end: usize,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Found {
    line: usize,
    begin: usize,
    end: usize,
    wrong: Option<String>,
    lines: Vec<usize>,
}

impl Constant {
    /// Finds the one place in `file`, or in the script of the job if there is none, that gives `name` a value: an
    /// assignment at the top level, else another assignment, a keyword or a default. `line` chooses among several.
    ///
    /// # Errors
    ///
    /// [`RunError::Constant`] if there is no such place, or more than one.
    pub fn find(
        job: &Job,
        file: Option<&Path>,
        name: &str,
        line: Option<usize>,
    ) -> Result<Self, RunError> {
        let wrong = |file: &Path, why: String, lines: Vec<usize>| RunError::Constant {
            name: name.to_owned(),
            file: file.to_owned(),
            why,
            lines,
        };
        let file = match file {
            Some(file) => job.resolve(file),
            None => script(job).ok_or_else(|| {
                let why = "the command starts no Python script".to_owned();
                wrong(Path::new("the command"), why, Vec::new())
            })?,
        };
        let text = std::fs::read_to_string(&file).map_err(|source| RunError::Read {
            path: file.clone(),
            source,
        })?;
        let python = python::interpreter_of(job)?.unwrap_or_else(|| PathBuf::from("python3"));
        let answer = Command::new(&python)
            .args(["-c", QUESTION])
            .arg(&file)
            .arg(name)
            .arg(line.map(|line| line.to_string()).unwrap_or_default())
            .stdin(Stdio::null())
            .output()
            .map_err(|source| RunError::Start {
                program: python.display().to_string(),
                source,
            })?;
        let found: Found = serde_json::from_slice(&answer.stdout).unwrap_or_else(|_| Found {
            wrong: Some("Python could not look for it".to_owned()),
            ..Found::default()
        });
        if let Some(why) = found.wrong {
            return Err(wrong(&file, why, found.lines));
        }
        let begin_of_line: usize = text
            .split_inclusive('\n')
            .take(found.line.saturating_sub(1))
            .map(str::len)
            .sum();
        let (begin, end) = (begin_of_line + found.begin, begin_of_line + found.end);
        let Some(value) = text.get(begin..end).map(str::to_owned) else {
            let why = "its lines are not those that Python sees".to_owned();
            return Err(wrong(&file, why, Vec::new()));
        };
        Ok(Self {
            file,
            line: found.line,
            value,
            text,
            begin,
            end,
        })
    }

    /// The text of the file in which each of these constants of it has the value beside it.
    pub fn replaced(constants: &[(&Self, &str)]) -> String {
        let mut sorted = constants.to_vec();
        sorted.sort_by_key(|(constant, _)| std::cmp::Reverse(constant.begin));
        let mut text = sorted
            .first()
            .map_or_else(String::new, |(first, _)| first.text.clone());
        // From the last to the first, so that the places of the others stay.
        for (constant, value) in sorted {
            text.replace_range(constant.begin..constant.end, value);
        }
        text
    }
}

/// The script that the job's command starts.
fn script(job: &Job) -> Option<PathBuf> {
    let position = python::script_position(job)?;
    let before = position.checked_sub(1).and_then(|at| job.command.get(at));
    if before.is_some_and(|word| word == "-m" || word == "-c") {
        return None;
    }
    let file = job.resolve(Path::new(job.command.get(position)?));
    file.is_file().then_some(file)
}
