// SPDX-License-Identifier: MIT OR Apache-2.0
//! The temporary folder of a run: the stand-in under the names of the libraries it replaces, the Python hook, the
//! configuration, and the files that the processes of the job write.
//!
//! It belongs to one run alone; the stand-in is never put where the system would find it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;
use tonnage_capture::{
    AddressOrderName, CONFIG_FILE, DeviceProfile, LEDGER_FILE, RUN_FOLDER_PREFIX, RUN_VARIABLE,
    RUNNING_FILE, RunConfig, Running, SOURCES_VARIABLE, ledger,
};
use tonnage_recording::facts::{self, FileChanges, Protection};
use tonnage_recording::{WriteError, Writer, meta};

use crate::PRODUCER;
use crate::collect::{CollectError, Collected, collect};
use crate::error::RunError;
use crate::files::Files;
use crate::hook;
use crate::job::{Job, JobOutput};
use crate::observer::{Attempt, JobEnd};
use crate::options::{Options, StopAfter};
use crate::python::Torch;
use crate::ranks::World;
use crate::side_effects::offline_modes;
use crate::standin;

/// An interrupted job that had no new peak for so long probably repeats itself, which is worth a word.
const LONG_WITHOUT_PEAK: Duration = Duration::from_secs(10);
/// The caches of Inductor, Triton and vLLM's own compiler. A dry run has its own: what an autotuner chose there must
/// not reach a GPU.
const COMPILER_CACHES: [(&str, &str); 3] = [
    ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("TRITON_CACHE_DIR", "triton"),
    ("VLLM_CACHE_ROOT", "vllm"),
];
/// How the other text of a source file is called in the folder.
const SOURCE_PREFIX: &str = "source-";
const LIBRARY_FOLDER: &str = "lib";
/// The file names under which the driver and NVML are searched.
const DRIVER_NAMES: [&str; 4] = [
    "libcuda.so.1",
    "libcuda.so",
    "libnvidia-ml.so.1",
    "libnvidia-ml.so",
];
/// Copies up to this size carry their values.
const VALUE_LIMIT: u64 = 64 << 10;

/// The temporary folder of a run; removed when dropped.
#[derive(Debug)]
pub struct RunDir {
    /// Keeps the user's files as they are. Dropped first: mounts end before their directory is deleted.
    files: Option<Files>,
    folder: TempDir,
    standin: PathBuf,
    options: Options,
    attempt: Attempt,
}

impl RunDir {
    /// Makes the folder for one run of a job.
    pub fn create(options: &Options, torch: Torch, attempt: Attempt) -> Result<Self, RunError> {
        options.validate()?;
        let folder = folder_of_job(RUN_FOLDER_PREFIX, options.live.as_deref())?;
        let failed = |source| RunError::Prepare {
            folder: folder.path().to_owned(),
            source,
        };
        let libraries = folder.path().join(LIBRARY_FOLDER);
        fs::create_dir(&libraries).map_err(failed)?;
        let standin = standin::locate(options.standin.as_deref(), &libraries)?;
        fill(folder.path(), &standin, options, torch, attempt).map_err(failed)?;
        Ok(Self {
            folder,
            standin,
            options: options.clone(),
            attempt,
            files: None,
        })
    }

    /// Keeps the user's files as they are while `job` runs, unless the options let it change them.
    pub fn protect_files(&mut self, job: &Job) -> Result<(), RunError> {
        if !self.options.side_effects {
            let through = &self.options.pass_through;
            let files = Files::protect(self.path(), job, &self.standin, through);
            self.files = Some(files.map_err(RunError::Protect)?);
        }
        Ok(())
    }

    /// Every path at which a process wrote or deleted something of the user's; see [`Files::written`].
    pub(crate) fn written(&self) -> BTreeSet<PathBuf> {
        self.files
            .as_ref()
            .map_or_else(BTreeSet::new, Files::written)
    }

    /// Copies the files that the job wrote to where the options keep them.
    pub(crate) fn keep_files(&self) -> Result<(), RunError> {
        let (Some(files), Some(folder)) = (&self.files, &self.options.keep_files) else {
            return Ok(());
        };
        files.keep(folder).map_err(|source| RunError::KeepFiles {
            folder: folder.clone(),
            source,
        })
    }

    /// The folder, into which the processes of the job write.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Which run of the job it is for.
    pub fn attempt(&self) -> Attempt {
        self.attempt
    }

    /// Bytes of memory of each device.
    pub fn capacity(&self) -> u64 {
        self.options.capacity()
    }

