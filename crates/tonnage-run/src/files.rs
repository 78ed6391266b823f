// SPDX-License-Identifier: MIT OR Apache-2.0
//! Keeps the user's files as they are while a job runs dry.
//!
//! The job writes to a directory of the run instead, and reads its own writes there. Overlay mounts of the kernel do
//! that where the system allows them: a process of the run, the keeper, makes a mount namespace, and the job joins it
//! (`overlay.rs` of the stand-in). Elsewhere the stand-in redirects the calls of C's library. Afterwards the directory
//! shows every file that the job wrote, changed or deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

use tonnage_capture::{
    FILES_BY_OVERLAY, FILES_BY_PRELOAD, FILES_BY_VARIABLE, FILES_DELETED, FILES_ENTER_MAKE,
    FILES_ENTER_VARIABLE, FILES_ERROR, FILES_REFUSED, FILES_THROUGH, FILES_UPPER, FILES_VARIABLE,
};
use tonnage_recording::facts::{FileChanges, Protection as By};

use crate::job::Job;

/// How long the keeper may take to make its mounts.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(20);
/// How many changed files are counted, and how many of them the verdict names.
const MOST_FILES: usize = 100_000;
const MOST_NAMES: usize = 5;
/// Directories of Python for compiled modules.
const BYTE_CODE: &str = "__pycache__";
/// The temporary directory of a job without mounts. Programs that call the kernel directly share its files there.
const TEMPORARY: &str = "tmp";
/// A longer path leaves too little room for names of sockets, which have 107 bytes.
const LONGEST_TEMPORARY: usize = 56;
/// Where `--keep-files` puts files from outside the working directory.
const OUTSIDE: &str = "outside";

/// Variables that name directories for downloads and compiled code, which a job may fill as on a GPU machine; and the
/// entries that such a directory has. Users also name a directory that has other files beside the cache: then these
/// entries alone are the cache. The first is made where it is a name.
const CACHES: [(&str, &[&str]); 11] = [
    (
        "XDG_CACHE_HOME",
        &[
            "huggingface",
            "torch",
            "pip",
            "uv",
            "triton",
            "vllm",
            "flashinfer",
            "matplotlib",
            "nvidia",
            "fontconfig",
            "mesa_shader_cache*",
            "tonnage",
        ],
    ),
    ("HF_HOME", HUGGING_FACE),
    ("HF_HUB_CACHE", HUB),
    ("HUGGINGFACE_HUB_CACHE", HUB),
    ("HF_DATASETS_CACHE", DATASETS),
    ("HF_ASSETS_CACHE", &[]),
    ("HF_XET_CACHE", &["http*", "logs", "staging"]),
    ("TRANSFORMERS_CACHE", HUB),
    ("TORCH_HOME", TORCH),
    ("PIP_CACHE_DIR", &["http*", "wheels", "selfcheck"]),
    ("UV_CACHE_DIR", &["*-v*", "CACHEDIR.TAG"]),
];
const HUGGING_FACE: &[&str] = &[
    "hub",
    "assets",
    "datasets",
    "modules",
    "xet",
    "accelerate",
    "evaluate",
    "stored_tokens",
    "token",
];
const HUB: &[&str] = &["models--*", "datasets--*", "spaces--*", "version*.txt"];
const DATASETS: &[&str] = &[
    "downloads",
    "*___*",
    "*.lock",
    "generator",
    "json",
    "csv",
    "parquet",
    "text",
    "imagefolder",
    "audiofolder",
    "webdataset",
];
const TORCH: &[&str] = &["hub", "kernels"];
/// Entries of caches that users also give to directories of their own, and what such an entry has in a cache.
const AMBIGUOUS: [(&str, &[&str]); 13] = [
    ("huggingface", HUGGING_FACE),
    ("torch", TORCH),
    (
        "hub",
        &[
            "models--*",
            "datasets--*",
            "spaces--*",
            "version*.txt",
            "checkpoints",
            "*_main",
            "*_master",
            "trusted_list",
        ],
    ),
    ("datasets", DATASETS),
    ("modules", &["*_modules", "__init__.py", "__pycache__"]),
    ("generator", PREPARED),
    ("json", PREPARED),
    ("csv", PREPARED),
    ("parquet", PREPARED),
    ("text", PREPARED),
    ("logs", &["xet_*"]),
    ("staging", &[]),
    ("downloads", &["*.json", "*.lock", "extracted"]),
];
const PREPARED: &[&str] = &["default-*"];
/// Hidden entries of caches. Others may be the user's: a home directory has many.
const HIDDEN: [&str; 7] = [
    ".locks",
    ".lock",
    ".gitignore",
    ".git",
    ".cache",
    ".tmp*",
    ".check_for_update*",
];
/// Caches below the home directory that no variable names.
const HOME_CACHES: [&str; 4] = [".cache", ".triton", ".nv", ".keras/datasets"];

