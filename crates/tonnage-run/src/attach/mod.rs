// SPDX-License-Identifier: MIT OR Apache-2.0
//! Queries a Python process that runs for its GPU memory and the holders of it, without a restart.
//!
//! A short text runs in the process, at the next point where Python's main thread can run one: from Python 3.14 on by
//! Python's own `sys.remote_exec`, before it by a debugger that adds a pending call. The text imports modules of the hook
//! (`torch/attached.py`), writes an answer to a file, and removes the modules again. The answer becomes a recording
//! of one moment.
//!
//! The addresses of Python's functions are computed here, from the files that the process has mapped. The debugger then
//! reads no symbols, which would take seconds while the process stands still. A main thread that waits for a lock
//! gets the error of an interrupted call, after which Python runs the text and waits on.

mod elf;
mod process;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;
use thiserror::Error;
use tonnage_import::pytorch::{BlockState, Snapshot, When};
use tonnage_recording::{Kind, Writer, facts, meta};

pub use self::process::{PythonProcess, torch_processes};

use self::process::folder_of;
use crate::measured::note_row;
use crate::record::catalogued;
use crate::{PRODUCER, hook};

/// Python 3.14 and later run a text on request.
const HAS_REQUESTS: u16 = 14;
/// The time that a debugger gets to add the call.
const DEBUGGER: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(10);
/// Notes of a census: a holder, and a moment.
const HOLDER: u8 = 4;

/// Why a process did not answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no such process.
    #[error("there is no process {id}")]
    NoProcess {
        /// The requested number.
        id: u32,
    },
    /// The process does not run Python.
    #[error("process {id} does not run Python: {command}")]
    NotPython {
        /// The process.
        id: u32,
        /// Its command line.
        command: String,
    },
    /// The process has not imported torch.
    #[error("process {id} has not imported torch")]
    NoTorch {
        /// The process.
        id: u32,
    },
    /// The process has not used a GPU.
    #[error("process {id} has not used a GPU: CUDA is not initialized in it")]
    NoDevice {
        /// The process.
        id: u32,
        /// The process that started it, if that has torch.
        parent: Option<u32>,
    },
    /// The kernel refuses.
    #[error("process {id} cannot be attached to: {why}")]
    NotAllowed {
        /// The process.
        id: u32,
        /// The reason.
        why: String,
    },
    /// There is no debugger.
    #[error("gdb is not installed, which is needed to attach to Python before 3.14")]
    NoDebugger,
    /// The Python of the process does not export its functions.
    #[error("the Python of process {id} does not export the functions that are needed")]
    NoSymbols {
        /// The process.
        id: u32,
    },
    /// The main thread did not get to a point where Python can run something.
    #[error("the main thread of process {id} ran no Python for {seconds} s{}", waiting(waits_in.as_ref()))]
    Busy {
        /// The process.
        id: u32,
        /// How long was waited.
        seconds: u64,
        /// The function of the kernel in which the main thread waits.
        waits_in: Option<String>,
    },
    /// The process has ended.
    #[error("process {id} ended before it answered")]
    Ended {
        /// The process.
        id: u32,
    },
    /// The text in the process failed.
    #[error("the query failed in process {id}: {why}")]
    Failed {
        /// The process.
        id: u32,
        /// The exception.
        why: String,
    },
    /// A file cannot be read or written.
    #[error("cannot exchange files with process {id}")]
    Files {
        /// The process.
        id: u32,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The recording cannot be written.
    #[error("the recording cannot be written")]
    Record(#[from] tonnage_recording::WriteError),
}

fn waiting(waits_in: Option<&String>) -> String {
    waits_in.map_or_else(String::new, |place| format!(" (it waits in {place})"))
}

impl AttachError {
    /// The next step.
    pub fn hint(&self) -> String {
        match self {
            Self::NoProcess { .. } | Self::Ended { .. } => {
                "`tonnage top` lists the processes that use torch".to_owned()
            }
            Self::NotPython { .. } => {
                "name the Python process: `tonnage top` lists those that use torch; a launcher such as torchrun starts one for each GPU"
                    .to_owned()
            }
            Self::NoTorch { .. } => {
                "wait until it has, or name another process: `tonnage top` lists those that use torch"
                    .to_owned()
            }
            Self::NoDevice {
                parent: Some(parent),
                ..
            } => format!(
                "it may be a worker of a data loader: try its parent, `tonnage attach {parent}`"
            ),
            Self::NoDevice { parent: None, .. } => {
                "wait until the job uses the GPU, or name another process".to_owned()
            }
            Self::NotAllowed { id, .. } => format!(
                "use `sudo tonnage attach {id}`; in a container, start it with --cap-add SYS_PTRACE"
            ),
            Self::NoDebugger => {
                "install it with `sudo apt-get install gdb` (Debian, Ubuntu) or `sudo dnf install gdb` (Fedora, RHEL)"
                    .to_owned()
            }
            Self::NoSymbols { .. } => {
                "use a Python from python.org, conda, uv or a Linux distribution, or run the job with `tonnage record`"
                    .to_owned()
            }
            Self::Busy { .. } => {
                "nothing was changed and the query was withdrawn; try again, or give it longer with --timeout. A thread that hangs in a collective runs no Python"
                    .to_owned()
            }
            Self::Failed { .. } => {
                "the process goes on; please report this with the text above".to_owned()
            }
            Self::Files { .. } => {
                "check that the process can write to /tmp; the folder of its container is used"
                    .to_owned()
            }
            Self::Record(_) => "check the folder and the space on its disk".to_owned(),
        }
    }
}

/// The counters of PyTorch for one device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counters {
    /// Number of the device, as the process counts.
    pub device: i32,
    /// The driver's name.
    pub name: Option<String>,
    /// Bytes in tensors and other blocks.
    pub allocated: u64,
    /// Bytes that PyTorch obtained from the driver.
    pub reserved: u64,
    /// Most bytes that were ever allocated at once.
    pub peak_allocated: u64,
    /// Bytes of the device that no process uses.
    pub free: Option<u64>,
    /// Bytes of the device.
    pub total: Option<u64>,
}

