// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starts the variants of a job by forking a process that has imported what they import.
//!
//! Most of a short dry run is spent on starting Python and importing torch. The server is the interpreter of the job
//! itself: the Python hook stops it before the script begins, imports what the first run of the job imported, and forks
//! a child for each variant. The child goes on with the script as if it had just been started. No device was used
//! before the fork, so each variant has its own devices.
//!
//! The server is protected like a run, because imports may write files, and each variant has a fresh view of the user's
//! files. Files that an import wrote would be missing there, so variants of a job whose imports write are not forked.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, IoSlice, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::AsFd as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde::Deserialize;
use serde_json::json;

use crate::error::RunError;
use crate::hook;
use crate::job::{Job, JobOutput};
use crate::observer::Attempt;
use crate::options::Options;
use crate::prepare::prepare;
use crate::python::{self, Torch};
use crate::run_dir::{Prepared, RunDir};
use crate::watch::Started;

/// Passes the hook the address at which it is to serve.
const VARIABLE: &str = "TONNAGE_FORK_SERVER";
/// The file in which the hook lists what a job imported.
const IMPORTS_FILE: &str = "imports";
const SOCKET_FILE: &str = "fork-server";
const OUTPUT_FILE: &str = "fork-server-output";
/// How long the imports may take before they are given up.
const IMPORT_TIMEOUT: Duration = Duration::from_mins(10);
/// How long a fork may take.
const FORK_TIMEOUT: Duration = Duration::from_mins(1);
const POLL: Duration = Duration::from_millis(5);
/// Variables that libraries read while they are imported: variants that differ in one cannot share the imports.
const READ_BY_IMPORTS: [&str; 14] = [
    "PYTHON",
    "PYTORCH_",
    "TORCH",
    "CUDA",
    "CUBLAS",
    "CUDNN",
    "NCCL_",
    "OMP_",
    "MKL_",
    "HF_",
    "TRANSFORMERS_",
    "XFORMERS_",
    "TRITON_",
    "LD_",
];

/// The imports of a job, and the variables that it set before: a fork server does the same.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[non_exhaustive]
pub struct Imports {
    /// Names of modules, in the order in which their imports began.
    pub modules: Vec<String>,
    /// Environment variables that the job changed before it imported torch.
    pub environment: BTreeMap<String, Option<String>>,
}

impl Imports {
    /// Reads what the hook left in the folder of a run.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        let text = fs::read(folder.join(IMPORTS_FILE)).ok()?;
        serde_json::from_slice(&text).ok()
    }
}

/// A message of the server.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reply {
    ready: Option<bool>,
    why: Option<String>,
    asked: bool,
    started: Option<u64>,
    process: Option<u32>,
    ended: Option<u64>,
    status: Option<i32>,
}

/// A step of a variant.
enum Word {
    Started(u32),
    Ended(i32),
}

type Listeners = Arc<Mutex<HashMap<u64, Sender<Word>>>>;

/// A process that has imported what a job imports, and forks a child for each variant of it.
#[derive(Debug)]
pub struct ForkServer {
    stream: Mutex<(UnixStream, u64)>,
    listeners: Listeners,
    process: Child,
    run_dir: RunDir,
    torch: Torch,
    /// The job it was started for; its variants differ in the arguments of the script.
    job: Job,
    /// Which word of the command names the script.
    script: usize,
    /// The GPU, and whether an import requested its properties, which torch keeps.
    gpu: String,
    asked: bool,
}

