// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a dry run could not be done. That a job does not fit, or fails, is a result and no error.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;
use tonnage_analysis::verdict::VerdictError;

use crate::collect::CollectError;

/// Why a dry run could not be done.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The job has no command.
    #[error("there is no command to run")]
    NoCommand,
    /// The command is not a program.
    #[error("cannot find the command {command}")]
    CommandNotFound {
        /// Its first word.
        command: String,
    },
    /// The script of the command is missing.
    #[error("there is no script {}", script.display())]
    NoScript {
        /// The file.
        script: PathBuf,
    },
    /// Python cannot compile the script of the command.
    #[error("the script failed before using the GPU: {kind} ({}:{line}): {message}", script.display())]
    Script {
        /// The type of the exception.
        kind: String,
        /// The file.
        script: PathBuf,
        /// The line; 0 if it is not known.
        line: u64,
        /// The message of the exception.
        message: String,
    },
    /// A program cannot be started.
    #[error("cannot run {program}")]
    Start {
        /// The program.
        program: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A constant of the source is not to be found, or in more than one place.
    #[error("cannot give {name} another value in {}: {why}", file.display())]
    Constant {
        /// Its name.
        name: String,
        /// The file.
        file: PathBuf,
        /// The problem.
        why: String,
        /// The lines that give it a value, if there are several.
        lines: Vec<usize>,
    },
    /// The fork server that was to start a variant has ended.
    #[error("the fork server ended: {why}")]
    ForkServer {
        /// The known part of it.
        why: String,
    },
    /// The file for the job's output cannot be opened.
    #[error("cannot write the job's output to {}", path.display())]
    Output {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The user's files cannot be protected from the job.
    #[error("cannot protect files from the job")]
    Protect(#[source] io::Error),
    /// The files of the job cannot be kept.
    #[error("cannot copy the files of the job to {}", folder.display())]
    KeepFiles {
        /// The target.
        folder: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The end of the job cannot be waited for.
    #[error("cannot wait for the command")]
    Wait(#[source] io::Error),
    /// The job's Python has no torch.
    #[error("{} has no torch{}", python.display(), beside(others))]
    NoTorch {
        /// The interpreter.
        python: PathBuf,
        /// Packages it has that use GPUs without torch.
        others: Vec<String>,
    },
    /// The job's Python does not run.
    #[error("{} does not work: {message}", python.display())]
    BrokenPython {
        /// The interpreter.
        python: PathBuf,
        /// The last line that it printed.
        message: String,
    },
    /// Files of the job's torch are missing.
    #[error("the torch of {} is incomplete: {} cannot be read", python.display(), file.display())]
    IncompleteTorch {
        /// The interpreter.
        python: PathBuf,
        /// The file.
        file: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The job's torch is a build for CPUs.
    #[error("the torch of {} is built without CUDA", python.display())]
    TorchWithoutCuda {
        /// The interpreter.
        python: PathBuf,
    },
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A rank that the job does not have.
    #[error("there is no rank {rank} in a job of {size}")]
    NoSuchRank {
        /// The rank.
        rank: u32,
        /// How many there are.
        size: u32,
    },
    /// A job of no ranks, of too many, or of which none would run.
    #[error("a job of {size} ranks of which none would run, or of more than {most}")]
    NoRanks {
        /// How many there are.
        size: u32,
        /// The limit.
        most: u32,
    },
    /// The ranks are on more machines than a run can have.
    #[error("the ranks are on {machines} machines of {gpus} GPUs; a run has at most {most} GPUs")]
    TooManyMachines {
        /// How many machines.
        machines: usize,
        /// GPUs of each.
        gpus: u8,
        /// The limit.
        most: usize,
    },
    /// The store in which ranks meet cannot be served.
    #[error("cannot serve the store in which the ranks meet")]
    Store(#[source] io::Error),
    /// The GPU is in the catalogue, but cannot be simulated.
    #[error("{gpu} cannot be simulated: {reason}")]
    UnsupportedGpu {
        /// Its name.
        gpu: String,
        /// Why not.
        reason: String,
    },
    /// A part of a mask is at most the whole.
    #[error("an assumed mask has at most 100 %, not {percent} %")]
    AssumedMask {
        /// The requested value.
        percent: u8,
    },
    /// No change has this name.
    #[error("no change is called {name:?}{}", suggest_name(near.as_ref()))]
    UnknownChange {
        /// The requested value.
        name: String,
        /// The name that is most like it.
        near: Option<String>,
        /// The names of all changes.
        known: Vec<&'static str>,
    },
    /// Two changes cannot be made together.
    #[error("{one} and {other} cannot be made together")]
    ChangesExclude {
        /// One of them.
        one: String,
        /// The other.
        other: String,
    },
    /// No machine has so many GPUs.
    #[error("{gpus} GPUs cannot be simulated: a machine has 1 to {most}")]
    GpuCount {
        /// How many were wanted.
        gpus: u8,
        /// The limit.
        most: u8,
    },
    /// The machine has its own device.
    #[error("this machine has a real NVIDIA device ({})", sign.display())]
    RealGpu {
        /// The file that shows it.
        sign: PathBuf,
    },
    /// There is no device to record.
    #[error("this machine has no NVIDIA GPU that the job could use")]
    NoGpu {
        /// The command.
        job: String,
    },
    /// The real GPU is not in the catalogue.
    #[error("the GPU {gpu} ({capacity} bytes) is not in the catalogue, so it cannot be simulated")]
    NotCatalogued {
        /// The driver's name.
        gpu: String,
        /// Its bytes.
        capacity: u64,
    },
    /// A recording is not one of a real GPU.
    #[error("{} was not measured on a GPU", path.display())]
    NotMeasured {
        /// Its file.
        path: PathBuf,
    },
    /// A recording cannot be compared.
    #[error("cannot compare the recording {}", path.display())]
    Compare {
        /// Its file.
        path: PathBuf,
        /// The problem.
        source: tonnage_recording::ReadError,
    },
    /// A given stand-in library is not there.
    #[error("the stand-in library {} cannot be used", path.display())]
    StandinUnreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// There is no stand-in library.
    #[error("{name} is not beside {}", executable.display())]
    NoStandin {
        /// Its file name.
        name: &'static str,
        /// The program that runs.
        executable: PathBuf,
    },
    /// It is not known where this program is.
    #[error("cannot locate the tonnage executable")]
    NoExecutable(#[source] io::Error),
    /// The temporary folder is on a file system from which nothing may be executed.
    #[error("nothing may be executed in {}", folder.display())]
    NoExec {
        /// The folder.
        folder: PathBuf,
    },
    /// The temporary folder cannot be made.
    #[error("cannot create a temporary folder")]
    Temporary(#[source] io::Error),
    /// A file in the temporary folder cannot be written.
    #[error("cannot write to the temporary folder {}", folder.display())]
    Prepare {
        /// The folder.
        folder: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The recording cannot be made.
    #[error("cannot make the recording {}", path.display())]
    Record {
        /// Its file.
        path: PathBuf,
        /// The problem.
        source: CollectError,
    },
    /// The recording cannot be judged.
    #[error("cannot read the recording {}", path.display())]
    Judge {
        /// Its file.
        path: PathBuf,
        /// The problem.
        source: VerdictError,
    },
}

/// The hint about a similar name.
fn suggest_name(near: Option<&String>) -> String {
    near.map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

/// The note about packages that a dry run cannot follow.
fn beside(others: &[String]) -> String {
    if others.is_empty() {
        return String::new();
    }
    format!(
        ", but {}: a dry run counts the memory of PyTorch and cannot follow {}",
        others.join(" and "),
        if others.len() == 1 { "it" } else { "them" },
    )
}

/// Whether an interpreter is that of a virtual environment that uv made, which has no pip.
fn is_of_uv(python: &Path) -> bool {
    let configuration = python
        .parent()
        .and_then(Path::parent)
        .map(|environment| environment.join("pyvenv.cfg"));
    let text = configuration.and_then(|file| std::fs::read_to_string(file).ok());
    text.is_some_and(|text| text.lines().any(|line| line.starts_with("uv = ")))
}

/// The command that installs torch anew.
fn reinstalled_torch(python: &Path) -> String {
    if is_of_uv(python) {
        return "uv pip install --reinstall torch".to_owned();
    }
    format!(
        "{} -m pip install --force-reinstall torch",
        python.display()
    )
}

impl RunError {
    /// The remedy, where it is known; for an error of the installation, `tonnage doctor`, too.
    pub fn hint(&self) -> Option<String> {
        let of_installation = matches!(
            self,
            Self::CommandNotFound { .. }
                | Self::NoTorch { .. }
                | Self::BrokenPython { .. }
                | Self::IncompleteTorch { .. }
                | Self::TorchWithoutCuda { .. }
                | Self::RealGpu { .. }
                | Self::StandinUnreadable { .. }
                | Self::NoStandin { .. }
                | Self::NoExec { .. }
                | Self::NoExecutable(_)
                | Self::Start { .. }
                | Self::ForkServer { .. }
                | Self::Protect(_)
                | Self::Temporary(_)
                | Self::Prepare { .. }
                | Self::Store(_)
        );
        let doctor = of_installation.then_some("`tonnage doctor` checks the installation");
        match (self.remedy(), doctor) {
            (Some(remedy), Some(doctor)) => Some(format!("{remedy}; {doctor}")),
            (remedy, doctor) => remedy.or_else(|| doctor.map(str::to_owned)),
        }
    }

    /// The remedy, where it is known.
    pub fn remedy(&self) -> Option<String> {
        let hint = match self {
            Self::CommandNotFound { .. } => {
                "is the virtual environment active? Its folder works too: .venv/bin/python"
            }
            Self::NoScript { .. } => "check the name and the folder that the command runs in",
            Self::Script { script, .. } => {
                return Some(format!(
                    "`python -m py_compile {}` prints the error",
                    script.display()
                ));
            }
            Self::NoTorch { python, .. } => {
                return Some(if is_of_uv(python) {
                    "uv pip install torch, if the job uses it".to_owned()
                } else {
                    format!(
                        "{} -m pip install torch, if the job uses it",
                        python.display()
                    )
                });
            }
            Self::BrokenPython { python, .. } => {
                return Some(format!("`{} -c pass` prints the error", python.display()));
            }
            Self::IncompleteTorch { python, .. } => {
                return Some(format!("{} installs it again", reinstalled_torch(python)));
            }
            Self::TorchWithoutCuda { python } => {
                return Some(format!(
                    "{} installs the ordinary Linux build, which has CUDA; it needs no GPU and no driver",
                    reinstalled_torch(python)
                ));
            }
            Self::UnknownChange { known, .. } => {
                return Some(format!("there are {}", known.join(", ")));
            }
            Self::ChangesExclude { .. } => "choose one of them",
            Self::NoSuchRank { .. } => "ranks are counted from 0",
            Self::NoRanks { .. } => "name some with --ranks, e.g. --ranks 0,7",
            Self::TooManyMachines { .. } => {
                "name fewer ranks, or run them in several turns; `tonnage diff` compares the recordings"
            }
            Self::UnsupportedGpu { .. } => "`tonnage gpus` lists those that can",
            Self::RealGpu { .. } => {
                "run on a machine without one, or allow it with --allow-real-gpu"
            }
            Self::NoGpu { job } => {
                return Some(format!(
                    "a dry run needs none: `tonnage run --gpu NAME -- {job}`; `tonnage gpus` lists the names"
                ));
            }
            Self::NotCatalogued { .. } => {
                "name the most similar one with --gpu NAME; `tonnage gpus` lists them"
            }
            Self::NotMeasured { .. } => {
                "the job used no GPU, or the file is of a dry run: `tonnage record` makes one that was"
            }
            Self::Compare { .. } => {
                "check the file: `tonnage info` lists its contents; `tonnage record` makes a new one"
            }
            Self::NoStandin { .. } => {
                "build the command with `--features bundled`, which has it inside, \
                 or name the library in TONNAGE_STANDIN"
            }
            Self::Constant { name, lines, .. } => {
                return Some(match lines.first() {
                    Some(line) => format!("name the line: --let {name}@{line}={{…}}"),
                    None => format!("name the file that has it: --let config.py:{name}={{…}}"),
                });
            }
            Self::NoExec { .. } => {
                "set TMPDIR to a folder on another file system, such as one in your home"
            }
            _ => return None,
        };
        Some(hint.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_fits_the_environment_and_names_the_doctor() {
        let folder = tempfile::tempdir().unwrap();
        let python = folder.path().join("bin").join("python");
        let missing = RunError::NoTorch {
            python: python.clone(),
            others: Vec::new(),
        };
        let broken = RunError::BrokenPython {
            python: python.clone(),
            message: "ModuleNotFoundError: No module named 'encodings'".to_owned(),
        };
        assert!(!broken.hint().unwrap().contains("install torch"));
        let without_cuda = RunError::TorchWithoutCuda { python };
        assert!(missing.hint().unwrap().contains("-m pip install torch"));
        std::fs::write(folder.path().join("pyvenv.cfg"), "home = /usr\nuv = 0.9\n").unwrap();
        let hint = missing.hint().unwrap();
        assert!(hint.starts_with("uv pip install torch"), "{hint}");
        assert!(hint.contains("`tonnage doctor`"), "{hint}");
        let hint = without_cuda.hint().unwrap();
        assert!(
            hint.starts_with("uv pip install --reinstall torch"),
            "{hint}"
        );
        assert!(hint.contains("`tonnage doctor`"), "{hint}");
    }
}
