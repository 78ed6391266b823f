// SPDX-License-Identifier: MIT OR Apache-2.0
//! Observations of jobs, as plain data.

use std::time::SystemTime;

/// The content of a folder at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Whether the folder is there and can be read.
    pub found: bool,
    /// The jobs that run, and those that ended a short while ago.
    pub jobs: Vec<Job>,
    /// Files that make no sense.
    pub damaged: u64,
    /// Folders and files that are not read because there are too many.
    pub skipped: u64,
}

/// Where the memory of a job is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Source {
    /// On a GPU.
    #[default]
    Gpu,
    /// Nowhere: a dry run keeps account of it.
    DryRun,
}

impl Source {
    /// In a word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Gpu => "gpu",
            Self::DryRun => "dry_run",
        }
    }
}

/// A job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    /// The smallest number that no other running job had when it was first seen.
    pub number: u32,
    /// The script, or the module after `-m`, or the program: as forecasts call it.
    pub family: String,
    /// Where its memory is.
    pub source: Source,
    /// Whether it runs.
    pub is_running: bool,
    /// Its processes that use a GPU.
    pub processes: Vec<Process>,
}

/// A process of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Its number in the job.
    pub number: u64,
    /// Its rank, if it has one.
    pub rank: Option<u32>,
    /// Whether all that it did so far is recorded.
    pub is_complete: bool,
    /// When something was last recorded.
    pub last_event: Option<SystemTime>,
    /// The devices that it uses.
    pub devices: Vec<Device>,
}

/// The memory of a process on a device. Unknown values are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its number on the machine.
    pub number: u32,
    /// Its id in the catalogue, or else the driver's name of it.
    pub gpu: String,
    /// The driver's own id of it.
    pub uuid: String,
    /// Bytes that it has.
    pub total: Option<u64>,
    /// Bytes in use by whomever.
    pub in_use: Option<u64>,
    /// Bytes of this process.
    pub used: Option<u64>,
    /// The most of it.
    pub peak_used: Option<u64>,
    /// Bytes that PyTorch has handed out.
    pub allocated: Option<u64>,
    /// The most of it.
    pub peak_allocated: Option<u64>,
    /// Bytes that PyTorch holds.
    pub reserved: Option<u64>,
    /// The most of it.
    pub peak_reserved: Option<u64>,
    /// Bytes that lie free in segments of which a part is in use.
    pub inactive_split: Option<u64>,
    /// How often PyTorch ran out of memory.
    pub ooms: u64,
}
