// SPDX-License-Identifier: MIT OR Apache-2.0
//! A job: its command, its folder and its environment.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The command to run.
///
/// ```
/// use tonnage_run::Job;
///
/// let mut job = Job::new(["torchrun", "--nproc-per-node", "2", "train.py"]);
/// job.environment = vec![("RUN_NAME".into(), "trial-7".into())];
/// assert_eq!(job.command.len(), 4);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Job {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// The folder it runs in; the caller's own if there is none.
    pub folder: Option<PathBuf>,
    /// Environment variables that are set for it, besides those of the caller.
    pub environment: Vec<(OsString, OsString)>,
    /// Where its output goes.
    pub output: JobOutput,
}

impl Job {
    /// A job that runs this command in the caller's folder and environment.
    pub fn new<W: Into<OsString>>(command: impl IntoIterator<Item = W>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            ..Self::default()
        }
    }

    /// An environment variable as the job sees it.
    pub fn variable(&self, name: &str) -> Option<OsString> {
        let own = self.environment.iter().rev().find(|(key, _)| key == name);
        own.map(|(_, value)| value.clone())
            .or_else(|| std::env::var_os(name))
    }

    /// A relative path as the job sees it.
    pub(crate) fn resolve(&self, path: &Path) -> PathBuf {
        let Some(folder) = &self.folder else {
            return path.to_owned();
        };
        let path = folder.join(path);
        std::path::absolute(&path).unwrap_or(path)
    }

    /// The command in one line, for people.
    pub fn line(&self) -> String {
        let words: Vec<_> = self
            .command
            .iter()
            .map(|word| OsStr::to_string_lossy(word))
            .collect();
        words.join(" ")
    }
}

/// Where the output of a job goes. That of a second run, without a limit, is discarded in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum JobOutput {
    /// To the caller's stdout and stderr.
    #[default]
    Inherit,
    /// All of it to the caller's stderr.
    Stderr,
    /// All of it to the end of this file, which may be a pipe.
    File(PathBuf),
    /// Nowhere.
    Discard,
}