impl Counters {
    /// Bytes that PyTorch keeps for later requests.
    pub fn cached(&self) -> u64 {
        self.reserved.saturating_sub(self.allocated)
    }
}

/// The answer of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Attached {
    /// Number of the process.
    pub process_id: u32,
    /// Its command line.
    pub command: String,
    /// Version of Python.
    pub python: String,
    /// Version of torch.
    pub torch: String,
    /// The devices that it uses.
    pub devices: Vec<Counters>,
    /// Bytes in blocks.
    pub bytes: u64,
    /// Bytes in blocks that a Python object holds, as far as the query found it.
    pub held: u64,
    /// Whether a backward pass was in progress. Memory of its graphs then has no name.
    pub in_backward: bool,
    /// Milliseconds for which the process stood still for the debugger, and for the query itself.
    pub paused: [u64; 2],
}

/// Settings of a query.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct AttachOptions {
    /// How long the main thread may take to get to a point where it can run the query.
    pub patience: Duration,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self {
            patience: Duration::from_secs(30),
        }
    }
}

/// The file that the text in the process writes.
#[derive(Deserialize)]
struct Reply {
    #[serde(default)]
    python: String,
    #[serde(default)]
    torch: String,
    problem: Option<String>,
    #[serde(default)]
    devices: Vec<Counters>,
    snapshot: Option<serde_json::Value>,
    #[serde(default)]
    backward: bool,
    #[serde(default)]
    holders: Vec<(u8, u64, String)>,
    #[serde(default)]
    seconds: f64,
}

/// Queries a process for its counters alone.
///
/// # Errors
///
/// See [`attach`].
pub fn counters(process: &PythonProcess, options: AttachOptions) -> Result<Attached, AttachError> {
    let (reply, stopped) = query(process, options, true)?;
    Ok(summary(process, &reply, stopped))
}