/// The protection of one run. The keeper ends with it.
#[derive(Debug)]
pub(crate) struct Files {
    directory: PathBuf,
    by: By,
    /// The process that keeps the mounts, if there are any.
    keeper: Option<Child>,
    /// The working directory of the job.
    folder: PathBuf,
}

impl Files {
    /// Protects the files of the user from `job`, whose run has the directory `run`.
    pub(crate) fn protect(
        run: &Path,
        job: &Job,
        standin: &Path,
        pass_through: &[PathBuf],
    ) -> io::Result<Self> {
        let folder = match &job.folder {
            Some(folder) => folder.canonicalize()?,
            None => std::env::current_dir()?,
        };
        let directory = run.canonicalize()?.join("files");
        for part in ["", FILES_UPPER, FILES_DELETED, TEMPORARY] {
            fs::create_dir(directory.join(part))?;
        }
        let mut through = Vec::new();
        for path in passed_through(run, job, &folder, pass_through) {
            through.extend_from_slice(path.as_os_str().as_bytes());
            through.push(b'\n');
        }
        fs::write(directory.join(FILES_THROUGH), through)?;
        // A dry run inside a dry run has the variables of the outer one, which choose nothing for it.
        let is_inside = job.variable(FILES_VARIABLE).is_some();
        let forced = job.variable(FILES_BY_VARIABLE).filter(|_| !is_inside);
        let kept = if forced.as_deref().is_some_and(|by| by == FILES_BY_PRELOAD) {
            Err("TONNAGE_FILES_BY selects the preloaded library".to_owned())
        } else {
            start_keeper(&directory, standin)
        };
        let (by, keeper) = match kept {
            Ok(keeper) => (By::Overlay, Some(keeper)),
            Err(reason) if forced.is_some_and(|by| by == FILES_BY_OVERLAY) => {
                return Err(io::Error::other(reason));
            }
            Err(_) => (By::Preload, None),
        };
        Ok(Self {
            directory,
            by,
            keeper,
            folder,
        })
    }

