// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage doctor`: whether dry runs work here, and a remedy for each problem.

use std::fmt::Write as _;
use std::path::Path;
use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde::{Deserialize, Serialize};
use tonnage_analysis::verdict::{HookFailure, Limitation, Outcome, Unmodelled, Verdict, ended};
use tonnage_run::{Job, JobOutput, Options, Quiet, RunError, dry_run, private_folder, real_gpu};

use crate::Surroundings;
use crate::options::ReplyOptions;
use crate::output::{Answer, BAD, DIM, Form, GOOD, HINT, Reply, WARN, count, plural};

/// Check that dry runs work here, with a remedy for each problem
///
/// Runs a small job dry, and shows the Python, the torch and the CUDA libraries
/// that it found. The exit code is 0 if everything works, 1 if there is a
/// problem, and 2 if the check itself failed.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage doctor
  tonnage doctor --python .venv/bin/python
  tonnage doctor --json")]
pub(crate) struct DoctorOptions {
    /// Check this Python instead of the one on the path.
    #[arg(long, value_name = "FILE")]
    pub(crate) python: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// Version of the JSON of this command.
const SCHEMA_VERSION: u32 = 1;
/// The job that is run.
const PROBE: &str = include_str!("doctor.py");
/// The GPU that is simulated; every GPU of the catalogue would do.
const GPU: &str = "h100-80gb";
/// The checks of the handshake, by the codes of their limitations.
const CHECKS: [(&str, &str); 3] = [
    ("TN301", "block reports of torch's allocator arrive"),
    ("TN302", "operators do not see the hook's dispatch mode"),
    ("TN303", "a known operator returns its known value"),
];
/// The limitations of a hook that does not follow the job, and of a handshake that did not run.
const NO_HANDSHAKE: [&str; 2] = ["TN310", "TN315"];
/// The limitation of a hook that sees no operators; the allocator still reports its blocks.
const NO_VALUES: &str = "TN314";
/// The check that needs no operators.
const BLOCKS: &str = "TN301";

/// The results on this machine.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(crate) struct Diagnosis {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA_VERSION)))]
    schema_version: u32,
    /// Whether there is no problem.
    healthy: bool,
    /// The interpreter and its packages, if the probe job ran.
    found: Option<Found>,
    /// The checks of the handshake between torch, the hook and the stand-in.
    handshake: Vec<Check>,
    /// CUDA functions that the probe job called and that are not modelled.
    unmodelled: Vec<Unmodelled>,
    /// Functions of the hook that failed in the probe job.
    hook_failures: Vec<HookFailure>,
    /// The file that shows a real NVIDIA driver, if there is one.
    real_driver: Option<String>,
    /// The problems, each with a remedy.
    problems: Vec<Problem>,
}

/// The result of the probe job.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Found {
    /// The version of Python.
    python: String,
    /// The file of the interpreter.
    executable: String,
    /// The version of torch.
    torch: String,
    /// The version of CUDA that torch was built for.
    cuda: Option<String>,
    /// The libraries of CUDA.
    libraries: Vec<Library>,
}

/// A library of CUDA.
#[derive(Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Library {
    /// Its name.
    name: String,
    /// The file that answers for it; none if no file has its functions.
    file: Option<String>,
    /// Whether the stand-in of tonnage answers for it.
    replaced: bool,
}

/// A check of the handshake.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Check {
    /// The code of the limitation if it fails.
    code: String,
    /// The property that it checks.
    name: String,
    /// Whether it passed; none if it did not run.
    passed: Option<bool>,
}

/// A problem.
#[derive(Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
struct Problem {
    /// The problem.
    message: String,
    /// The remedy.
    remedy: String,
}

pub(crate) fn run(
    options: &DoctorOptions,
    form: Form,
    surroundings: &Surroundings,
) -> Result<Reply> {
    let diagnosis = diagnose(options, surroundings)?;
    let answer = if diagnosis.healthy {
        Answer::Yes
    } else {
        Answer::No
    };
    Ok(Reply::new(form, answer, &diagnosis, text)?)
}