/// Queries a process for its blocks and their holders, and writes them as a recording of this moment.
///
/// # Errors
///
/// If the process cannot be attached to, does not answer in time, or has not used a GPU. It goes on in each case.
pub fn attach(
    process: &PythonProcess,
    options: AttachOptions,
    recording: &Path,
) -> Result<Attached, AttachError> {
    let (mut reply, stopped) = query(process, options, false)?;
    let mut attached = summary(process, &reply, stopped);
    let snapshot = reply.snapshot.take().unwrap_or_default().to_string();
    let file = File::options().append(true).create(true).open(recording);
    let file = file.map_err(tonnage_recording::WriteError::from)?;
    let mut writer = Writer::new(file, PRODUCER)?;
    let failed = |error: tonnage_import::ImportError| AttachError::Failed {
        id: process.id,
        why: error.to_string(),
    };
    let snapshot = Snapshot::parse(snapshot.as_bytes(), writer.stacks_mut()).map_err(failed)?;
    for segment in &snapshot.segments {
        for row in segment.events(When::Initial, writer.stacks_mut()) {
            writer.event(&row)?;
        }
    }
    let live: BTreeMap<u64, (i32, u64)> = snapshot
        .segments
        .iter()
        .flat_map(|segment| segment.blocks.iter().map(move |block| (segment, block)))
        .filter(|(_, block)| block.state == BlockState::Allocated)
        .map(|(segment, block)| (block.address, (segment.device, block.size)))
        .collect();
    attached.bytes = live.values().map(|(_, size)| size).sum();
    let first = live.values().next().map_or(0, |&(device, _)| device);
    let mark = |text: &str, writer: &mut Writer<File>| {
        let row = note_row(Kind::Mark, first, None, 0, text, writer.stacks_mut());
        writer.event(&row)
    };
    mark("census\tattach", &mut writer)?;
    for (kind, address, text) in &reply.holders {
        if *kind != HOLDER {
            mark(text, &mut writer)?;
        } else if let Some(&(device, size)) = live.get(address) {
            let row = note_row(
                Kind::Holder,
                device,
                None,
                *address,
                text,
                writer.stacks_mut(),
            );
            writer.event(&row)?;
            attached.held += size;
        }
    }
    for (name, text) in descriptions(process, &reply) {
        writer.meta(facts::RUN, &name, &text)?;
    }
    writer.finish()?;
    Ok(attached)
}

fn summary(process: &PythonProcess, reply: &Reply, stopped: Duration) -> Attached {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let query = Duration::try_from_secs_f64(reply.seconds).unwrap_or_default();
    Attached {
        process_id: process.id,
        command: process.command.clone(),
        python: reply.python.clone(),
        torch: reply.torch.clone(),
        devices: reply.devices.clone(),
        in_backward: reply.backward,
        paused: [milliseconds(stopped), milliseconds(query)],
        ..Attached::default()
    }
}

/// The facts of the recording.
fn descriptions(process: &PythonProcess, reply: &Reply) -> Vec<(String, String)> {
    let mut all = vec![
        (meta::COMMAND.to_owned(), process.command.clone()),
        (meta::PROCESS_ID.to_owned(), process.id.to_string()),
        (meta::TORCH_VERSION.to_owned(), reply.torch.clone()),
        (facts::PYTHON_VERSION.to_owned(), reply.python.clone()),
    ];
    let used = reply.devices.iter().find(|device| device.reserved > 0);
    if let Some(device) = used {
        let name = device.name.clone().unwrap_or_default();
        if let Some(total) = device.total {
            let gpu = catalogued(&name, total);
            all.extend(gpu.map(|gpu| (facts::GPU_ID.to_owned(), gpu.id)));
            all.push((meta::GPU_CAPACITY.to_owned(), total.to_string()));
            let measured = facts::MEASURED.to_owned();
            all.push((facts::GPU_CAPACITY_KNOWN.to_owned(), measured));
        }
        all.push((meta::GPU_NAME.to_owned(), name));
    }
    let unknown = [
        "memory before and after this moment: the process was attached to once",
        "the settings of the allocator",
    ];
    let backward = "memory that the backward pass in progress holds";
    let unknown = unknown
        .into_iter()
        .chain(reply.backward.then_some(backward));
    all.extend(unknown.enumerate().map(|(number, text)| {
        (
            format!("{}.attach.{number}", meta::UNKNOWN),
            text.to_owned(),
        )
    }));
    all
}