impl ForkServer {
    /// Starts a server for variants of `job`, which was run once to learn its `imports`.
    ///
    /// # Errors
    ///
    /// [`RunError::ForkServer`] if variants of this job cannot be forked off, with the reason.
    pub fn start(job: &Job, options: &Options, imports: &Imports) -> Result<Self, RunError> {
        let torch = prepare(job, options)?;
        let script = python::script_position(job).ok_or_else(|| {
            refused("the command is not a Python script that is started directly".to_owned())
        })?;
        let mut run_dir = RunDir::create(options, torch, Attempt::Limited)?;
        run_dir.protect_files(job)?;
        let before = run_dir.written();
        let socket = run_dir.path().join(SOCKET_FILE);
        let failed = |source: std::io::Error| refused(format!("no socket: {source}"));
        let listener = UnixListener::bind(&socket).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let mut quiet = job.clone();
        quiet.output = JobOutput::File(run_dir.path().join(OUTPUT_FILE));
        let mut command = run_dir.command(&quiet)?;
        command.stdin(Stdio::null()).env(VARIABLE, &socket);
        let mut process = command.spawn().map_err(|source| RunError::Start {
            program: command.get_program().to_string_lossy().into_owned(),
            source,
        })?;
        let ready = connect(&listener, &mut process)
            .and_then(|stream| greet(stream, imports))
            .map_err(|why| {
                let _ = process.kill();
                let _ = process.wait();
                refused(why)
            });
        let (stream, asked) = ready?;
        let listeners = Listeners::default();
        listen(stream.try_clone().map_err(failed)?, Arc::clone(&listeners));
        let server = Self {
            stream: Mutex::new((stream, 0)),
            listeners,
            process,
            run_dir,
            torch,
            job: job.clone(),
            script,
            gpu: options.gpu.id.clone(),
            asked,
        };
        let written = server.run_dir.written();
        match written.difference(&before).next() {
            Some(path) => Err(refused(format!("an import writes to {}", path.display()))),
            None => Ok(server),
        }
    }

    /// Whether `job` is a variant that this server can start: another only in the arguments of its script, in variables
    /// that no import reads, and in the GPU if no import requested its properties.
    pub fn serves(&self, job: &Job, options: &Options) -> bool {
        if self.asked && options.gpu.id != self.gpu {
            return false;
        }
        let same_program = job.command.len() > self.script
            && job.command[..=self.script] == self.job.command[..=self.script];
        let read_by_imports = |job: &Job| -> BTreeMap<OsString, OsString> {
            let is_read = |name: &OsStr| {
                let name = name.to_string_lossy();
                READ_BY_IMPORTS.iter().any(|start| name.starts_with(start))
            };
            let variables = job.environment.iter().cloned();
            variables.filter(|(name, _)| is_read(name)).collect()
        };
        same_program
            && job.folder == self.job.folder
            && read_by_imports(job) == read_by_imports(&self.job)
    }

    pub(crate) fn torch(&self) -> Torch {
        self.torch
    }

    /// Forks a process off that runs `job` with the devices of `prepared`.
    pub(crate) fn fork(&self, prepared: &dyn Prepared, job: &Job) -> Result<Variant, RunError> {
        let ended = || refused("it does not answer".to_owned());
        let text = |word: &OsStr| word.to_str().map(str::to_owned);
        let words: Option<Vec<String>> = job.command.iter().map(|word| text(word)).collect();
        if prepared.protection() != self.run_dir.protection() {
            return Err(refused("its files are protected in another way".to_owned()));
        }
        let output = match &job.output {
            JobOutput::File(path) => path.as_path(),
            JobOutput::Inherit | JobOutput::Stderr | JobOutput::Discard => Path::new("/dev/null"),
        };
        // The child would open it in the server's view of the files.
        let output = File::options()
            .append(true)
            .create(true)
            .open(output)
            .map_err(|source| RunError::Output {
                path: output.to_owned(),
                source,
            })?;
        let mut environment: BTreeMap<String, Option<String>> = BTreeMap::new();
        for (name, _) in &self.job.environment {
            // Variables of the first variant that this one may not have.
            let name = text(name).ok_or_else(not_text)?;
            let outside = std::env::var(&name).ok();
            environment.insert(name, outside);
        }
        let hooked = prepared.environment(job);
        let hooked = hooked
            .iter()
            .map(|(name, value)| (OsStr::new(*name), value));
        let own = job.environment.iter();
        let own = own.map(|(name, value)| (name.as_os_str(), value));
        for (name, value) in own.chain(hooked) {
            let name = text(name).ok_or_else(not_text)?;
            let value = text(value).ok_or_else(not_text)?;
            environment.insert(name, Some(value));
        }
        let (sender, receiver) = channel();
        let mut stream = self.stream();
        stream.1 += 1;
        let id = stream.1;
        listeners(&self.listeners).insert(id, sender);
        let request = json!({
            "id": id,
            "command": words.ok_or_else(not_text)?,
            "script": self.script,
            "environment": environment,
            "folder": job.folder,
            "hook": prepared.folder().join(hook::FOLDER),
        });
        send(&mut stream.0, &format!("{request}\n"), &output).map_err(|_| ended())?;
        drop(stream);
        match receiver.recv_timeout(FORK_TIMEOUT) {
            Ok(Word::Started(process)) => Ok(Variant { process, receiver }),
            Ok(Word::Ended(_))
            | Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Err(ended()),
        }
    }