    /// The environment variables that make a process of `job` use the simulated devices.
    pub fn environment(&self, job: &Job) -> Vec<(&'static str, OsString)> {
        let lists = [
            ("LD_PRELOAD", self.standin.clone()),
            ("LD_LIBRARY_PATH", self.path().join(LIBRARY_FOLDER)),
        ];
        let mut variables = vec![(RUN_VARIABLE, self.path().as_os_str().to_owned())];
        variables.extend(lists.map(|(name, first)| {
            let rest = job.variable(name);
            (name, hook::prepend(first.into_os_string(), rest.as_deref()))
        }));
        variables.push(hook::variable(self.path(), job));
        variables.extend(self.sources());
        let caches = compiler_caches(job, self.path());
        variables.extend(COMPILER_CACHES.map(|(name, folder)| (name, caches.join(folder).into())));
        variables.extend(self.files.iter().flat_map(Files::environment));
        if !self.options.side_effects {
            variables.extend(offline_modes(job));
        }
        variables
    }

    /// Passes the stand-in which files are replaced: Python opens the script that it is started with in C.
    fn sources(&self) -> Option<(&'static str, OsString)> {
        let mut list = OsString::new();
        for (number, (file, _)) in self.options.sources.iter().enumerate() {
            list.push(file.canonicalize().ok()?);
            list.push("\n");
            list.push(self.path().join(format!("{SOURCE_PREFIX}{number}.py")));
            list.push("\n");
        }
        (!list.is_empty()).then_some((SOURCES_VARIABLE, list))
    }

    /// The command of `job`, ready to be started on the simulated devices.
    pub fn command(&self, job: &Job) -> Result<Command, RunError> {
        Prepared::command(self, job)
    }

    /// Appends a recording of what the processes of `job` left in the folder to the file `output`.
    pub fn record(
        &self,
        job: &Job,
        end: &JobEnd,
        output: &Path,
    ) -> Result<Collected, CollectError> {
        let file = File::options().append(true).create(true).open(output);
        let mut writer = Writer::new(file.map_err(WriteError::from)?, PRODUCER)?;
        for (name, text) in self.facts(job, end) {
            writer.meta(facts::RUN, name, &text)?;
        }
        let collected = collect(self.path(), &mut writer)?;
        writer.finish()?;
        Ok(collected)
    }

    /// The facts of the run as a whole.
    fn facts(&self, job: &Job, end: &JobEnd) -> Vec<(&'static str, String)> {
        let Options {
            gpu,
            gpus,
            capacity,
            context,
            ..
        } = &self.options;
        let known = |given: Option<u64>, known: &str| given.map_or(known, |_| "given").to_owned();
        let order = match self.options.address_order {
            AddressOrderName::Descending => "descending",
            AddressOrderName::Ascending => "ascending",
        };
        let mut all = vec![
            (meta::COMMAND, job.line()),
            (facts::GPU_ID, gpu.id.clone()),
            (meta::GPU_NAME, gpu.name.clone()),
            (facts::GPU_COUNT, gpus.to_string()),
            (meta::GPU_CAPACITY, self.options.capacity().to_string()),
            (
                facts::GPU_CAPACITY_KNOWN,
                known(*capacity, gpu.total_memory.known.as_str()),
            ),
            (meta::GPU_CONTEXT, self.options.context().to_string()),
            (
                facts::GPU_CONTEXT_KNOWN,
                known(*context, gpu.context.known.as_str()),
            ),
            (facts::ADDRESS_ORDER, order.to_owned()),
            (facts::ENDING, end.ending.to_string()),
        ];
        if let Some(margin) = self.options.margin {
            all.push((facts::MARGIN, margin.to_string()));
        }
        if self.attempt == Attempt::Unlimited {
            all.push((meta::PART, meta::WHOLE_JOB.to_owned()));
        }
        if let Some(world) = &self.options.world {
            let ranks: Vec<_> = world.ranks().iter().map(u32::to_string).collect();
            all.push((facts::WORLD_SIZE, world.size().to_string()));
            all.push((facts::RANKS, ranks.join(",")));
        }
        if let Some(why) = &end.stopped {
            all.push((facts::STOPPED, why.clone()));
        }
        if end.killed_for_memory > 0 {
            all.push((facts::KILLED_FOR_MEMORY, end.killed_for_memory.to_string()));
        }
        if end.interrupted && end.quiet >= LONG_WITHOUT_PEAK {
            let seconds = end.quiet.as_secs().to_string();
            all.push((facts::WITHOUT_NEW_PEAK, seconds));
        }
        if end.left_running > 0 && !end.interrupted {
            all.push((facts::LEFT_RUNNING, end.left_running.to_string()));
        }
        if !end.interrupted {
            let left = end.left_without_gpu.iter().cloned();
            all.extend(left.map(|arguments| (facts::LEFT_WITHOUT_GPU, arguments)));
        }
        if end.interrupted {
            all.push((facts::INTERRUPTED, "yes".to_owned()));
        }
        let kept = self.options.keep_files.as_ref();
        let changes = self.files.as_ref().map(|files| FileChanges {
            kept_in: kept.map(|folder| folder.to_string_lossy().into_owned()),
            ..files.changes()
        });
        let changes = changes.and_then(|changes| serde_json::to_string(&changes).ok());
        all.extend(changes.map(|changes| (facts::FILES, changes)));
        all
    }
}