    /// The variables that lead a process of the job there.
    pub(crate) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let by = match self.by {
            By::Overlay => FILES_BY_OVERLAY,
            By::Preload => FILES_BY_PRELOAD,
        };
        let mut variables = vec![
            (FILES_VARIABLE, self.directory.clone().into_os_string()),
            (FILES_BY_VARIABLE, by.into()),
        ];
        if let Some(keeper) = &self.keeper {
            variables.push((FILES_ENTER_VARIABLE, keeper.id().to_string().into()));
            return variables;
        }
        let temporary = self.directory.join(TEMPORARY);
        if temporary.as_os_str().len() <= LONGEST_TEMPORARY {
            variables.push(("TMPDIR", temporary.into_os_string()));
        }
        variables
    }

    /// The program that starts `command` under protection. The first process may be linked statically, and the library
    /// is not loaded into such a program.
    pub(crate) fn launcher(program: &OsString) -> Option<&'static Path> {
        let env = Path::new("/usr/bin/env");
        // `env` would take such a word for a variable.
        let is_plain = !program.as_bytes().contains(&b'=');
        (is_plain && env.exists()).then_some(env)
    }

    /// The mechanism.
    pub(crate) fn by(&self) -> By {
        self.by
    }

    /// Every path with something that a process wrote or deleted, and every directory in which it did something that is
    /// not to be seen any more. Byte code of Python is left out, and the temporary directory itself, in which Python
    /// makes a file to find out whether it may.
    pub(crate) fn written(&self) -> BTreeSet<PathBuf> {
        let mut written = BTreeSet::new();
        for tree in [FILES_UPPER, FILES_DELETED] {
            leaves_below(&self.directory.join(tree), &mut written);
        }
        written.remove(&std::env::temp_dir());
        written
    }

    /// The changes of the job to files that would have stayed.
    pub(crate) fn changes(&self) -> FileChanges {
        let mut changes = FileChanges::new(self.by);
        let temporary = std::env::temp_dir();
        for change in self.list() {
            let is_noise = change.path.starts_with(&temporary)
                && !change.path.starts_with(&self.folder)
                || change
                    .path
                    .components()
                    .any(|part| part.as_os_str() == BYTE_CODE);
            if is_noise {
                continue;
            }
            match change.kind {
                Kind::New => changes.new += 1,
                Kind::Changed => changes.changed += 1,
                Kind::Deleted => changes.deleted += 1,
            }
            if change.kind != Kind::New && changes.unchanged.len() < MOST_NAMES {
                changes.unchanged.push(self.name_of(&change.path));
            }
        }
        let refused = self.refused();
        changes.refused = refused.len() as u64;
        let first = refused.iter().take(MOST_NAMES);
        changes.refused_at = first.map(|path| self.name_of(path)).collect();
        changes
    }

    /// How the job calls a file: relative to its working directory.
    fn name_of(&self, path: &Path) -> String {
        let name = path.strip_prefix(&self.folder).unwrap_or(path);
        name.to_string_lossy().into_owned()
    }

    /// Every path at which the preloaded library refused a change, in the order of the first refusals.
    fn refused(&self) -> Vec<PathBuf> {
        let text = fs::read(self.directory.join(FILES_REFUSED)).unwrap_or_default();
        let mut known = BTreeSet::new();
        text.split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty() && known.insert(*line))
            .map(|line| PathBuf::from(OsStr::from_bytes(line)))
            .collect()
    }

    /// Copies every file that the job wrote to `target`: those of the working directory by their relative paths, others
    /// into a directory `outside`.
    pub(crate) fn keep(&self, target: &Path) -> io::Result<()> {
        fs::create_dir_all(target)?;
        let temporary = std::env::temp_dir();
        for change in self.list() {
            let relative = change.path.strip_prefix(&self.folder);
            let is_temporary = relative.is_err() && change.path.starts_with(&temporary);
            if change.kind == Kind::Deleted || is_temporary {
                continue;
            }
            let to = match relative {
                Ok(relative) => target.join(relative),
                Err(_) => inside(&target.join(OUTSIDE), &change.path),
            };
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent)?;
            }
            let from = inside(&self.directory.join(FILES_UPPER), &change.path);
            if from.is_symlink() {
                let _ = fs::remove_file(&to);
                std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
            } else {
                copy_sparse(&from, &to)?;
            }
        }
        Ok(())
    }

    fn list(&self) -> Vec<Change> {
        let mut all = BTreeMap::new();
        list_below(
            &self.directory.join(FILES_UPPER),
            Path::new("/"),
            false,
            &mut all,
        );
        list_below(
            &self.directory.join(FILES_DELETED),
            Path::new("/"),
            true,
            &mut all,
        );
        all.into_iter()
            .map(|(path, kind)| Change { path, kind })
            .collect()
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Some(keeper) = &mut self.keeper {
            // It ends with its input.
            drop(keeper.stdin.take());
            let _ = keeper.wait();
        }
        // The kernel makes a directory there that its owner may not read, and which could not be deleted.
        for entry in fs::read_dir(self.directory.join("work"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let work = entry.path().join("work");
            let _ = fs::set_permissions(work, fs::Permissions::from_mode(0o700));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    New,
    Changed,
    Deleted,
}

/// A file that the job wrote or deleted.
struct Change {
    path: PathBuf,
    kind: Kind,
}

/// Lists the files in `folder`, which stands for `real`.
fn list_below(folder: &Path, real: &Path, deleted: bool, all: &mut BTreeMap<PathBuf, Kind>) {
    let mut folders = vec![(folder.to_owned(), real.to_owned())];
    while let Some((folder, real)) = folders.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if all.len() >= MOST_FILES {
                return;
            }
            let (path, real) = (entry.path(), real.join(entry.file_name()));
            let Ok(metadata) = fs::symlink_metadata(&path) else {
                continue;
            };
            let kind = metadata.file_type();
            // An overlay marks a deleted file by a device without a number.
            let is_mark = kind.is_char_device() && metadata.rdev() == 0;
            let existed = fs::symlink_metadata(&real).is_ok();
            if kind.is_dir() {
                if is_opaque(&path) {
                    list_hidden(&path, &real, all);
                }
                folders.push((path, real));
            } else if deleted || is_mark {
                if existed {
                    all.entry(real).or_insert(Kind::Deleted);
                }
            } else {
                let kind = if existed { Kind::Changed } else { Kind::New };
                all.insert(real, kind);
            }
        }
    }
}