/// Runs the text in the process; its reply, and how long a debugger held the process.
fn query(
    process: &PythonProcess,
    options: AttachOptions,
    counts_only: bool,
) -> Result<(Reply, Duration), AttachError> {
    let id = process.id;
    allowed(process)?;
    let files = |source| AttachError::Files { id, source };
    // As the process sees it, which may be in a container.
    let temporary = folder_of(id).join("root/tmp");
    let folder = TempDir::with_prefix_in("tonnage-attach-", &temporary).map_err(files)?;
    let name = folder.path().file_name().unwrap_or_default();
    let seen = Path::new("/tmp").join(name);
    hook::write(folder.path(), &serde_json::json!({})).map_err(files)?;
    let script = script(&seen, counts_only);
    fs::write(folder.path().join(SCRIPT), script).map_err(files)?;
    let owner = fs::metadata(folder_of(id)).map_err(|_| AttachError::Ended { id })?;
    if owner.uid() != geteuid().as_raw() {
        chown(folder.path(), Some(owner.uid()), Some(owner.gid())).map_err(files)?;
    }
    let script = seen.join(SCRIPT);
    let stopped = if process.python.is_some_and(|minor| minor >= HAS_REQUESTS) {
        request(process, &script)?
    } else {
        call(process, &script)?
    };
    let reply = wait(id, &folder.path().join(REPLY), options.patience)?;
    let reply: Result<Reply, _> = serde_json::from_slice(&reply);
    let reply = reply.map_err(|error| AttachError::Failed {
        id,
        why: format!("its answer is not readable: {error}"),
    })?;
    match reply.problem.as_deref() {
        None => Ok((reply, stopped)),
        Some("no_torch") => Err(AttachError::NoTorch { id }),
        Some("no_device") => Err(AttachError::NoDevice {
            id,
            parent: parent_of(id),
        }),
        Some(why) => Err(AttachError::Failed {
            id,
            why: why.to_owned(),
        }),
    }
}

const SCRIPT: &str = "query.py";
const REPLY: &str = "reply.json";

/// The text that runs in the process. It leaves the modules, the path and the settings of Python as they were.
fn script(folder: &Path, counts_only: bool) -> String {
    let text = |path: &Path| serde_json::Value::from(path.to_string_lossy()).to_string();
    let hook = text(&folder.join(hook::FOLDER));
    let reply = text(&folder.join(REPLY));
    let counts_only = if counts_only { "True" } else { "False" };
    format!("FOLDER, REPLY, COUNTS_ONLY = {hook}, {reply}, {counts_only}\n{INSIDE}")
}

const INSIDE: &str = include_str!("inside.py");

/// Whether the kernel lets this user attach, as far as it can be known before.
fn allowed(process: &PythonProcess) -> Result<(), AttachError> {
    let own = geteuid();
    if own.is_root() {
        return Ok(());
    }
    let refuse = |why: &str| {
        Err(AttachError::NotAllowed {
            id: process.id,
            why: why.to_owned(),
        })
    };
    if process.user != own.as_raw() {
        return refuse("it belongs to another user");
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => Ok(()),
        _ => refuse("kernel.yama.ptrace_scope lets only the administrator attach to processes"),
    }
}

/// Has Python 3.14 run the script: another process of the same Python writes the request.
fn request(process: &PythonProcess, script: &Path) -> Result<Duration, AttachError> {
    let code = "import sys; sys.remote_exec(int(sys.argv[1]), sys.argv[2])";
    let begun = Instant::now();
    let done = Command::new(process.interpreter())
        .args(["-I", "-S", "-c", code, &process.id.to_string()])
        .arg(script)
        .stdin(Stdio::null())
        .output();
    let refuse = |why: String| AttachError::NotAllowed {
        id: process.id,
        why,
    };
    let done = done.map_err(|error| refuse(format!("its Python cannot be started: {error}")))?;
    if done.status.success() {
        // A request stops nothing; this is the upper bound.
        return Ok(begun.elapsed());
    }
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    let last = errors.trim().lines().next_back().unwrap_or("no reason");
    Err(refuse(last.to_owned()))
}

