// SPDX-License-Identifier: MIT OR Apache-2.0
//! The data that the stand-in inside a dry-run process and `tonnage run` outside it
//! exchange.
//!
//! Five things cross the boundary, each a file in one folder that the command
//! makes and the processes find through the environment variable
//! [`RUN_VARIABLE`]. `tonnage record` has such a folder too; where the GPU is a
//! real one, its report on its memory is a [`sample`] in the log. They are:
//!
//! * [`RunConfig`], one JSON file: which devices to simulate;
//! * the [`ledger`], one small file mapped by all processes: what each holds on
//!   each device this moment. It makes several processes share a device's
//!   memory, and it is what live progress is read from;
//! * one [`log`] a process: driver calls and torch's own history, appended
//!   record by record. A killed process leaves everything up to its last record;
//! * one file of [`blocks`] a process: what torch's allocator handed out and
//!   took back, complete up to the very last one;
//! * the [`endings`], one file of lines: how processes ended, and by whose signal.
//!
//! The [`note`]s in a log are the part of the recording's contract that a job writes; the keys of facts in
//! tonnage-recording are the other. The stand-in links this crate and no Arrow.
//!
//! None of this is the recording. The command turns it into one when the
//! script has ended, however it ended.
#![forbid(unsafe_code)]

pub mod blocks;
pub mod config;
pub mod endings;
pub mod ledger;
pub mod log;
pub mod note;
pub mod sample;

pub use config::{AddressOrderName, DeviceProfile, RunConfig};

/// Names the folder of the run; its absence makes the stand-in a machine without GPUs.
pub const RUN_VARIABLE: &str = "TONNAGE_RUN";

/// Names source files for which the job reads other text: each file on a line, and on the next its copy.
pub const SOURCES_VARIABLE: &str = "TONNAGE_SOURCES";

/// Which of the run's machines a process is on, where there are several; see [`RunConfig::machines`].
pub const MACHINE_VARIABLE: &str = "TONNAGE_MACHINE";

/// Lists addresses of this machine that count as other machines, with commas: tests need such a host.
pub const REMOTE_HOSTS_VARIABLE: &str = "TONNAGE_REMOTE_HOSTS";

/// Names the directory that holds the changes of a job whose files are protected; without it nothing is redirected.
pub const FILES_VARIABLE: &str = "TONNAGE_FILES";

/// Names the mechanism that protects files: [`FILES_BY_PRELOAD`] or [`FILES_BY_OVERLAY`].
pub const FILES_BY_VARIABLE: &str = "TONNAGE_FILES_BY";

/// The stand-in redirects writes itself.
pub const FILES_BY_PRELOAD: &str = "preload";

/// A mount of the kernel redirects writes; the stand-in only completes renames of directories.
pub const FILES_BY_OVERLAY: &str = "overlay";

/// Makes a process enter the protected view before its `main`: [`FILES_ENTER_MAKE`], or the process id of the keeper.
pub const FILES_ENTER_VARIABLE: &str = "TONNAGE_FILES_ENTER";

/// The process makes the view and keeps it; see [`FILES_ENTER_VARIABLE`].
pub const FILES_ENTER_MAKE: &str = "make";

/// The file below [`FILES_VARIABLE`] with the reason why a view could not be made or joined.
pub const FILES_ERROR: &str = "error";

/// Names the directory of changes to which the kernel restricts this process; see [`FILES_BY_PRELOAD`].
pub const FILES_SEALED_VARIABLE: &str = "TONNAGE_FILES_SEALED";

/// The directory below [`FILES_VARIABLE`] with every new or changed file, each under its absolute path.
pub const FILES_UPPER: &str = "upper";

/// The directory below [`FILES_VARIABLE`] with a mark for each deleted file, each under its absolute path.
pub const FILES_DELETED: &str = "deleted";

/// The file below [`FILES_VARIABLE`] with the prefixes of paths that are not protected, each absolute and on a line.
pub const FILES_THROUGH: &str = "through";

/// The file below [`FILES_VARIABLE`] with a line for each path at which the stand-in refused a change.
pub const FILES_REFUSED: &str = "refused";

/// The name of the [`RunConfig`] file inside the folder.
pub const CONFIG_FILE: &str = "run.json";

/// The name of the [`ledger`] file inside the folder.
pub const LEDGER_FILE: &str = "ledger";

/// How the [`log`] of each process is called: this, the number of the process in the run and its process id.
pub const LOG_PREFIX: &str = "process-";

/// How the folder of a dry run is called: this and something random.
pub const RUN_FOLDER_PREFIX: &str = "tonnage-run-";

/// How the folder of a job that is recorded on a real GPU is called, likewise.
pub const RECORD_FOLDER_PREFIX: &str = "tonnage-record-";

/// The file that names the job of a folder, a [`Running`] as JSON. The process that started the job keeps it locked as
/// long as the job runs; a lock ends with the process that has it, however that ends.
pub const RUNNING_FILE: &str = "running";

/// Which job a folder is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Running {
    /// Its command, word by word.
    pub command: Vec<String>,
}
