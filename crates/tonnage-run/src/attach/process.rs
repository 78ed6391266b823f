// SPDX-License-Identifier: MIT OR Apache-2.0
//! Python processes of this machine that use torch, by what the kernel shows of them. Nothing here stops a process.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::AttachError;
use super::elf::{Exports, exports};

/// Functions of Python that run a text at the next safe point of the main thread.
pub(super) const ADD: &str = "Py_AddPendingCall";
pub(super) const RUN: &str = "PyRun_SimpleString";
const MAP: &str = "mmap";
/// Bytes of a library that are read at most.
const LARGEST: u64 = 1 << 30;

/// A Python process that has torch loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PythonProcess {
    /// Its number.
    pub id: u32,
    /// The number of the user that started it.
    pub user: u32,
    /// Its command line, in one line.
    pub command: String,
    /// The minor version of its Python 3, where it is known.
    pub python: Option<u16>,
    /// Whether torch with CUDA is loaded.
    pub has_cuda: bool,
}

/// A line of the map of a process.
struct Mapping {
    begin: u64,
    offset: u64,
    path: String,
}

/// All Python processes of this machine that have torch with CUDA loaded and can be looked at, by their numbers.
pub fn torch_processes() -> Vec<PythonProcess> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let found = ids.filter_map(|id| PythonProcess::find(id).ok());
    let mut found: Vec<_> = found.filter(|process| process.has_cuda).collect();
    found.sort_unstable_by_key(|process| process.id);
    found
}

impl PythonProcess {
    /// Looks at a process.
    ///
    /// # Errors
    ///
    /// If there is no such process, it may not be looked at, or it is not one of Python with torch.
    pub fn find(id: u32) -> Result<Self, AttachError> {
        let folder = folder_of(id);
        let user = fs::metadata(&folder);
        let user = user.map_err(|_| AttachError::NoProcess { id })?.uid();
        let command = command_of(id);
        let maps = mappings(id).map_err(|_| AttachError::NotAllowed {
            id,
            why: "the system does not show this user its memory".to_owned(),
        })?;
        let has = |part: &str| maps.iter().any(|mapping| mapping.path.contains(part));
        let is_python = has("/libpython3.") || has("/python3") || has("/lib-dynload/");
        if !is_python {
            return Err(AttachError::NotPython { id, command });
        }
        if !has("/libtorch_python.so") {
            return Err(AttachError::NoTorch { id });
        }
        Ok(Self {
            id,
            user,
            command,
            python: maps.iter().find_map(|mapping| version_in(&mapping.path)),
            has_cuda: has("/libtorch_cuda.so") || has("/libtorch_hip.so"),
        })
    }

    /// The addresses of Python's functions and of `mmap` in the process.
    pub(super) fn addresses(&self) -> Result<[u64; 3], AttachError> {
        let id = self.id;
        let maps = mappings(id).map_err(|_| AttachError::Ended { id })?;
        let is_python = |name: &str| name.starts_with("libpython3") || name.starts_with("python");
        let is_libc = |name: &str| name.starts_with("libc.so") || name.starts_with("libc-2");
        let [add, run] =
            find_in(id, &maps, is_python, [ADD, RUN]).ok_or(AttachError::NoSymbols { id })?;
        let [map] = find_in(id, &maps, is_libc, [MAP]).ok_or(AttachError::NoSymbols { id })?;
        Ok([add, run, map])
    }

    /// The file of its interpreter, as this process can start it.
    pub(super) fn interpreter(&self) -> PathBuf {
        let file = folder_of(self.id).join("exe");
        fs::read_link(&file).unwrap_or(file)
    }
}

/// The folder of the kernel for a process.
pub(super) fn folder_of(id: u32) -> PathBuf {
    Path::new("/proc").join(id.to_string())
}

/// The addresses of functions in the first mapped file of such a name that exports them all.
fn find_in<const N: usize>(
    id: u32,
    maps: &[Mapping],
    is_named: impl Fn(&str) -> bool,
    names: [&str; N],
) -> Option<[u64; N]> {
    let root = folder_of(id).join("root");
    // The file begins where its beginning is mapped.
    let starts = maps.iter().filter(|mapping| mapping.offset == 0);
    let named = starts.filter(|mapping| {
        let name = mapping.path.rsplit('/').next();
        name.is_some_and(&is_named)
    });
    for mapping in named {
        let path = root.join(mapping.path.trim_start_matches('/'));
        let is_small = fs::metadata(&path).is_ok_and(|file| file.len() <= LARGEST);
        let Some(Exports { found, is_fixed }) = is_small
            .then(|| fs::read(&path).ok())
            .flatten()
            .and_then(|file| exports(&file, &names))
        else {
            continue;
        };
        let begin = if is_fixed { 0 } else { mapping.begin };
        let all: Vec<u64> = names
            .iter()
            .filter_map(|name| found.get(*name)?.checked_add(begin))
            .collect();
        if let Ok(all) = all.try_into() {
            return Some(all);
        }
    }
    None
}

fn mappings(id: u32) -> std::io::Result<Vec<Mapping>> {
    let text = fs::read_to_string(folder_of(id).join("maps"))?;
    let mapping = |line: &str| {
        let mut words = line.split_whitespace();
        let begin = words.next()?.split('-').next()?;
        let offset = words.nth(1)?;
        let at = line.find('/')?;
        Some(Mapping {
            begin: u64::from_str_radix(begin, 16).ok()?,
            offset: u64::from_str_radix(offset, 16).ok()?,
            path: line.get(at..)?.to_owned(),
        })
    };
    Ok(text.lines().filter_map(mapping).collect())
}

/// The minor version in the name of a compiled module of Python, or of its library.
fn version_in(path: &str) -> Option<u16> {
    let digits = ["cpython-3", "libpython3."].into_iter().find_map(|mark| {
        let at = path.find(mark)?;
        path.get(at + mark.len()..)
    })?;
    let end = digits.find(|c: char| !c.is_ascii_digit());
    digits.get(..end.unwrap_or(digits.len()))?.parse().ok()
}

/// The command line, in one line without control characters.
fn command_of(id: u32) -> String {
    let bytes = fs::read(folder_of(id).join("cmdline")).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let words = text.split('\0').filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    line.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .take(300)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_names_of_files() {
        let torch = "/v/torch/_C.cpython-311-x86_64-linux-gnu.so";
        assert_eq!(version_in(torch), Some(11));
        assert_eq!(version_in("/usr/lib/libpython3.14.so.1.0"), Some(14));
        assert_eq!(
            version_in("/lib/cpython-314t-x86_64-linux-gnu.so"),
            Some(14)
        );
        assert_eq!(version_in("/usr/lib/libc.so.6"), None);
    }

    #[test]
    fn a_process_without_python_is_refused_with_its_command() {
        let error = PythonProcess::find(std::process::id()).unwrap_err();
        assert!(matches!(error, AttachError::NotPython { .. }), "{error:?}");
        let error = PythonProcess::find(u32::MAX).unwrap_err();
        assert!(matches!(error, AttachError::NoProcess { .. }), "{error:?}");
    }
}
