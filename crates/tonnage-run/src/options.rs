// SPDX-License-Identifier: MIT OR Apache-2.0
//! The options of a dry run: the simulated machine, and how the job is run.

use std::path::PathBuf;

pub use tonnage_capture::AddressOrderName as AddressOrder;
use tonnage_gpus::{Catalogue, Gpu, UnknownGpu};

use crate::changes;
use crate::error::RunError;
use crate::ranks::World;

/// The machine that is simulated, and how the dry run is done.
///
/// ```
/// use tonnage_run::Options;
///
/// let mut options = Options::for_gpu("h100")?;
/// assert_eq!(options.gpu.id, "h100-80gb");
/// options.capacity = Some(24 << 30);
/// assert!(Options::for_gpu("h9000").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a separate switch, and all combinations make sense"
)]
pub struct Options {
    /// The GPU to simulate.
    pub gpu: Gpu,
    /// How many of them the machine has, at most [`Self::MAX_GPUS`].
    pub gpus: u8,
    /// Which ranks of a job of many are run, on how many machines of so many GPUs; the others are answered. `None` for
    /// a job whose command starts all of its processes.
    pub world: Option<World>,
    /// Bytes of memory of each GPU, instead of the catalogue's.
    pub capacity: Option<u64>,
    /// Bytes that the context of a process takes, instead of the catalogue's.
    pub context: Option<u64>,
    /// Bytes that are to stay free on each GPU, instead of the most that was seen of what a dry run does not count.
    pub margin: Option<u64>,
    /// In which order the driver hands out addresses.
    pub address_order: AddressOrder,
    /// Do not run a job that ran out of memory a second time to find out how much it needs.
    pub stop_at_oom: bool,
    /// Compute small values, so that what a script reads back is true: flags, counters, masks, sizes.
    pub values: bool,
    /// The part of an unknown mask, in percent, that is taken to be true.
    pub assumed_mask: u8,
    /// How many launches each stream of a GPU is behind the host at most; 0 if what is launched is done at once.
    pub lag: u64,
    /// Changes that are made to the program inside its process, by their names, in this order:
    /// [`changes::all`](crate::changes::all) has them.
    pub changes: Vec<String>,
    /// End the job before it ends by itself.
    pub stop_after: Option<StopAfter>,
    /// Run even where a real NVIDIA device is present.
    pub allow_real_gpu: bool,
    /// Let the job change files and upload data, as a real run does.
    pub side_effects: bool,
    /// Directories and files that the job may change although its other writes are redirected.
    pub pass_through: Vec<PathBuf>,
    /// Where the files that the job writes are copied when it has ended; otherwise they are discarded.
    pub keep_files: Option<PathBuf>,
    /// Handle SIGINT, SIGTERM and SIGHUP while the job runs: they are for the job, and what it recorded until then is
    /// kept. Handlers are those of the whole process, so only a program that belongs to the run should request it.
    pub forward_signals: bool,
    /// Source files for which the job reads other text: each file with its text. The files themselves are not changed.
    pub sources: Vec<(PathBuf, String)>,
    /// Query the holders of the remaining memory at the end of each process. The holders at a peak are queried then.
    pub holders_at_end: bool,
    /// Where the folder of the run is made while the job runs, instead of the temporary folder.
    pub live: Option<PathBuf>,
    /// Have the job list the modules it imports, for a fork server.
    pub(crate) list_imports: bool,
    /// The stand-in library, instead of the one in `TONNAGE_STANDIN`, the bundled one or the one beside the executable.
    pub standin: Option<PathBuf>,
}

impl Options {
    /// How many GPUs a machine can have.
    pub const MAX_GPUS: u8 = 16;

    /// One GPU as the catalogue has it.
    pub fn new(gpu: Gpu) -> Self {
        Self {
            gpu,
            gpus: 1,
            world: None,
            capacity: None,
            context: None,
            margin: None,
            address_order: AddressOrder::default(),
            stop_at_oom: false,
            values: true,
            assumed_mask: 100,
            lag: 0,
            changes: Vec::new(),
            stop_after: None,
            allow_real_gpu: false,
            side_effects: false,
            pass_through: Vec::new(),
            keep_files: None,
            forward_signals: false,
            sources: Vec::new(),
            holders_at_end: true,
            live: None,
            list_imports: false,
            standin: None,
        }
    }

    /// One GPU of the catalogue, by its name.
    pub fn for_gpu(name: &str) -> Result<Self, UnknownGpu> {
        let catalogue = Catalogue::embedded();
        catalogue.find(name).map(|gpu| Self::new(gpu.clone()))
    }

    /// Whether such a machine can be simulated.
    pub fn validate(&self) -> Result<(), RunError> {
        if !self.gpu.supported {
            return Err(RunError::UnsupportedGpu {
                gpu: self.gpu.id.clone(),
                reason: self.gpu.reason.clone().unwrap_or("unknown".to_owned()),
            });
        }
        if self.assumed_mask > 100 {
            return Err(RunError::AssumedMask {
                percent: self.assumed_mask,
            });
        }
        changes::validate(&self.changes)?;
        if !(1..=Self::MAX_GPUS).contains(&self.gpus) {
            return Err(RunError::GpuCount {
                gpus: self.gpus,
                most: Self::MAX_GPUS,
            });
        }
        let (machines, most) = (self.machines(), tonnage_capture::ledger::DEVICES);
        if machines * usize::from(self.gpus) > most {
            return Err(RunError::TooManyMachines {
                machines,
                gpus: self.gpus,
                most,
            });
        }
        Ok(())
    }

    /// How many machines are simulated.
    pub(crate) fn machines(&self) -> usize {
        let world = self.world.as_ref();
        world.map_or(1, |world| world.machines(self.gpus).len())
    }

    /// Bytes of memory of each GPU.
    pub fn capacity(&self) -> u64 {
        self.capacity.unwrap_or(self.gpu.total_memory.value)
    }

    /// Bytes that the context of a process takes.
    pub(crate) fn context(&self) -> u64 {
        self.context.unwrap_or(self.gpu.context.value)
    }
}

/// When a job is ended before it ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopAfter {
    /// After this many steps of an optimizer.
    Steps(u64),
    /// This many seconds after CUDA was first used.
    Seconds(u64),
}