fn diagnose(options: &DoctorOptions, surroundings: &Surroundings) -> Result<Diagnosis> {
    let mut problems = Vec::new();
    let real_driver = real_gpu();
    if let Some(sign) = &real_driver {
        let error = RunError::RealGpu { sign: sign.clone() };
        problems.push(Problem::from_error(&error));
    }
    let folder = private_folder("tonnage-doctor-")?;
    let (found, verdict) = match probe(options, surroundings, folder.path())? {
        Ok((found, verdict)) => (found, Some(verdict)),
        Err(error) => {
            problems.push(Problem::from_error(&error));
            (None, None)
        }
    };
    if let Some(verdict) = &verdict {
        problems.extend(problems_of(verdict, found.as_ref()));
    }
    Ok(Diagnosis {
        schema_version: SCHEMA_VERSION,
        healthy: problems.is_empty(),
        handshake: checks(verdict.as_ref()),
        found,
        unmodelled: verdict
            .as_ref()
            .map_or_else(Vec::new, |verdict| verdict.unmodelled.clone()),
        hook_failures: verdict.map_or_else(Vec::new, |verdict| verdict.hook_failures),
        real_driver: real_driver.map(|sign| sign.display().to_string()),
        problems,
    })
}

/// Runs the probe job dry. The inner error is one that a dry run of any job would have.
fn probe(
    options: &DoctorOptions,
    surroundings: &Surroundings,
    folder: &Path,
) -> Result<Result<(Option<Found>, Verdict), RunError>> {
    let script = folder.join("tonnage_doctor.py");
    std::fs::write(&script, PROBE)?;
    let answer = folder.join("found.json");
    let mut job = Job::new([script.as_os_str(), answer.as_os_str()]);
    if let Some(python) = &options.python {
        job.command.insert(0, python.into());
    }
    job.folder.clone_from(&surroundings.folder);
    job.environment.clone_from(&surroundings.environment);
    job.output = JobOutput::Discard;
    job.start_scripts_with_python();
    let mut machine = Options::for_gpu(GPU)?;
    machine.allow_real_gpu = true;
    // The probe job's answer outlives the run.
    machine.pass_through.push(folder.to_path_buf());
    machine.forward_signals = surroundings.forward_signals;
    let run = dry_run(&job, &machine, &folder.join("doctor.tonnage"), &mut Quiet);
    Ok(run.map(|run| {
        let text = std::fs::read(&answer).unwrap_or_default();
        (serde_json::from_slice(&text).ok(), run.verdict)
    }))
}

/// The problems that the probe job showed.
fn problems_of(verdict: &Verdict, found: Option<&Found>) -> Vec<Problem> {
    let mut problems: Vec<Problem> = Vec::new();
    if verdict.outcome != Outcome::Fits || found.is_none() {
        let raised = verdict.exceptions.first().map_or_else(
            || format!("it {}", ended(&verdict.ending)),
            |one| {
                let kind = one.kind.strip_prefix("builtins.").unwrap_or(&one.kind);
                format!("{kind}: {}", one.message)
            },
        );
        problems.push(Problem {
            message: format!("the probe job failed: {raised}"),
            remedy: "run `python -c \"import torch\"` in the same environment".to_owned(),
        });
    }
    let remedy =
        "install a release of torch that this tonnage was verified with, or a newer tonnage";
    let of_limitation = |one: &Limitation| Problem {
        message: one.sentence(),
        remedy: remedy.to_owned(),
    };
    problems.extend(verdict.limitations.iter().map(of_limitation));
    problems.extend(verdict.hook_failures.iter().map(|one| {
        Problem {
            message: format!(
                "{} of the hook failed: {}: {}",
                one.function, one.error, one.message
            ),
            remedy: "report it as an issue of tonnage, with the output of `tonnage doctor --json`"
                .to_owned(),
        }
    }));
    let replaced = |library: &&Library| library.file.is_some() && !library.replaced;
    let needed = ["CUDA driver", "CUDA runtime", "NVML"];
    let libraries = found.map_or(&[][..], |found| &found.libraries);
    for library in libraries.iter().filter(replaced) {
        if needed.contains(&&*library.name) {
            problems.push(Problem {
                message: format!("the {} is not replaced", library.name),
                remedy: "unset LD_PRELOAD and LD_LIBRARY_PATH, which put another library first"
                    .to_owned(),
            });
        }
    }
    problems
}