/// Whether a directory of an overlay hides the one of the user: the job deleted that and made it anew.
fn is_opaque(path: &Path) -> bool {
    ["trusted.overlay.opaque", "user.overlay.opaque"]
        .iter()
        .any(|&name| {
            let mut value = [0];
            let length = rustix::fs::lgetxattr(path, name, &mut value);
            length.is_ok_and(|length| length == 1) && value == *b"y"
        })
}

/// Lists the user's files below `real` that `folder`, which hides it, does not have.
fn list_hidden(folder: &Path, real: &Path, all: &mut BTreeMap<PathBuf, Kind>) {
    let mut folders = vec![(folder.to_owned(), real.to_owned())];
    while let Some((folder, real)) = folders.pop() {
        for entry in fs::read_dir(&real).into_iter().flatten().flatten() {
            if all.len() >= MOST_FILES {
                return;
            }
            let path = folder.join(entry.file_name());
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push((path, entry.path()));
            } else if fs::symlink_metadata(&path).is_err() {
                all.entry(entry.path()).or_insert(Kind::Deleted);
            }
        }
    }
}

/// Adds the files and the empty directories in `tree`, which stands for the root.
fn leaves_below(tree: &Path, leaves: &mut BTreeSet<PathBuf>) {
    let mut folders = vec![(tree.to_owned(), PathBuf::from("/"))];
    while let Some((folder, real)) = folders.pop() {
        let mut is_empty = true;
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            is_empty = false;
            let name = entry.file_name();
            if leaves.len() >= MOST_FILES || name == BYTE_CODE {
                continue;
            }
            let real = real.join(name);
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push((entry.path(), real)),
                _ => {
                    leaves.insert(real);
                }
            }
        }
        if is_empty {
            leaves.insert(real);
        }
    }
}

/// Starts the process that makes the mounts, and waits until they are there; else the reason.
fn start_keeper(directory: &Path, standin: &Path) -> Result<Child, String> {
    // Any small program that ends with its input will do: the library acts before its `main`.
    let mut command = Command::new("cat");
    command
        .env("LD_PRELOAD", standin)
        .env(FILES_VARIABLE, directory)
        .env(FILES_ENTER_VARIABLE, FILES_ENTER_MAKE)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut keeper = command.spawn().map_err(|error| error.to_string())?;
    let mut stdout = keeper.stdout.take();
    let (sender, receiver) = channel();
    let written = keeper.stdin.as_mut().map(|stdin| stdin.write_all(b"\n"));
    std::thread::spawn(move || {
        let mut byte = [0];
        let answered = stdout.as_mut().map(|stdout| stdout.read_exact(&mut byte));
        let _ = sender.send(matches!(answered, Some(Ok(()))));
    });
    let answered = receiver.recv_timeout(KEEPER_TIMEOUT).unwrap_or(false);
    if answered && matches!(written, Some(Ok(()))) {
        return Ok(keeper);
    }
    let _ = keeper.kill();
    let _ = keeper.wait();
    let reason = fs::read_to_string(directory.join(FILES_ERROR));
    Err(reason.unwrap_or_else(|_| "the keeper ended".to_owned()))
}

/// The paths that a job may write to: the directory of the run, caches, sockets, and those that the user names.
fn passed_through(run: &Path, job: &Job, folder: &Path, named: &[PathBuf]) -> Vec<PathBuf> {
    let mut paths = vec![run.to_owned()];
    let set = |name| job.variable(name).filter(|value| !value.is_empty());
    for (name, entries) in CACHES {
        if let Some(path) = set(name) {
            paths.extend(cache_at(&job.resolve(Path::new(&path)), entries));
        }
    }
    if let Some(home) = set("HOME") {
        paths.extend(HOME_CACHES.map(|cache| Path::new(&home).join(cache)));
    }
    // A cache that contains the work itself does not make it one.
    let mut kept: Vec<PathBuf> = paths
        .into_iter()
        .filter_map(|it| it.canonicalize().ok())
        .collect();
    kept.retain(|path| !folder.starts_with(path));
    kept.extend(sockets_in(&std::env::temp_dir(), 2));
    kept.extend(
        named
            .iter()
            .filter(|path| !path.as_os_str().is_empty())
            .filter_map(|path| job.resolve(path).canonicalize().ok()),
    );
    kept.sort();
    kept.dedup();
    kept
}

