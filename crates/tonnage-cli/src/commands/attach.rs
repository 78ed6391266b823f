// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage attach` and `tonnage top`: Python processes that run, and the holders of their GPU memory.
//!
//! Both stop a process for a moment, so they request an agreement first.

use std::fmt::Write as _;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde::Serialize;
use tonnage_run::attach::{
    AttachError, AttachOptions as Settings, Counters, PythonProcess, attach, counters,
    torch_processes,
};

use super::recording::{Output, plain};
use super::run::free;
use crate::Surroundings;
use crate::options::ReplyOptions;
use crate::output::{Answer, DIM, Form, GOOD, Reply, bytes, hinted, print_err};

/// Version of the JSON of both commands.
const SCHEMA_VERSION: u32 = 1;

/// Find out what holds the GPU memory of a running process
///
/// Stops the Python process for a moment, queries its variables, lists,
/// modules, optimizers and graphs for the blocks they hold, and lets it go on.
/// Needs neither a restart nor a recorded history. Writes a recording of this
/// moment and prints its explanation. Attaches only after you agree.
///
/// Python 3.14 runs the query on request; for an older one, gdb is needed.
///
/// Exit code: 0 attached, 2 the process cannot be attached to.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage top
  tonnage attach 4711
  sudo tonnage attach 4711 --yes -o full.tonnage")]
pub(crate) struct AttachOptions {
    /// The number of the process; `tonnage top` lists those that use torch.
    #[arg(value_name = "PID")]
    pub(crate) process: u32,
    /// Where to write the recording [default: attach-PID.tonnage, with a number if that is taken].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite the output if it is there.
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

/// List the processes of this machine that use torch, with their GPU memory
///
/// Reads the counters of PyTorch in each process: allocated, reserved and
/// cached memory. For that it stops each of them for a moment, after you agree.
///
/// Exit code: 0 listed, 1 there is no such process, 2 failure.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage top
  tonnage top --yes --json")]
pub(crate) struct TopOptions {
    #[command(flatten)]
    pub(crate) consent: Consent,
    #[command(flatten)]
    pub(crate) reply: ReplyOptions,
}

#[derive(Args, Debug)]
pub(crate) struct Consent {
    /// Agree in advance.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Seconds that a process gets to reach a point where it can run the query.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) timeout: u16,
}

/// A process that was attached to.
#[derive(Serialize)]
pub(crate) struct AttachedProcess {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    schema_version: u32,
    /// The recording.
    recording: String,
    /// Number of the process.
    process_id: u32,
    /// Its command line.
    command: String,
    /// Version of Python.
    python: String,
    /// Version of torch.
    torch: String,
    /// The devices that it uses.
    devices: Vec<DeviceMemory>,
    /// Bytes in blocks.
    bytes: u64,
    /// Bytes of them for which a holder was found.
    held: u64,
    /// Whether a backward pass was in progress. Memory of its graphs then has no name.
    in_backward: bool,
    /// Milliseconds that the debugger or the request took, during which the process may have stood still.
    stopped_ms: u64,
    /// Milliseconds that the query took inside of the process.
    query_ms: u64,
}

/// The processes that use torch.
#[derive(Serialize)]
pub(crate) struct Processes {
    /// Version of this JSON: [`SCHEMA_VERSION`].
    schema_version: u32,
    /// The processes, by their numbers.
    processes: Vec<ListedProcess>,
}

/// A process that uses torch.
#[derive(Serialize)]
pub(crate) struct ListedProcess {
    /// Its number.
    process_id: u32,
    /// The number of the user that started it.
    user: u32,
    /// Its command line.
    command: String,
    /// The devices that it uses.
    devices: Vec<DeviceMemory>,
    /// Why its memory is not known.
    unknown: Option<String>,
}

/// The counters of PyTorch for one device.
#[derive(Serialize)]
pub(crate) struct DeviceMemory {
    /// Number of the device, as the process counts.
    device: i32,
    /// The driver's name.
    name: Option<String>,
    /// Bytes in tensors and other blocks.
    allocated: u64,
    /// Bytes that PyTorch obtained from the driver.
    reserved: u64,
    /// Bytes that PyTorch keeps for later requests.
    cached: u64,
    /// Most bytes that were ever allocated at once.
    peak_allocated: u64,
    /// Bytes of the device.
    total: Option<u64>,
}

impl DeviceMemory {
    fn of_used(all: &[Counters]) -> Vec<Self> {
        let used = all.iter().filter(|one| one.reserved > 0);
        used.map(|one| Self {
            device: one.device,
            name: one.name.clone(),
            allocated: one.allocated,
            reserved: one.reserved,
            cached: one.cached(),
            peak_allocated: one.peak_allocated,
            total: one.total,
        })
        .collect()
    }
}

/// Attaches to a process and explains its memory.
pub(crate) fn run(typed: &AttachOptions, form: Form, surroundings: &Surroundings) -> Result<Reply> {
    let process = PythonProcess::find(typed.process).map_err(|error| with_hint(&error))?;
    let named = format!("process {} ({})", process.id, process.command);
    agree(
        &typed.consent,
        &format!("{named} stands still for a few seconds."),
    )?;
    let path = typed.output.clone().unwrap_or_else(|| {
        let path = PathBuf::from(format!("attach-{}.tonnage", process.id));
        if typed.force { path } else { free(path) }
    });
    let output = Output::create(&path, typed.force)?;
    let Some(written) = output.path() else {
        return Err(hinted(
            format!("{} is not a file", path.display()),
            "a recording is read again for its analysis: name a file with -o",
        ));
    };
    let attached =
        attach(&process, settings(&typed.consent), written).map_err(|error| with_hint(&error))?;
    output.finish()?;
    let result = AttachedProcess {
        schema_version: SCHEMA_VERSION,
        recording: path.to_string_lossy().into_owned(),
        process_id: attached.process_id,
        devices: DeviceMemory::of_used(&attached.devices),
        command: attached.command,
        python: attached.python,
        torch: attached.torch,
        bytes: attached.bytes,
        held: attached.held,
        in_backward: attached.in_backward,
        stopped_ms: attached.paused[0],
        query_ms: attached.paused[1],
    };
    let reply = Reply::new(form, Answer::Yes, &result, |result| {
        let explained = super::explain::explain_recording(&path, surroundings);
        let explained = match explained {
            Ok(text) => text.unwrap_or_default(),
            Err(error) => format!("not explained: {error}"),
        };
        format!("{}\n{explained}", describe(result))
    });
    Ok(reply?)
}

/// Lists the processes.
pub(crate) fn list(typed: &TopOptions, form: Form) -> Result<Reply> {
    let found = torch_processes();
    if !found.is_empty() {
        let many = match found.len() {
            1 => "1 process stands still for a moment.".to_owned(),
            many => format!("{many} processes stand still for a moment each."),
        };
        agree(&typed.consent, &many)?;
    }
    let settings = settings(&typed.consent);
    let processes = found.iter().map(|process| {
        let answer = counters(process, settings);
        let unknown = answer.as_ref().err().map(ToString::to_string);
        let devices = answer.map(|one| DeviceMemory::of_used(&one.devices));
        ListedProcess {
            process_id: process.id,
            user: process.user,
            command: process.command.clone(),
            devices: devices.unwrap_or_default(),
            unknown,
        }
    });
    let all = Processes {
        schema_version: SCHEMA_VERSION,
        processes: processes.collect(),
    };
    let answer = if all.processes.is_empty() {
        Answer::No
    } else {
        Answer::Yes
    };
    Ok(Reply::new(form, answer, &all, table)?)
}

fn settings(consent: &Consent) -> Settings {
    let mut settings = Settings::default();
    settings.patience = Duration::from_secs(consent.timeout.into());
    settings
}

fn with_hint(error: &AttachError) -> anyhow::Error {
    let hint = error.hint();
    hinted(plain(&with_cause(error)), hint)
}

fn with_cause(error: &AttachError) -> String {
    use std::error::Error as _;
    let cause = error.source().map(|cause| format!(": {cause}"));
    format!("{error}{}", cause.unwrap_or_default())
}

/// Waits for the agreement of the user before a process is stopped.
fn agree(consent: &Consent, effect: &str) -> Result<()> {
    if consent.yes {
        return Ok(());
    }
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return Err(hinted(
            format!("not attached: {effect}"),
            "without a terminal, agree with --yes",
        ));
    }
    print_err(&format!("{effect} Attach? [y/N]"));
    let mut line = String::new();
    stdin.lock().read_line(&mut line)?;
    if matches!(line.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        return Ok(());
    }
    Err(hinted("not attached", "answer y, or give --yes"))
}

