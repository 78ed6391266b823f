// SPDX-License-Identifier: MIT OR Apache-2.0
//! The folder of a run: the stand-in under the names it is looked for by, the
//! Python hook, the configuration, and whatever the processes leave behind.
//!
//! The folder is temporary and belongs to the run alone; nothing of the
//! stand-in is ever put where the system would find it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use rustix::fs::StatVfsMountFlags;
use tempfile::TempDir;
use tonnage_capture::{
    AddressOrderName, CONFIG_FILE, DeviceProfile, LEDGER_FILE, RUN_VARIABLE, RunConfig, ledger,
};
use tonnage_gpus::Gpu;
use tonnage_run::{BUNDLED_STANDIN, HOOK_FILES};

use super::python::Torch;
use crate::arguments::{AddressOrder, RunOptions};
use crate::output::hinted;

const HOOK_FOLDER: &str = "python";
const LIBRARY_FOLDER: &str = "lib";
const STANDIN: &str = "libtonnage_standin.so";
/// The names under which the driver and NVML are looked for.
const NAMES: [&str; 4] = [
    "libcuda.so.1",
    "libcuda.so",
    "libnvidia-ml.so.1",
    "libnvidia-ml.so",
];
/// Copies up to this size carry their values.
const VALUE_LIMIT: u64 = 64 << 10;

/// A folder ready for a run; gone when dropped.
pub(crate) struct Stage {
    folder: TempDir,
    standin: PathBuf,
    profile: DeviceProfile,
    unlimited: bool,
}

impl Stage {
    /// Makes the folder; `unlimited` devices refuse nothing.
    pub(crate) fn set(
        gpu: &Gpu,
        options: &RunOptions,
        torch: &Torch,
        unlimited: bool,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("tonnage-run-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        fs::create_dir(folder.path().join(LIBRARY_FOLDER))
            .context("cannot make a folder in the temporary folder")?;
        let stage = Self {
            standin: standin(&folder.path().join(LIBRARY_FOLDER))?,
            folder,
            profile: profile(gpu, options),
            unlimited,
        };
        stage.fill(options, torch).with_context(|| {
            format!(
                "cannot fill the temporary folder {}",
                stage.folder().display()
            )
        })?;
        Ok(stage)
    }

    fn fill(&self, options: &RunOptions, torch: &Torch) -> Result<()> {
        let folder = self.folder();
        let config = RunConfig {
            devices: vec![self.profile.clone(); usize::from(options.gpus)],
            address_order: match options.address_order {
                AddressOrder::Descending => AddressOrderName::Descending,
                AddressOrder::Ascending => AddressOrderName::Ascending,
            },
            cuda_version: torch.cuda,
            value_limit: VALUE_LIMIT,
            unlimited: self.unlimited,
        };
        fs::write(folder.join(CONFIG_FILE), serde_json::to_vec(&config)?)?;
        fs::write(folder.join(LEDGER_FILE), ledger::fresh())?;
        fs::create_dir(folder.join(HOOK_FOLDER))?;
        for (name, source) in HOOK_FILES {
            fs::write(folder.join(HOOK_FOLDER).join(name), source)?;
        }
        let libraries = folder.join(LIBRARY_FOLDER);
        for name in NAMES {
            symlink(&self.standin, libraries.join(name))?;
        }
        Ok(())
    }

    /// Where the processes leave what they have to say.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Bytes of each device.
    pub(crate) fn capacity(&self) -> u64 {
        self.profile.total
    }

    /// Whether its devices refuse nothing.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.unlimited
    }

    /// Bytes of a context.
    pub(crate) fn context(&self) -> u64 {
        self.profile.context
    }

    /// Adds to `command` what makes it run on this stage.
    pub(crate) fn equip(&self, command: &mut Command) {
        let folder = self.folder();
        command.env(RUN_VARIABLE, folder);
        for (name, first) in [
            ("LD_PRELOAD", self.standin.as_os_str().to_owned()),
            (
                "LD_LIBRARY_PATH",
                folder.join(LIBRARY_FOLDER).into_os_string(),
            ),
            ("PYTHONPATH", folder.join(HOOK_FOLDER).into_os_string()),
        ] {
            command.env(name, in_front(first, std::env::var_os(name).as_deref()));
        }
    }
}

/// A list with `first` in front of what was there.
fn in_front(first: OsString, rest: Option<&OsStr>) -> OsString {
    let mut list = first;
    if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
        list.push(":");
        list.push(rest);
    }
    list
}

/// The stand-in: where `TONNAGE_STANDIN` says, out of this program into `folder`, beside the command, or in the
/// product's own folder next to it.
fn standin(folder: &Path) -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("TONNAGE_STANDIN") {
        let path = PathBuf::from(path);
        return path
            .canonicalize()
            .with_context(|| format!("TONNAGE_STANDIN names no file: {}", path.display()));
    }
    match BUNDLED_STANDIN {
        Some(library) => unpacked(library, folder),
        None => beside_the_command(),
    }
}

/// Writes the library where the loader of the run finds it.
fn unpacked(library: &[u8], folder: &Path) -> Result<PathBuf> {
    let mount = rustix::fs::statvfs(folder);
    if mount.is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        return Err(hinted(
            format!("nothing may be executed in {}", folder.display()),
            "set TMPDIR to a folder on another file system, such as one in your home",
        ));
    }
    let path = folder.join(STANDIN);
    fs::write(&path, library).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn beside_the_command() -> Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find my own program file")?;
    let folder = program.parent().unwrap_or(Path::new("."));
    let candidates = [
        folder.join(STANDIN),
        folder.join("../lib/tonnage").join(STANDIN),
    ];
    let found = candidates.iter().find_map(|path| path.canonicalize().ok());
    found.ok_or_else(|| {
        hinted(
            format!("{STANDIN} is not beside {}", program.display()),
            "build the command with `--features bundled`, which has it inside, \
             or name the library in TONNAGE_STANDIN",
        )
    })
}

fn profile(gpu: &Gpu, options: &RunOptions) -> DeviceProfile {
    let limits = &gpu.limits;
    let int = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
    let small = |value: u32| i32::try_from(value).unwrap_or(i32::MAX);
    DeviceProfile {
        name: gpu.name.clone(),
        total: options.capacity.unwrap_or(gpu.total_memory.value),
        context: options.context.unwrap_or(gpu.context.value),
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
    }
}