/// Has an older Python run the script: a debugger adds a call to those that the main thread has to make.
fn call(process: &PythonProcess, script: &Path) -> Result<Duration, AttachError> {
    let id = process.id;
    let [add, run, map] = process.addresses()?;
    let path = script.to_string_lossy();
    // The folder is deleted when the caller gives up; the call then does nothing.
    let text =
        format!("__import__('os').path.exists('{path}') and exec(open('{path}').read(), {{}})");
    let commands = format!(
        "attach {id}\n\
         set $page = ((unsigned long (*)(unsigned long, unsigned long, int, int, int, long)) {map:#x})(0, 4096, 3, 0x22, -1, 0)\n\
         set {{char[{}]}} $page = \"{text}\"\n\
         output ((int (*)(unsigned long, unsigned long)) {add:#x})({run:#x}, $page)\n\
         if $orig_rax == 202 && (long) $rax <= -512 && (long) $rax >= -516\n\
         set $rax = -4\n\
         set $orig_rax = -1\n\
         end\n\
         detach\n",
        text.len() + 1
    );
    let mut file =
        tempfile::NamedTempFile::new().map_err(|source| AttachError::Files { id, source })?;
    file.write_all(commands.as_bytes())
        .map_err(|source| AttachError::Files { id, source })?;
    let begun = Instant::now();
    let settings = [
        "set auto-solib-add off",
        "set auto-load off",
        "set debuginfod enabled off",
        "set exec-file-mismatch off",
        "set libthread-db-search-path /nonexistent",
        "set confirm off",
    ];
    let mut debugger = Command::new("gdb");
    // Another program in the place of the Python, so that its symbols are not read.
    debugger.args(["-nx", "-batch", "/bin/true"]);
    for setting in settings {
        debugger.args(["-iex", setting]);
    }
    let started = debugger
        .arg("-x")
        .arg(file.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => AttachError::NoDebugger,
        _ => AttachError::Files { id, source: error },
    })?;
    while child.try_wait().ok().flatten().is_none() {
        if begun.elapsed() > DEBUGGER {
            // It detaches when it ends.
            _ = child.kill();
            break;
        }
        std::thread::sleep(POLL);
    }
    let stopped = begun.elapsed();
    let done = child
        .wait_with_output()
        .map_err(|source| AttachError::Files { id, source })?;
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    if done.status.success() && done.stdout.contains(&b'0') && !errors.contains("ptrace:") {
        return Ok(stopped);
    }
    if !folder_of(id).exists() {
        return Err(AttachError::Ended { id });
    }
    let mut lines = errors.lines().filter(|line| !line.trim().is_empty());
    let first = lines.find(|line| !line.starts_with("warning:"));
    Err(AttachError::NotAllowed {
        id,
        why: first.unwrap_or("gdb could not stop it").trim().to_owned(),
    })
}

/// Waits for a file that the process writes.
fn wait(id: u32, reply: &Path, patience: Duration) -> Result<Vec<u8>, AttachError> {
    let begun = Instant::now();
    loop {
        if let Ok(bytes) = fs::read(reply) {
            return Ok(bytes);
        }
        if !is_alive(id) {
            return Err(AttachError::Ended { id });
        }
        if begun.elapsed() > patience {
            let waits_in = fs::read_to_string(folder_of(id).join("wchan")).ok();
            return Err(AttachError::Busy {
                id,
                seconds: patience.as_secs(),
                waits_in: waits_in.filter(|name| !matches!(name.as_str(), "" | "0")),
            });
        }
        std::thread::sleep(POLL);
    }
}

/// Whether a process runs; one that has ended may still have a number.
fn is_alive(id: u32) -> bool {
    let stat = fs::read_to_string(folder_of(id).join("stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// The parent of a process, if it uses torch.
fn parent_of(id: u32) -> Option<u32> {
    let status = fs::read_to_string(folder_of(id).join("status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
    let parent = line.trim().parse().ok()?;
    PythonProcess::find(parent).ok().map(|process| process.id)
}
