// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where the stand-in library is: named by the caller, built into this program, or beside it.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::StatVfsMountFlags;

use crate::error::RunError;

const FILE_NAME: &str = "libtonnage_standin.so";
/// Names the library for all dry runs, e.g. in tests.
const VARIABLE: &str = "TONNAGE_STANDIN";

/// The library itself, where it is part of this program.
#[cfg(feature = "bundled")]
const BUNDLED: Option<&[u8]> = Some(include_bytes!(concat!(
    env!("OUT_DIR"),
    "/libtonnage_standin.so"
)));
#[cfg(not(feature = "bundled"))]
const BUNDLED: Option<&[u8]> = None;

/// The path of the library; a bundled one is unpacked into `folder`.
pub(crate) fn locate(given: Option<&Path>, folder: &Path) -> Result<PathBuf, RunError> {
    let named = given
        .map(Path::to_owned)
        .or_else(|| std::env::var_os(VARIABLE).map(PathBuf::from));
    if let Some(path) = named {
        return path
            .canonicalize()
            .map_err(|source| RunError::StandinUnreadable { path, source });
    }
    match BUNDLED {
        Some(library) => unpack(library, folder),
        None => beside_the_executable(),
    }
}

/// Writes the library where the loader of the run finds it.
fn unpack(library: &[u8], folder: &Path) -> Result<PathBuf, RunError> {
    let mount = rustix::fs::statvfs(folder);
    if mount.is_ok_and(|mount| mount.f_flag.contains(StatVfsMountFlags::NOEXEC)) {
        return Err(RunError::NoExec {
            folder: folder.to_owned(),
        });
    }
    let path = folder.join(FILE_NAME);
    fs::write(&path, library).map_err(|source| RunError::Prepare {
        folder: folder.to_owned(),
        source,
    })?;
    Ok(path)
}

/// Beside the program, where cargo puts it, or in the folder for libraries of an installation.
fn beside_the_executable() -> Result<PathBuf, RunError> {
    let executable = std::env::current_exe().map_err(RunError::NoExecutable)?;
    let folder = executable.parent().unwrap_or(Path::new("."));
    let candidates = [
        folder.join(FILE_NAME),
        folder.join("../lib/tonnage").join(FILE_NAME),
    ];
    let found = candidates.iter().find_map(|path| path.canonicalize().ok());
    found.ok_or(RunError::NoStandin {
        name: FILE_NAME,
        executable,
    })
}
