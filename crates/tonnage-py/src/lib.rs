// SPDX-License-Identifier: MIT OR Apache-2.0
//! The Python module `tonnage._tonnage`: the command, and the command as a function.
//!
//! It is thin on purpose. Calls go to [`tonnage_cli::ask`] as the words of a command line, and come back as JSON and
//! text, so the Python library cannot differ from the command. The readable interface is written in Python
//! (`python/tonnage`).
//!
//! The shared object is also the allocator that PyTorch can load: it exports the C functions of `tonnage-torch`.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use tonnage_cli::Surroundings;
use tonnage_import::{Format, pytorch};
// Only its exported functions are wanted.
use tonnage_recording::{Writer, meta};
use tonnage_torch as _;

/// A recording of `record()` has one process.
const PROCESS: u32 = 0;
/// How long Ctrl-C may have to wait.
const TICK: Duration = Duration::from_millis(50);
/// How long a job has to end by itself after Ctrl-C.
const GRACE: Duration = Duration::from_millis(1500);

/// The exit code, the JSON and the text of a reply; or the message and the hint of a failure.
#[derive(IntoPyObject)]
enum Reply {
    Answered(u8, Option<String>, Option<String>),
    Failed(String, Option<String>),
}

/// Runs a command as a terminal would, and returns its exit code.
#[pyfunction]
fn main(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| tonnage_cli::main(words))
}

/// Runs a command and returns its exit code, its result as JSON and the same as text; or the message and the hint
/// of its failure.
#[pyfunction]
fn ask(py: Python<'_>, words: Vec<OsString>) -> PyResult<Reply> {
    let worker = Worker::start(move || tonnage_cli::ask(words))?;
    worker.wait(py).map(answered)
}

fn answered(reply: Result<tonnage_cli::Reply, tonnage_cli::Failure>) -> Reply {
    match reply {
        Ok(reply) => Reply::Answered(reply.answer as u8, reply.json, reply.text),
        Err(failure) => Reply::Failed(failure.message, failure.hint),
    }
}

/// Runs a job dry: `words` are those of `tonnage run`, the rest is where the job runs and a file or pipe for its
/// output. Returns the same as `ask`. Ctrl-C ends the job before it raises.
#[pyfunction]
#[pyo3(signature = (words, folder=None, environment=Vec::new(), output=None))]
fn dry_run(
    py: Python<'_>,
    words: Vec<OsString>,
    folder: Option<PathBuf>,
    environment: Vec<(OsString, OsString)>,
    output: Option<PathBuf>,
) -> PyResult<Reply> {
    let mut surroundings = Surroundings::default();
    surroundings.folder = folder;
    surroundings.environment = environment;
    surroundings.output = output;
    let stop = Arc::clone(&surroundings.stop);
    let worker = Worker::start(move || tonnage_cli::ask_in(words, &surroundings))?;
    match worker.wait(py) {
        Ok(reply) => Ok(answered(reply)),
        Err(interrupt) => {
            // At a terminal the job got the interrupt, too, and may be cleaning up.
            let late = py.detach(|| worker.receive(GRACE));
            if matches!(late, Err(RecvTimeoutError::Timeout)) {
                stop.store(true, Ordering::Relaxed);
                // A second interrupt does not wait for it.
                let _ = worker.wait(py)?;
            }
            Err(interrupt)
        }
    }
}

/// Makes one recording of the pieces of a history, the last of which has the final state, and of what else is known:
/// facts by name, and what is not known. Returns the number of events.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "Python's values become ours")]
fn join(
    py: Python<'_>,
    pieces: Vec<PathBuf>,
    output: PathBuf,
    facts: Vec<(String, String)>,
    notes: Vec<String>,
) -> PyResult<u64> {
    let joined = py.detach(|| joined(&pieces, &output, &facts, &notes));
    joined.map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

fn joined(
    pieces: &[PathBuf],
    output: &Path,
    facts: &[(String, String)],
    notes: &[String],
) -> Result<u64, Box<dyn std::error::Error + Send + Sync>> {
    let (last, rest) = pieces.split_last().ok_or("there is no piece")?;
    let file = BufWriter::new(File::create(output)?);
    let mut writer = Writer::new(file, tonnage_cli::PRODUCER)?;
    writer.meta(PROCESS, meta::SOURCE, Format::PytorchPickle.name())?;
    let open = |piece: &PathBuf| File::open(piece).map(BufReader::new);
    for (name, text) in facts {
        writer.meta(PROCESS, name, text)?;
    }
    let count = pytorch::import_pieces(rest.iter().map(open), open(last)?, PROCESS, &mut writer)?;
    for (index, note) in notes.iter().enumerate() {
        writer.meta(PROCESS, &format!("{}.{index}", meta::UNKNOWN), note)?;
    }
    writer.finish()?.into_inner()?.sync_all()?;
    Ok(count)
}

/// Runs work on a separate thread, so that other Python threads continue and Ctrl-C works.
struct Worker<T> {
    receiver: Mutex<Receiver<T>>,
}

impl<T: Send + 'static> Worker<T> {
    fn start(work: impl FnOnce() -> T + Send + 'static) -> PyResult<Self> {
        let (sender, receiver) = channel();
        std::thread::Builder::new()
            .name("tonnage".to_owned())
            // The receiver is gone if Ctrl-C came first; no thread waits for the result then.
            .spawn(move || drop(sender.send(work())))?;
        Ok(Self {
            receiver: Mutex::new(receiver),
        })
    }

    /// Waits for the result, or for Ctrl-C.
    fn wait(&self, py: Python<'_>) -> PyResult<T> {
        loop {
            match py.detach(|| self.receive(TICK)) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err(
                        "this is a bug in tonnage; please report it with what is on stderr",
                    ));
                }
            }
        }
    }

    fn receive(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        let receiver = self.receiver.lock().unwrap_or_else(PoisonError::into_inner);
        receiver.recv_timeout(timeout)
    }
}

#[pymodule]
mod _tonnage {
    #[pymodule_export]
    use super::{ask, dry_run, join, main};

    /// The version of tonnage.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");
}