/// The paths of a cache with these entries: the directory, or its entries where it has others too.
fn cache_at(path: &Path, known: &[&str]) -> Vec<PathBuf> {
    // A cache that the user names is made, so that downloads stay.
    let _ = fs::create_dir_all(path);
    let is_among = |path: &Path, patterns: &[&str]| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        patterns.iter().any(|pattern| matches(&name, pattern))
    };
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let (mut of_cache, others): (Vec<_>, Vec<_>) = entries
        .map(|entry| entry.path())
        .partition(|path| is_among(path, known) || is_among(path, &HIDDEN));
    if others.is_empty() {
        return vec![path.to_owned()];
    }
    // A hidden entry, or a repository, is the user's where other files are.
    of_cache.retain(|path| is_among(path, known) && !path.join(".git").is_dir());
    let mut paths: Vec<PathBuf> = of_cache
        .into_iter()
        .flat_map(
            |path| match AMBIGUOUS.iter().find(|(name, _)| path.ends_with(name)) {
                Some((_, inner)) => cache_at(&path, inner),
                None => vec![path],
            },
        )
        .collect();
    if let Some(first) = known.first().filter(|first| !first.contains('*')) {
        let first = path.join(first);
        if fs::create_dir(&first).is_ok() {
            paths.push(first);
        }
    }
    paths
}

/// Whether a name matches a pattern, in which `*` stands for any characters at the start, at the end or between.
fn matches(name: &str, pattern: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = name.strip_prefix(parts.next().unwrap_or_default()) else {
        return false;
    };
    match (parts.next(), parts.next()) {
        (None, _) => rest.is_empty(),
        (Some(end), None) => rest.ends_with(end),
        (Some(middle), Some(end)) => rest.contains(middle) && rest.ends_with(end),
    }
}

/// Sockets of running services, which a job reaches only where they are; in a directory and so many levels of it.
fn sockets_in(folder: &Path, levels: u32) -> Vec<PathBuf> {
    const MOST: usize = 4096;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of_entry = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_socket() => vec![entry.path()],
        Ok(kind) if kind.is_dir() && levels > 1 => sockets_in(&entry.path(), levels - 1),
        _ => Vec::new(),
    };
    entries.take(MOST).flat_map(of_entry).collect()
}

