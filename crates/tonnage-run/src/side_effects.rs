// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps a dry run from uploading: the environment that selects the offline modes of libraries, and the notes of what
//! was suppressed and of the hosts that processes connected to.
//!
//! The hook's `offline.py` changes libraries that scripts set to another mode.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::Write;
use std::net::IpAddr;

use tonnage_capture::note::{Note, Suppressed};
use tonnage_recording::facts;
use tonnage_recording::{WriteError, Writer};

use crate::job::Job;

/// Variables that select the documented offline mode of a library, or turn its telemetry off: name, value, and the
/// values of the user that are quiet, too. The hook sets `WANDB_MODE` when a job imports wandb: transformers prints a
/// line where it finds the variable, and a dry run prints what a run prints.
const OFFLINE_MODES: [(&str, &str, &[&str]); 11] = [
    ("WANDB_ERROR_REPORTING", "false", &[]),
    ("NEPTUNE_MODE", "debug", &["debug", "offline", "read-only"]),
    ("SWANLAB_MODE", "offline", &["disabled", "local", "offline"]),
    ("CLEARML_OFFLINE_MODE", "1", &[]),
    ("DVC_STUDIO_OFFLINE", "true", &[]),
    ("MLFLOW_DISABLE_TELEMETRY", "true", &[]),
    ("HF_HUB_DISABLE_TELEMETRY", "1", &[]),
    ("VLLM_NO_USAGE_STATS", "1", &[]),
    ("RAY_USAGE_STATS_ENABLED", "0", &[]),
    ("GRADIO_ANALYTICS_ENABLED", "False", &[]),
    ("DO_NOT_TRACK", "1", &[]),
];

/// The variables that keep the libraries of `job` from uploading.
pub(crate) fn offline_modes(job: &Job) -> impl Iterator<Item = (&'static str, OsString)> {
    OFFLINE_MODES.iter().filter_map(|(name, value, quiet)| {
        let given = job.variable(name);
        let is_quiet = given.is_some_and(|given| quiet.iter().any(|one| given == *one));
        (!is_quiet).then(|| (*name, (*value).into()))
    })
}

/// The effects of a run's processes on other machines, and the ones that were prevented.
#[derive(Default)]
pub(crate) struct SideEffects {
    suppressed: BTreeMap<(String, String), u64>,
    hosts: BTreeSet<String>,
    unprotected: BTreeSet<String>,
}

impl SideEffects {
    /// Adds the notes of a process.
    pub(crate) fn read<'log>(&mut self, notes: impl Iterator<Item = &'log Note>) {
        let mut counts: BTreeMap<(String, String), u64> = BTreeMap::new();
        let mut names: BTreeMap<IpAddr, &str> = BTreeMap::new();
        for note in notes {
            match note {
                Note::Suppressed(action) => {
                    let count = (counts.entry((action.library.clone(), action.action.clone())))
                        .or_default();
                    // A process counts from its start and writes the sum again and again.
                    *count = action.count.max(*count);
                }
                Note::Unprotected(library) => {
                    self.unprotected.insert(library.clone());
                }
                Note::Resolved { name, addresses } => {
                    for address in addresses {
                        names.insert(*address, name);
                    }
                }
                Note::Connected { address, port } => {
                    let host = match (names.get(address), address) {
                        (Some(name), _) => format!("{name}:{port}"),
                        (None, IpAddr::V4(address)) => format!("{address}:{port}"),
                        (None, IpAddr::V6(address)) => format!("[{address}]:{port}"),
                    };
                    self.hosts.insert(host);
                }
                _ => {}
            }
        }
        for (action, count) in counts {
            *self.suppressed.entry(action).or_default() += count;
        }
    }

    /// Writes the facts of the run.
    pub(crate) fn write<W: Write>(self, writer: &mut Writer<W>) -> Result<(), WriteError> {
        for ((library, action), count) in self.suppressed {
            let action = Suppressed {
                library,
                action,
                count,
            };
            let text = serde_json::to_string(&action).unwrap_or_default();
            writer.meta(facts::RUN, facts::SUPPRESSED, &text)?;
        }
        for host in self.hosts {
            writer.meta(facts::RUN, facts::HOST, &host)?;
        }
        for library in self.unprotected {
            writer.meta(facts::RUN, facts::UNPROTECTED, &library)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_mode_of_the_user_is_kept() {
        let mut job = Job::new(["python"]);
        let chosen = |job: &Job| {
            let mut modes = offline_modes(job);
            modes.find(|(name, _)| *name == "SWANLAB_MODE")
        };
        job.environment = vec![("SWANLAB_MODE".into(), "online".into())];
        assert_eq!(chosen(&job), Some(("SWANLAB_MODE", "offline".into())));
        job.environment = vec![("SWANLAB_MODE".into(), "disabled".into())];
        assert_eq!(chosen(&job), None);
    }
}