/// A folder in which the processes of a job find the hook and leave what they record.
pub(crate) trait Prepared {
    /// The folder.
    fn folder(&self) -> &Path;

    /// Bytes of memory of each device; 0 if that is not known yet.
    fn capacity(&self) -> u64;

    /// How the user's files are protected.
    fn protection(&self) -> Option<Protection> {
        None
    }

    /// The program that starts the program of a job, if one has to.
    fn launcher(&self, _program: &OsString) -> Option<&Path> {
        None
    }

    /// The environment variables that lead the processes of `job` there.
    fn environment(&self, job: &Job) -> Vec<(&'static str, OsString)>;

    /// The command of `job`, ready to be started.
    fn command(&self, job: &Job) -> Result<Command, RunError> {
        let (program, arguments) = job.command.split_first().ok_or(RunError::NoCommand)?;
        let mut command = match self.launcher(program) {
            Some(launcher) => {
                let mut command = Command::new(launcher);
                command.arg(program);
                command
            }
            None => Command::new(program),
        };
        command
            .args(arguments)
            .envs(job.environment.iter().cloned())
            .envs(self.environment(job));
        if let Some(folder) = &job.folder {
            command.current_dir(folder);
        }
        match &job.output {
            JobOutput::Inherit => {}
            JobOutput::File(path) => {
                let failed = |source| RunError::Output {
                    path: path.clone(),
                    source,
                };
                let file = File::options().append(true).create(true).open(path);
                let file = file.map_err(failed)?;
                command
                    .stdout(file.try_clone().map_err(failed)?)
                    .stderr(file);
            }
            JobOutput::Stderr => {
                command.stdout(io::stderr());
            }
            JobOutput::Discard => {
                command.stdout(Stdio::null()).stderr(Stdio::null());
            }
        }
        Ok(command)
    }
}

impl Prepared for RunDir {
    fn folder(&self) -> &Path {
        self.path()
    }

    fn capacity(&self) -> u64 {
        self.options.capacity()
    }

    fn protection(&self) -> Option<Protection> {
        self.files.as_ref().map(Files::by)
    }

    fn launcher(&self, program: &OsString) -> Option<&Path> {
        self.files.as_ref()?;
        Files::launcher(program)
    }

    fn environment(&self, job: &Job) -> Vec<(&'static str, OsString)> {
        self.environment(job)
    }
}

/// A new temporary folder that no other user may enter, whatever the mask of the process.
///
/// # Errors
///
/// [`RunError::Temporary`] if it cannot be made.
pub fn private_folder(prefix: &str) -> Result<TempDir, RunError> {
    folder_of_job(prefix, None)
}

/// A new folder for a job, in `live` or else in the temporary folder.
pub(crate) fn folder_of_job(prefix: &str, live: Option<&Path>) -> Result<TempDir, RunError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    // It contains a library and Python that the job loads: no other user may write there. An exporter of the same group
    // may read a directory that is made for it.
    let mode = if live.is_some() { 0o750 } else { 0o700 };
    builder.permissions(fs::Permissions::from_mode(mode));
    let made = match live {
        None => builder.tempdir(),
        Some(live) => fs::create_dir_all(live)
            // A job may be started in another folder.
            .and_then(|()| live.canonicalize())
            .and_then(|live| builder.tempdir_in(live)),
    };
    made.map_err(RunError::Temporary)
}