fn describe(one: &AttachedProcess) -> String {
    let percent = one.held.saturating_mul(100).checked_div(one.bytes);
    let mut text = format!(
        "{GOOD}attached{GOOD:#} to process {}: {} in blocks, {} % of it with a holder\n",
        one.process_id,
        bytes(one.bytes),
        percent.unwrap_or(0),
    );
    for device in &one.devices {
        let _ = writeln!(text, "  GPU {:<7} {}", device.device, memory(device));
    }
    let _ = writeln!(
        text,
        "  {DIM}paused{DIM:#}     {} ms to attach, {} ms for the query",
        one.stopped_ms, one.query_ms
    );
    if one.in_backward {
        text.push_str("  note       a backward pass was in progress; memory of its graphs has no name. Attach again to see more\n");
    }
    let _ = writeln!(text, "  recording  {}", plain(&one.recording));
    text
}

fn memory(device: &DeviceMemory) -> String {
    let of = device.total.map(|total| format!(" of {}", bytes(total)));
    format!(
        "{} allocated, {} cached, {} reserved{}",
        bytes(device.allocated),
        bytes(device.cached),
        bytes(device.reserved),
        of.unwrap_or_default()
    )
}

fn table(all: &Processes) -> String {
    if all.processes.is_empty() {
        return "no process that can be looked at uses torch with CUDA; `sudo tonnage top` sees those of other users"
            .to_owned();
    }
    let mut text = format!(
        "{:>8} {:>3} {:>12} {:>12} {:>12}  command\n",
        "process", "GPU", "allocated", "reserved", "cached"
    );
    for process in &all.processes {
        let command = plain(&process.command);
        for one in &process.devices {
            let _ = writeln!(
                text,
                "{:>8} {:>3} {:>12} {:>12} {:>12}  {command}",
                process.process_id,
                one.device,
                bytes(one.allocated),
                bytes(one.reserved),
                bytes(one.cached),
            );
        }
        if process.devices.is_empty() {
            let why = process
                .unknown
                .as_deref()
                .map_or("no GPU memory".to_owned(), plain);
            let _ = writeln!(
                text,
                "{:>8}   {why}  {DIM}{command}{DIM:#}",
                process.process_id
            );
        }
    }
    text
}
