// SPDX-License-Identifier: MIT OR Apache-2.0
//! `tonnage mcp`: a server of the Model Context Protocol on standard input and output, for coding assistants.
//!
//! The protocol is the SDK's. Here is what keeps its two streams apart from everything else; in
//!
//! * `tools`, the tools: parameters, and the words of the command that they stand for;
//! * `call`, one call: the command on its own thread, its progress, its time limit, its cancellation;
//! * `output`, the last lines of what a job prints.
//!
//! A tool has no output schema: the reference has the schemas of all results, and an assistant would read them with
//! every list of tools.

mod call;
mod output;
mod tools;

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, ready};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, ServerInitializeError};
use rmcp::transport::async_rw::{AsyncRwTransport, DEFAULT_MAX_LINE_LENGTH};
use rmcp::{ErrorData, RoleServer, ServerHandler, ServiceExt as _};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::signal::unix::{SignalKind, signal};

use crate::output::{Answer, Form, Reply, hinted, print_err};

/// Answer a coding assistant, by the Model Context Protocol
///
/// A server on standard input and output with the tools run, fit, check,
/// explain, replay and gpus, each of which is the command of that name. An
/// assistant starts it by itself, as its configuration specifies. The tools run, fit
/// and check execute the user's program, on this machine, without a GPU.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  tonnage mcp
  tonnage mcp --directory ~/project
  claude mcp add tonnage -- tonnage mcp")]
pub(crate) struct McpOptions {
    /// The folder of the calls that name none [default: the one it is started in].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) directory: Option<PathBuf>,
}

/// How long jobs have to end once the assistant is gone: as long as one takes that ignores everything but a kill.
const FAREWELL: Duration = Duration::from_secs(25);

/// The description of the whole for an assistant.
const INSTRUCTIONS: &str = "\
tonnage computes how a PyTorch program uses GPU memory, on a machine that needs no GPU. Use it before renting a GPU or \
starting a long job, and after a CUDA out-of-memory error.\n\
- Does it fit, and what does it need? `run`. What must change so that it fits: batch size, GPU, checkpointing, \
optimizer? `fit`.\n\
- Why is the memory full? `explain`, with the recording that `run` wrote or a PyTorch memory snapshot.\n\
- Would another allocator setting or another GPU hold the same requests? `replay`.\n\
- Do the project's memory budgets hold? `check`. Which GPUs are known, and how well? `gpus`.\n\
`run`, `fit` and `check` execute the user's program on this machine: its Python code runs, files it writes are \
written, only CUDA kernels do not run. Bytes are those of PyTorch's own allocator and exact unless the answer states \
assumed, computed, inferred or not known; repeat those words. A dry run does not measure speed or loss.";

pub(crate) fn run(options: &McpOptions, form: Form) -> Result<Reply> {
    if form == Form::Both {
        return Err(hinted(
            "the server has standard input and output for itself",
            "start it as a program: tonnage mcp",
        ));
    }
    let folder = folder(options.directory.as_deref())?;
    let (input, output) = take_streams().context("cannot set the standard streams aside")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the server")?;
    let running = Arc::new(Running::default());
    let served = runtime.block_on(serve(folder, input, output, &running));
    running.end_all();
    // A thread that waits for input, or replays, need not end before this process.
    runtime.shutdown_background();
    served.map(|()| Reply::silent(Answer::Yes))
}

/// The folder of the calls that name none.
fn folder(typed: Option<&Path>) -> Result<PathBuf> {
    let folder = typed.unwrap_or(Path::new("."));
    match folder.canonicalize() {
        Ok(folder) if folder.is_dir() => Ok(folder),
        _ => Err(hinted(
            format!("there is no folder {}", folder.display()),
            "name the folder of the project with --directory",
        )),
    }
}

/// Standard input and output, for the protocol alone. Every process that is started from now on, and everything that
/// prints here, gets an empty input and has stderr for its output.
fn take_streams() -> std::io::Result<(File, File)> {
    let input = std::io::stdin().as_fd().try_clone_to_owned()?;
    let output = std::io::stdout().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    rustix::stdio::dup2_stdout(std::io::stderr())?;
    Ok((File::from(input), File::from(output)))
}