/// Reports which job a folder is for. The file that is given back is locked: a watcher of the folder knows by that
/// whether the job runs. Without it everything else goes on.
pub(crate) fn announce(folder: &Path, job: &Job) -> Option<File> {
    let command = job.command.iter();
    let running = Running {
        command: command
            .map(|word| word.to_string_lossy().into_owned())
            .collect(),
    };
    let mut file = File::create(folder.join(RUNNING_FILE)).ok()?;
    // Another process may have it for an instant, to query whether we do.
    file.lock().ok()?;
    serde_json::to_writer(&mut file, &running).ok()?;
    Some(file)
}

fn fill(
    folder: &Path,
    standin: &Path,
    options: &Options,
    torch: Torch,
    attempt: Attempt,
) -> io::Result<()> {
    let config = RunConfig {
        devices: vec![profile(options); options.machines() * usize::from(options.gpus)],
        machines: options.machines(),
        absent_ranks: options.world.is_some(),
        address_order: options.address_order,
        cuda_version: torch.cuda,
        value_limit: VALUE_LIMIT,
        unlimited: attempt == Attempt::Unlimited,
        lag: options.lag,
    };
    fs::write(folder.join(CONFIG_FILE), serde_json::to_vec(&config)?)?;
    fs::write(folder.join(LEDGER_FILE), ledger::fresh())?;
    let (steps, seconds) = match options.stop_after {
        None => (None, None),
        Some(StopAfter::Steps(steps)) => (Some(steps), None),
        Some(StopAfter::Seconds(seconds)) => (None, Some(seconds)),
    };
    let sources = write_sources(folder, &options.sources)?;
    let settings = serde_json::json!({
        "sources": sources,
        "values": options.values,
        "absent_ranks": options.world.is_some(),
        "assumed_mask": options.assumed_mask,
        "changes": options.changes,
        "stop_after_steps": steps,
        "stop_after_seconds": seconds,
        "imports": options.list_imports,
        "holders_at_end": options.holders_at_end,
        "side_effects": options.side_effects,
        "unlimited": attempt == Attempt::Unlimited,
        "ranks": options.world.as_ref().map(World::ranks),
    });
    hook::write(folder, &settings)?;
    for name in DRIVER_NAMES {
        symlink(standin, folder.join(LIBRARY_FOLDER).join(name))?;
    }
    Ok(())
}

/// Puts the other text of source files into `folder`; the copy of each file.
fn write_sources(
    folder: &Path,
    sources: &[(PathBuf, String)],
) -> io::Result<BTreeMap<String, PathBuf>> {
    let mut copies = BTreeMap::new();
    for (number, (file, text)) in sources.iter().enumerate() {
        let copy = folder.join(format!("{SOURCE_PREFIX}{number}.py"));
        fs::write(&copy, text)?;
        let file = file.canonicalize()?;
        let name = file.to_str().ok_or(io::ErrorKind::InvalidFilename)?;
        copies.insert(name.to_owned(), copy);
    }
    Ok(copies)
}

/// Where compilers keep what they made: one folder for all dry runs, in the user's cache. If that cannot be written,
/// the folder of this run.
fn compiler_caches(job: &Job, run: &Path) -> PathBuf {
    let set = |name| job.variable(name).filter(|value| !value.is_empty());
    let cache = set("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")));
    let kept = cache.map(|cache| cache.join("tonnage"));
    let kept = kept.filter(|kept| fs::create_dir_all(kept).is_ok());
    kept.unwrap_or_else(|| run.join("caches"))
}

/// The device as programs see it.
fn profile(options: &Options) -> DeviceProfile {
    let gpu = &options.gpu;
    let limits = &gpu.limits;
    let int = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
    let small = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    DeviceProfile {
        name: gpu.name.clone(),
        total: options.capacity(),
        context: options.context(),
        major: small(gpu.compute_capability.major),
        minor: small(gpu.compute_capability.minor),
        sm_count: small(gpu.sm_count.value),
        shared_per_block: int(limits.shared_per_block.value),
        shared_per_block_optin: int(limits.shared_per_block_optin.value),
        shared_per_sm: int(limits.shared_per_sm.value),
        shared_reserved: int(limits.shared_reserved_per_block.value),
        registers: small(limits.registers_per_sm.value),
        threads_per_sm: small(limits.threads_per_sm.value),
        blocks_per_sm: small(limits.blocks_per_sm.value),
        l2: int(gpu.l2_bytes.value),
        clock_khz: small(gpu.clock_khz.value),
        memory_clock_khz: small(gpu.memory_clock_khz.value),
        bus_width: small(gpu.memory_bus_bits.value),
        nccl_channels: gpu
            .nccl_channels
            .as_ref()
            .map_or(0, |channels| channels.value),
    }
}