    /// The output of its imports.
    pub fn output(&self) -> String {
        fs::read_to_string(self.run_dir.path().join(OUTPUT_FILE)).unwrap_or_default()
    }

    fn stream(&self) -> MutexGuard<'_, (UnixStream, u64)> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ForkServer {
    fn drop(&mut self) {
        // It ends, with its children, when the socket has no reader.
        let _ = self.stream().0.shutdown(std::net::Shutdown::Both);
        let since = Instant::now();
        while since.elapsed() < Duration::from_secs(2) {
            if !matches!(self.process.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(POLL);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A process that the server forked off.
#[derive(Debug)]
pub(crate) struct Variant {
    process: u32,
    receiver: Receiver<Word>,
}

impl Started for Variant {
    fn processes(&self) -> Vec<u32> {
        vec![self.process]
    }

    fn try_wait(&mut self) -> Result<Option<ExitStatus>, RunError> {
        match self.receiver.try_recv() {
            Ok(Word::Ended(status)) => Ok(Some(ExitStatus::from_raw(status))),
            Ok(Word::Started(_)) | Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                Err(refused("it ended with its variants".to_owned()))
            }
        }
    }
}

fn refused(why: String) -> RunError {
    RunError::ForkServer { why }
}

fn not_text() -> RunError {
    refused("a word of the command is not text".to_owned())
}

/// Sends a text together with an open file.
fn send(stream: &mut UnixStream, text: &str, file: &File) -> std::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut files = SendAncillaryBuffer::new(&mut space);
    let file = [file.as_fd()];
    files.push(SendAncillaryMessage::ScmRights(&file));
    let bytes = text.as_bytes();
    let sent = sendmsg(
        &*stream,
        &[IoSlice::new(bytes)],
        &mut files,
        SendFlags::NOSIGNAL,
    )?;
    stream.write_all(&bytes[sent..])
}

fn listeners(listeners: &Listeners) -> MutexGuard<'_, HashMap<u64, Sender<Word>>> {
    listeners.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the server has begun.
fn connect(listener: &UnixListener, process: &mut Child) -> Result<UnixStream, String> {
    let since = Instant::now();
    loop {
        if let Ok((stream, _)) = listener.accept() {
            let blocking = stream.set_nonblocking(false);
            return blocking.map(|()| stream).map_err(|error| error.to_string());
        }
        if let Ok(Some(status)) = process.try_wait() {
            return Err(format!("Python ended before it began ({status})"));
        }
        if since.elapsed() > FORK_TIMEOUT {
            return Err("Python did not begin".to_owned());
        }
        std::thread::sleep(POLL);
    }
}

/// Sends the server the imports, and waits until it has.
fn greet(mut stream: UnixStream, imports: &Imports) -> Result<(UnixStream, bool), String> {
    let plan = json!({"modules": imports.modules, "environment": imports.environment});
    let failed = |error: std::io::Error| error.to_string();
    writeln!(stream, "{plan}").map_err(failed)?;
    stream
        .set_read_timeout(Some(IMPORT_TIMEOUT))
        .map_err(failed)?;
    let mut line = String::new();
    // The server sends nothing more before a request, so that nothing is lost in the buffer.
    BufReader::new(&stream)
        .read_line(&mut line)
        .map_err(failed)?;
    let reply: Reply = serde_json::from_str(&line)
        .map_err(|_| "the process ended while it imported what the script imports".to_owned())?;
    stream.set_read_timeout(None).map_err(failed)?;
    if reply.ready == Some(true) {
        Ok((stream, reply.asked))
    } else {
        Err(reply.why.unwrap_or_else(|| "unknown".to_owned()))
    }
}

/// Passes on the server's messages, until it ends.
fn listen(stream: UnixStream, all: Listeners) {
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(reply) = line
                .map_err(|_| ())
                .and_then(|line| serde_json::from_str::<Reply>(&line).map_err(|_| ()))
            else {
                break;
            };
            let mut all = listeners(&all);
            if let (Some(id), Some(process)) = (reply.started, reply.process)
                && let Some(listener) = all.get(&id)
            {
                let _ = listener.send(Word::Started(process));
            }
            if let (Some(id), Some(status)) = (reply.ended, reply.status)
                && let Some(listener) = all.remove(&id)
            {
                let _ = listener.send(Word::Ended(status));
            }
        }
        // A thread that still waits is notified that there is nothing to wait for.
        listeners(&all).clear();
    });
}