async fn serve(folder: PathBuf, input: File, output: File, running: &Arc<Running>) -> Result<()> {
    let input = Input {
        stream: tokio::fs::File::from_std(input),
        running: Arc::clone(running),
        line: 0,
    };
    let output = tokio::fs::File::from_std(output);
    let transport = AsyncRwTransport::new_server(input, output);
    let server = Server {
        folder,
        running: Arc::clone(running),
    };
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let served = async {
        match server.serve(transport).await {
            Ok(service) => service.waiting().await.map(drop).map_err(Into::into),
            // A client that came and left made no request.
            Err(ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(_) => Err(hinted(
                "what came first on standard input is not the beginning of the Model Context Protocol",
                "let a coding assistant start `tonnage mcp`, by its configuration",
            )),
        }
    };
    tokio::select! {
        served = served => served,
        _ = terminated.recv() => Ok(()),
        _ = interrupted.recv() => Ok(()),
    }
}

/// The server: where it is, and what it is doing.
struct Server {
    folder: PathBuf,
    running: Arc<Running>,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let itself = Implementation::new("tonnage", env!("CARGO_PKG_VERSION"));
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
            .with_server_info(itself)
            .with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let tools = tools::Question::all().map_err(|why| ErrorData::internal_error(why, None))?;
        Ok(ListToolsResult::with_all_items(tools))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        match tools::Question::read(&request.name, arguments) {
            Ok(question) => {
                let call = call::Call::new(&question, &self.folder);
                let result = match call {
                    Ok(call) => call.answer(&self.running, &context).await,
                    Err(failure) => call::failed(&failure),
                };
                Ok(result.into())
            }
            Err(tools::Misread::NoSuchTool) => {
                let names = tools::NAMES.join(", ");
                let message = format!("there is no tool {:?}; there are {names}", request.name);
                Err(ErrorData::invalid_params(message, None))
            }
            Err(tools::Misread::Arguments(failure)) => Ok(call::failed(&failure).into()),
        }
    }
}

/// The jobs that run, so that none outlives the server.
#[derive(Debug, Default)]
struct Running {
    jobs: Mutex<Vec<Arc<AtomicBool>>>,
    over: AtomicBool,
}

impl Running {
    /// A job that is ended when `stop` becomes true. It counts as running as long as what is returned lives.
    fn start(self: &Arc<Self>, stop: &Arc<AtomicBool>) -> RunningJob {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.push(Arc::clone(stop));
        if self.over.load(Ordering::Relaxed) {
            stop.store(true, Ordering::Relaxed);
        }
        RunningJob {
            all: Arc::clone(self),
            stop: Arc::clone(stop),
        }
    }

    /// Asks every job to end; the number of those that run.
    fn stop_all(&self) -> usize {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        self.over.store(true, Ordering::Relaxed);
        for stop in jobs.iter() {
            stop.store(true, Ordering::Relaxed);
        }
        jobs.len()
    }

    /// Ends every job, and waits for it.
    fn end_all(&self) {
        let since = Instant::now();
        while self.stop_all() > 0 && since.elapsed() < FAREWELL {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// One of the jobs that run.
struct RunningJob {
    all: Arc<Running>,
    stop: Arc<AtomicBool>,
}

impl Drop for RunningJob {
    fn drop(&mut self) {
        let mut jobs = self.all.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|stop| !Arc::ptr_eq(stop, &self.stop));
    }
}

/// The input from the assistant. Its end is the assistant's own: no client waits for the running jobs then.
struct Input {
    stream: tokio::fs::File,
    running: Arc<Running>,
    /// The length of the line so far.
    line: usize,
}

impl AsyncRead for Input {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(context, buffer));
        let new = &buffer.filled()[before..];
        if new.is_empty() {
            self.running.stop_all();
        }
        let was_short = self.line <= DEFAULT_MAX_LINE_LENGTH;
        self.line = match new.iter().rposition(|&byte| byte == b'\n') {
            Some(end) => new.len() - end - 1,
            None => self.line.saturating_add(new.len()),
        };
        // The SDK leaves it out without a word.
        if was_short && self.line > DEFAULT_MAX_LINE_LENGTH {
            print_err("a message of more than 16 MiB was not read: name files instead");
        }
        Poll::Ready(read)
    }
}