/// An absolute path below another root.
fn inside(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Copies a file and leaves holes where it has only zeros: what a dry run saves is mostly zeros.
fn copy_sparse(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = fs::File::open(from)?;
    let length = source.metadata()?.len();
    let mut target = fs::File::create(to)?;
    let mut piece = vec![0; 1 << 20];
    loop {
        let read = source.read(&mut piece)?;
        if read == 0 {
            break;
        }
        if piece[..read].iter().any(|byte| *byte != 0) {
            target.write_all(&piece[..read])?;
        } else {
            io::Seek::seek_relative(&mut target, read as i64)?;
        }
    }
    target.set_len(length)?;
    fs::set_permissions(to, source.metadata()?.permissions())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_that_contains_the_work_is_not_passed_through() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let (cache, work) = (root.join("cache"), root.join("all/project"));
        fs::create_dir_all(&work).unwrap();
        let mut job = Job::new(["true"]);
        job.environment = vec![
            ("HF_HOME".into(), cache.clone().into()),
            ("TORCH_HOME".into(), root.join("all").into()),
        ];
        let paths = passed_through(&root, &job, &work, &[]);
        assert!(paths.contains(&cache), "{paths:?}");
        assert!(
            !paths.iter().any(|path| work.starts_with(path)),
            "{paths:?}"
        );
        let named = passed_through(&root, &job, &work, std::slice::from_ref(&work));
        assert!(named.contains(&work), "{named:?}");
    }

    #[test]
    fn files_beside_a_cache_are_not_passed_through() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let mut job = Job::new(["true"]);
        job.environment = vec![("HF_HOME".into(), root.clone().into())];
        let run = Path::new("/");
        let paths = |job: &Job| passed_through(run, job, Path::new("/nowhere"), &[]);
        fs::create_dir_all(root.join("datasets")).unwrap();
        fs::write(root.join("token"), "").unwrap();
        assert!(
            paths(&job).contains(&root),
            "a directory of the cache alone"
        );
        fs::create_dir(root.join("checkpoints")).unwrap();
        let found = paths(&job);
        assert!(!found.contains(&root), "{found:?}");
        for part in ["hub", "datasets"] {
            assert!(found.contains(&root.join(part)), "{found:?}");
        }
        // The same directory as another cache.
        for (name, part) in [
            ("XDG_CACHE_HOME", "huggingface"),
            ("HF_HUB_CACHE", "models--gpt2"),
            ("TRANSFORMERS_CACHE", "models--gpt2"),
            ("HF_DATASETS_CACHE", "stanfordnlp___imdb"),
            ("PIP_CACHE_DIR", "http-v2"),
            ("UV_CACHE_DIR", "archive-v0"),
            ("HF_XET_CACHE", "logs"),
        ] {
            fs::create_dir_all(root.join(part)).unwrap();
            job.environment = vec![(name.into(), root.clone().into())];
            let found = paths(&job);
            assert!(!found.contains(&root), "{name}: {found:?}");
            assert!(
                !found.contains(&root.join("checkpoints")),
                "{name}: {found:?}"
            );
            assert!(found.contains(&root.join(part)), "{name}: {found:?}");
        }
    }

    #[test]
    fn directories_of_the_user_that_are_named_like_those_of_a_cache_are_not_passed_through() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        let mut job = Job::new(["true"]);
        let paths = |job: &Job| passed_through(Path::new("/"), job, Path::new("/nowhere"), &[]);
        // A home directory with nothing but hidden files.
        fs::create_dir(root.join(".ssh")).unwrap();
        job.environment = vec![("XDG_CACHE_HOME".into(), root.clone().into())];
        assert!(!paths(&job).contains(&root), "{:?}", paths(&job));
        for own in [
            "datasets/images",
            "hub/notes",
            "torch/src",
            "vllm/.git",
            "json/raw",
            "checkpoints",
        ] {
            fs::create_dir_all(root.join(own)).unwrap();
        }
        for cache in [
            "hub/models--gpt2",
            "torch/hub/checkpoints",
            "datasets/glue___mrpc",
            "json/default-1",
            "triton",
        ] {
            fs::create_dir_all(root.join(cache)).unwrap();
        }
        for (name, _) in CACHES {
            job.environment = vec![(name.into(), root.clone().into())];
            let found = paths(&job);
            for own in [
                "datasets/images",
                "hub/notes",
                "torch/src",
                "vllm",
                "json/raw",
                "checkpoints",
                ".ssh",
            ] {
                let own = root.join(own);
                assert!(
                    !found.iter().any(|path| own.starts_with(path)),
                    "{name}: {own:?} in {found:?}"
                );
            }
        }
        for (name, cache) in [
            ("HF_HOME", "hub/models--gpt2"),
            ("HF_HOME", "datasets/glue___mrpc"),
            ("HF_DATASETS_CACHE", "json/default-1"),
            ("XDG_CACHE_HOME", "torch/hub"),
            ("XDG_CACHE_HOME", "triton"),
        ] {
            job.environment = vec![(name.into(), root.clone().into())];
            let found = paths(&job);
            assert!(
                found.contains(&root.join(cache)),
                "{name}: {cache} not in {found:?}"
            );
        }
    }

    #[test]
    fn every_trace_of_a_write_is_a_leaf() {
        let folder = tempfile::tempdir().unwrap();
        for path in ["a/emptied", "b/__pycache__", "c/d"] {
            fs::create_dir_all(folder.path().join(path)).unwrap();
        }
        for path in ["b/__pycache__/x.pyc", "c/d/file"] {
            fs::write(folder.path().join(path), "").unwrap();
        }
        let mut leaves = BTreeSet::new();
        leaves_below(folder.path(), &mut leaves);
        let expected = ["/a/emptied", "/c/d/file"].map(PathBuf::from);
        assert_eq!(leaves, BTreeSet::from(expected));
    }

    #[test]
    fn a_copy_keeps_bytes_and_holes() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let mut bytes = vec![0; 5 << 20];
        bytes[3 << 20] = 7;
        fs::write(&from, &bytes).unwrap();
        copy_sparse(&from, &to).unwrap();
        assert_eq!(fs::read(&to).unwrap(), bytes);
        assert!(fs::metadata(&to).unwrap().blocks() * 512 < 3 << 20);
    }
}