fn checks(verdict: Option<&Verdict>) -> Vec<Check> {
    let verdict = verdict.filter(|verdict| verdict.outcome == Outcome::Fits);
    let limited = |code: &str| {
        let mut limitations = verdict.iter().flat_map(|verdict| &verdict.limitations);
        limitations.any(|limitation| limitation.code == code)
    };
    let ran = verdict.is_some() && !NO_HANDSHAKE.iter().any(|code| limited(code));
    let of = |&(code, check): &(&str, &str)| Check {
        code: code.to_owned(),
        name: check.to_owned(),
        passed: (ran && (code == BLOCKS || !limited(NO_VALUES))).then(|| !limited(code)),
    };
    CHECKS.iter().map(of).collect()
}

impl Problem {
    fn from_error(error: &RunError) -> Self {
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            let _ = write!(message, ": {inner}");
            cause = inner.source();
        }
        Self {
            message,
            remedy: error.remedy().unwrap_or_else(|| {
                "report it as an issue of tonnage, with the output of `tonnage doctor --json`"
                    .to_owned()
            }),
        }
    }
}

fn text(diagnosis: &Diagnosis) -> String {
    let mut text = match (&diagnosis.found, diagnosis.problems.len()) {
        (Some(found), 0) => format!(
            "{GOOD}everything works{GOOD:#}: torch {}, Python {}\n",
            found.torch, found.python
        ),
        (_, problems) => format!("{BAD}{}{BAD:#}\n", plural(problems as u64, "problem")),
    };
    for problem in &diagnosis.problems {
        row(
            &mut text,
            "problem",
            &format!("{WARN}{}{WARN:#}", problem.message),
        );
        row(
            &mut text,
            "remedy",
            &format!("{HINT}{}{HINT:#}", problem.remedy),
        );
    }
    if let Some(found) = &diagnosis.found {
        row(
            &mut text,
            "python",
            &format!("{} ({})", found.python, found.executable),
        );
        let cuda = found.cuda.as_deref().unwrap_or("none");
        row(
            &mut text,
            "torch",
            &format!("{}, built for CUDA {cuda}", found.torch),
        );
        let names = |wanted: fn(&&Library) -> bool| {
            let names: Vec<&str> = found
                .libraries
                .iter()
                .filter(wanted)
                .map(|it| &*it.name)
                .collect();
            names.join(", ")
        };
        row(&mut text, "replaced", &names(|it| it.replaced));
        let own = names(|it| !it.replaced && it.file.is_some());
        if !own.is_empty() {
            row(&mut text, "as installed", &own);
        }
    }
    for check in &diagnosis.handshake {
        let passed = match check.passed {
            Some(true) => format!("{GOOD}yes{GOOD:#}"),
            Some(false) => format!("{BAD}no{BAD:#}"),
            None => "not checked".to_owned(),
        };
        row(
            &mut text,
            "handshake",
            &format!("{}: {passed} {DIM}({}){DIM:#}", check.name, check.code),
        );
    }
    let calls: Vec<String> = diagnosis
        .unmodelled
        .iter()
        .map(|one| format!("{} ({})", one.name, count(one.calls)))
        .collect();
    if diagnosis.found.is_some() {
        let none = "nothing that the probe job calls".to_owned();
        let calls = Some(calls.join(", ")).filter(|calls| !calls.is_empty());
        row(&mut text, "not modelled", &calls.unwrap_or(none));
    }
    let driver = diagnosis
        .real_driver
        .as_deref()
        .unwrap_or("not on this machine, and not needed");
    row(&mut text, "real driver", driver);
    text.trim_end().to_owned()
}

fn row(text: &mut String, name: &str, value: &str) {
    let _ = writeln!(text, "  {name:<12} {value}");
}
