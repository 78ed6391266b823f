// SPDX-License-Identifier: MIT OR Apache-2.0
//! The hook: the Python that runs inside every Python process of a job, and how those processes find it.

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::{fs, io};

use crate::job::Job;

// Every Python file below `src/hook`, by its path from there, and its text: `FILES`.
include!(concat!(env!("OUT_DIR"), "/hook_files.rs"));

/// The folder of the hook in the folder of a run.
pub(crate) const FOLDER: &str = "python";
/// The settings of the hook.
const SETTINGS: &str = "tonnage.json";

/// The text of a file of the hook.
pub(crate) fn source(path: &str) -> Option<&'static str> {
    let file = FILES.iter().find(|(name, _)| *name == path)?;
    Some(file.1)
}

/// The variable that makes every Python of `job` run the hook in `folder`.
pub(crate) fn variable(folder: &Path, job: &Job) -> (&'static str, OsString) {
    let hook = folder.join(FOLDER).into_os_string();
    let rest = job.variable("PYTHONPATH");
    ("PYTHONPATH", prepend(hook, rest.as_deref()))
}

/// Writes the hook and its settings into `folder`.
pub(crate) fn write(folder: &Path, settings: &serde_json::Value) -> io::Result<()> {
    let hook = folder.join(FOLDER);
    fs::create_dir(&hook)?;
    fs::write(hook.join(SETTINGS), settings.to_string())?;
    for (path, source) in FILES {
        let file = hook.join(path);
        if let Some(folder) = file.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(file, source)?;
    }
    Ok(())
}

/// A list of paths with `first` in front of what was there.
pub(crate) fn prepend(first: OsString, rest: Option<&OsStr>) -> OsString {
    let mut list = first;
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}
